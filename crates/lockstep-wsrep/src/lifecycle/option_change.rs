//! Changes of the options of a running provider.

use crate::context::Context;
use crate::guard::InjectedPanic;
use crate::lifecycle::settings::check_until;
use lockstep_abi::Status;
use lockstep_node::options::{Change, OptionError, Options};
use lockstep_node::{Level, Node};

/// Microseconds since 1970.
fn wall() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// `options_set`: changes all options in `text`, or none.
pub(crate) fn set_options(cx: &Context, injected: &InjectedPanic, is_connected: bool, text: &str) -> Status {
    let (settings, log) = (&cx.host.settings, &cx.host.log);
    let policy = cx.node().map(|node| node.policy());
    let refused = |error: &dyn std::fmt::Display| format!("wsrep_provider_options are unchanged: {error}");
    let promoted = settings.with(|options| options.check_promoted(text, cx.node().is_some_and(Node::votes)));
    let preview = promoted.and_then(|()| settings.preview(text, policy));
    match preview.map(|(options, changes)| apply_fallible(cx, is_connected, &options, &changes)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            log.error(refused(&error));
            return Status::NODE_FAIL;
        }
        Err(error @ OptionError::Unknown { .. }) => {
            // Level and status are those of Galera's library, and the text begins as there.
            log.warn(format!("{error} (wsrep_provider_options are unchanged)"));
            return Status::NODE_FAIL;
        }
        Err(error) => {
            log.error(refused(&error));
            return Status::NODE_FAIL;
        }
    }
    let (changes, tuning, notes) = match settings.set(text, policy) {
        Ok(changed) => changed,
        Err(error) => {
            log.error(refused(&error));
            return Status::NODE_FAIL;
        }
    };
    for note in notes {
        log.line(if note.warn { Level::Warn } else { Level::Info }, &note.text);
    }
    log.set_debug(settings.with(|options| options.bool("debug")));
    let Some(node) = cx.node() else { return Status::OK };
    node.set_tuning(tuning);
    for change in changes {
        match change.name {
            "debug.panic" if change.value.eq_ignore_ascii_case("node") => node.panic(),
            "debug.panic" => injected.inject(&change.value.to_ascii_lowercase()),
            "gmcast.isolate" => node.isolate(change.value != "0"),
            _ => {}
        }
    }
    Status::OK
}

/// Applies the changes that may fail before any other change is made. At most one of them at a time: one that has been
/// applied is not undone if the next one fails.
fn apply_fallible(
    cx: &Context,
    is_connected: bool,
    options: &Options,
    changes: &[Change],
) -> Result<(), String> {
    let log = &cx.host.log;
    let Some(node) = cx.node() else { return Ok(()) };
    if changes.iter().any(|change| change.name == "apply.until")
        && let Some(until) = options.tuning().apply_hold.until
        && let Some(warning) = check_until(until, node.history(), node.last_committed(), wall())?
    {
        log.warn(warning);
    }
    let policy = options.policy_change(changes).filter(|_| is_connected);
    let is_switched_on = |name| changes.iter().any(|change| change.name == name) && options.bool(name);
    let [reload, bootstrap] = ["socket.ssl_reload", "pc.bootstrap"].map(is_switched_on);
    if usize::from(policy.is_some()) + usize::from(reload) + usize::from(bootstrap) > 1 {
        return Err(
            "set commit.*, socket.ssl_reload and pc.bootstrap in separate SET GLOBAL statements".into()
        );
    }
    if let Some(change) = policy {
        match node.change_policy(change) {
            Ok(true) => {}
            Ok(false) => log.warn(
                "the change of commit.* is requested and not in force yet: a line here and `lockstep status` report \
                 when it is",
            ),
            Err(text) => return Err(format!("the commit policy is unchanged: {text}")),
        }
    }
    if reload {
        node.reload_tls().map_err(|error| {
            format!(
                "socket.ssl_reload: {error}; the certificates that were loaded before stay in \
                 force"
            )
        })?;
    }
    if bootstrap && node.is_primary() {
        log.info("pc.bootstrap: this member is in the primary component already; nothing was changed");
    } else if bootstrap {
        let answer = node.bootstrap();
        if !answer.ok {
            return Err(format!("pc.bootstrap: {}", answer.text));
        }
    }
    Ok(())
}
