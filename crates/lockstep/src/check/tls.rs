//! Checks of the encryption between members: certificate, key and authority, and the read rights on the key.

use super::machine::Keys;
use super::{Check, Level};

pub(super) fn files(check: &mut Check<'_>) {
    const NAME: &str = "wsrep_provider_options";
    let Some(tls) = check.options.tls() else { return };
    let account = check.text("user", "mysql").to_owned();
    for path in [Some(&tls.files.cert), Some(&tls.files.key), tls.files.ca.as_ref()].into_iter().flatten() {
        if !path.is_absolute() {
            let text = format!(
                "{} is not an absolute path: the server opens it in the data directory",
                path.display()
            );
            check.about(Level::Unwise, NAME, text);
        }
        super::provider::hidden(check, NAME, path);
    }
    match check.machine.keys(&tls.files, &account) {
        Keys::Usable { warning, exposed } => {
            if let Some(warning) = warning {
                check.about(Level::Unwise, NAME, format!("socket.ssl_cert: {warning}"));
            }
            if exposed {
                let key = tls.files.key.display();
                let text = format!(
                    "socket.ssl_key: {key} can be read by every account of this machine: chmod 0600 {key}"
                );
                check.about(Level::Unwise, NAME, text);
            }
        }
        Keys::Unusable(why) => check.about(Level::Refused, NAME, why),
        Keys::NotSeen(why) => {
            let text = format!("{why}: run this as root, or as the server's account");
            check.about(Level::Note, NAME, text);
        }
    }
    if tls.dynamic {
        let text = "socket.dynamic accepts connections without encryption, too: turn it off when all members have socket.ssl";
        check.about(Level::Unwise, NAME, text);
    }
}
