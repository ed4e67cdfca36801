//! The line protocol. A command is one JSON object a line with `id`, `cmd` and arguments; the reply is one with
//! the same `id` and either `ok` (a value) or `error` (`code`, `text`). A command with a `client` runs on that
//! client's own thread, in order; those of different clients run side by side. Replies therefore come in any
//! order. Events, without `id`, come in between. End of input ends the process.

use crate::client::Trx;
use crate::host::{Config, Host, HostError, SstMode};
use crate::lean::{self, LeanLoad};
use crate::load::{self, Load};
use crate::log;
use crate::provider::{ALLOW_RULES, EVENTS_SEEN, EVENTS_TAKE_MS, Stat};
use crate::state::ServerState;
use crate::store::{Changes, Op};
use lockstep_abi::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A client connection and its open transaction.
struct Client {
    conn: ConnId,
    trx: Option<Arc<Trx>>,
}

/// Arguments of a command.
struct Args<'a>(&'a Value);

impl Args<'_> {
    fn text(&self, name: &str) -> Result<String, HostError> {
        self.0[name].as_str().map(str::to_owned).ok_or_else(|| missing(name))
    }

    fn text_or(&self, name: &str, default: &str) -> String {
        self.0[name].as_str().unwrap_or(default).to_owned()
    }

    fn int(&self, name: &str) -> Result<i64, HostError> {
        self.0[name].as_i64().ok_or_else(|| missing(name))
    }

    fn int_or(&self, name: &str, default: i64) -> i64 {
        self.0[name].as_i64().unwrap_or(default)
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.0[name].as_bool().unwrap_or(default)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let list = self.0[name].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn gtid(&self, name: &str) -> Result<Option<Gtid>, HostError> {
        match self.0[name].as_str() {
            None => Ok(None),
            Some(text) => {
                text.parse().map(Some).map_err(|error| HostError::new("args", format!("{name}: {error}")))
            }
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.int_or("limit_ms", 20_000).max(0) as u64)
    }

    fn key(&self) -> Result<KeyType, HostError> {
        match self.text_or("key", "update").as_str() {
            "shared" => Ok(KeyType::SHARED),
            "reference" => Ok(KeyType::REFERENCE),
            "update" => Ok(KeyType::UPDATE),
            "exclusive" => Ok(KeyType::EXCLUSIVE),
            other => Err(HostError::new("args", format!("no key type {other:?}"))),
        }
    }

    fn ops(&self) -> Result<Vec<Op>, HostError> {
        serde_json::from_value(self.0["ops"].clone())
            .map_err(|error| HostError::new("args", format!("ops: {error}")))
    }
}

fn missing(name: &str) -> HostError {
    HostError::new("args", format!("the argument {name} is missing or of another type"))
}

static HOST: OnceLock<&'static Host> = OnceLock::new();

fn host() -> Result<&'static Host, HostError> {
    HOST.get().copied().ok_or_else(|| HostError::new("state", "configure first"))
}

/// Reads commands until end of input, or until one says to end.
pub fn serve(input: impl BufRead) {
    let mut clients: BTreeMap<String, Sender<Value>> = BTreeMap::new();
    for line in input.lines() {
        let Ok(line) = line else { break };
        if line.trim().is_empty() {
            continue;
        }
        let command: Value = match serde_json::from_str(&line) {
            Ok(command) => command,
            Err(error) => {
                log::event("bad_command", &error.to_string());
                continue;
            }
        };
        if command["cmd"] == "exit" {
            break;
        }
        let name = command["client"].as_str().unwrap_or("main").to_owned();
        let conn = clients.len() as ConnId + 1;
        let client = clients.entry(name).or_insert_with(|| {
            let (sender, receiver) = channel::<Value>();
            std::thread::spawn(move || {
                let mut client = Client { conn, trx: None };
                for command in receiver {
                    let reply = match run(&mut client, &command) {
                        Ok(value) => json!({ "id": command["id"], "ok": value }),
                        Err(HostError { code, text }) => {
                            json!({ "id": command["id"], "error": { "code": code, "text": text } })
                        }
                    };
                    log::line(&reply);
                }
            });
            sender
        });
        if client.send(command).is_err() {
            break;
        }
    }
}

fn run(client: &mut Client, command: &Value) -> Result<Value, HostError> {
    let args = Args(command);
    let name = args.text("cmd")?;
    if let Some(result) = lifecycle(&name, &args) {
        return result;
    }
    let host = host()?;
    if let Some(result) = transaction(host, client, &name, &args) {
        return result;
    }
    if let Some(result) = inspection(host, &name, &args) {
        return result;
    }
    control(host, client, &name, &args)
}

fn lifecycle(name: &str, args: &Args<'_>) -> Option<Result<Value, HostError>> {
    let result = match name {
        "configure" => configure(args),
        "load" => {
            host().and_then(|host| host.load(&PathBuf::from(args.text("library")?))).map(|()| json!({}))
        }
        "init" => host().and_then(Host::init).map(|()| json!({})),
        "connect" => host().and_then(Host::connect).map(|()| json!({})),
        "start" => {
            host().and_then(|host| host.start(&PathBuf::from(args.text("library")?))).map(|()| json!({}))
        }
        "open_database" => host().and_then(Host::open_database).map(|()| json!({})),
        "appliers" => host().map(|host| {
            host.spawn_appliers(args.int_or("more", 0).max(0) as usize);
            host.appliers_to_stop
                .fetch_add(args.int_or("fewer", 0).max(0), std::sync::atomic::Ordering::SeqCst);
            json!({})
        }),
        "allow" => {
            let mut rules = crate::checks::lock(&ALLOW_RULES);
            rules.ips = args.0["ips"].is_array().then(|| args.texts("ips"));
            rules.delay = Duration::from_millis(args.int_or("delay_ms", 0).max(0) as u64);
            Ok(json!({ "asked": rules.asked }))
        }
        "slow_events" => {
            EVENTS_TAKE_MS.store(args.int_or("ms", 0).max(0) as u64, std::sync::atomic::Ordering::SeqCst);
            Ok(json!({}))
        }
        "disconnect" => host().and_then(Host::disconnect).map(|()| json!({})),
        "unload" => host().and_then(Host::unload).map(|()| json!({})),
        _ => return None,
    };
    Some(result)
}

fn configure(args: &Args<'_>) -> Result<Value, HostError> {
    let position = match args.text_or("position", "recover").as_str() {
        "unknown" => None,
        "recover" => Some(Gtid::UNDEFINED),
        text => Some(text.parse().map_err(|error| HostError::new("args", format!("position: {error}")))?),
    };
    let sst = match args.text_or("sst", "copy").as_str() {
        "copy" => SstMode::Copy,
        "trivial" => SstMode::Trivial,
        "none" => SstMode::None,
        "fail" => SstMode::Fail,
        other => return Err(HostError::new("args", format!("no state transfer method {other:?}"))),
    };
    let config = Config {
        name: args.text("name")?,
        dir: PathBuf::from(args.text("dir")?),
        address: args.text_or("address", "127.0.0.1"),
        options: args.text_or("options", ""),
        cluster: args.text_or("cluster", "host"),
        url: args.text_or("url", "gcomm://"),
        donor: args.text_or("donor", ""),
        bootstrap: args.flag("bootstrap", false),
        appliers: args.int_or("appliers", 4).max(1) as usize,
        position,
        journalled: args.flag("journal", true),
        sst,
        lean: args.flag("lean", false),
    };
    Host::new(config)
        .filter(|host| HOST.set(host).is_ok())
        .map(|_| json!({}))
        .ok_or_else(|| HostError::new("state", "already configured"))
}

fn transaction(
    host: &'static Host,
    client: &mut Client,
    name: &str,
    args: &Args<'_>,
) -> Option<Result<Value, HostError>> {
    let current = |client: &Client| {
        client.trx.clone().ok_or_else(|| HostError::new("state", "this client has no transaction"))
    };
    let result = match name {
        "begin" => {
            if let Some(left) = client.trx.take() {
                host.roll_back(&left);
            }
            let trx = host.begin(client.conn);
            let id = trx.id;
            client.trx = Some(trx);
            Ok(json!({ "trx": id }))
        }
        "put" | "del" => current(client).and_then(|trx| {
            let row = args.text("row")?;
            let op = if name == "put" { Op::Put(row, args.text("value")?) } else { Op::Del(row) };
            host.write(&trx, op, &args.texts("locks"), args.key()?).map(|()| json!({}))
        }),
        "put_big" => current(client).and_then(|trx| {
            let op = Op::Put(args.text("row")?, "x".repeat(args.int("bytes")?.max(0) as usize));
            host.write(&trx, op, &[], args.key()?).map(|()| json!({}))
        }),
        "refer" => current(client)
            .and_then(|trx| host.append_key(&trx, &args.text("row")?, args.key()?).map(|()| json!({}))),
        "fail_on" => current(client).and_then(|trx| {
            host.write(&trx, Op::FailOn(args.text("member")?), &[], args.key()?).map(|()| json!({}))
        }),
        "fragment" => current(client)
            .and_then(|trx| host.fragment(&trx))
            .map(|gtid| json!({ "gtid": gtid.to_string(), "seqno": gtid.seqno })),
        "commit" => current(client).and_then(|trx| {
            client.trx = None;
            let done = host.commit(&trx)?;
            Ok(json!({ "gtid": done.gtid.to_string(), "seqno": done.gtid.seqno, "replays": done.replays }))
        }),
        "rollback" => current(client).map(|trx| {
            client.trx = None;
            host.roll_back(&trx);
            json!({})
        }),
        "total_order" => args.ops().and_then(|ops| {
            let changes = Changes { ops, locks: args.texts("locks") };
            let gtid = host.total_order(client.conn, &changes, args.text_or("error", "").as_bytes())?;
            Ok(json!({ "gtid": gtid.to_string(), "seqno": gtid.seqno }))
        }),
        "close" => {
            if let Some(trx) = client.trx.take() {
                host.roll_back(&trx);
            }
            host.provider().map(|provider| json!({ "status": provider.free_connection(client.conn).name() }))
        }
        _ => return None,
    };
    Some(result)
}

fn inspection(host: &'static Host, name: &str, args: &Args<'_>) -> Option<Result<Value, HostError>> {
    let result = match name {
        "get" => causal(host, args).and_then(|()| {
            let row = args.text("row")?;
            Ok(json!(host.read_store(|store| store.get(&row).cloned())))
        }),
        "rows" => causal(host, args).map(|()| host.read_store(|store| json!(store.rows()))),
        "digest" => Ok(host.read_store(|store| {
            let (rows, hash) = store.digest();
            json!({ "rows": rows, "hash": hash, "position": store.position().to_string(),
                    "seqno": store.position().seqno, "streams": store.streams().len() })
        })),
        "state" => {
            let machine = host.states.lock();
            Ok(json!({
                "state": machine.state.name(),
                "past": machine.past.iter().map(|state| state.name()).collect::<Vec<_>>(),
                "id": machine.id.to_string(),
                "views": machine.views,
                "paused_at": host.paused_at(),
                "streams": host.open_streams(),
                "locks": host.lock_count(),
                "recv": host.recv_results().iter().map(|status| status.name()).collect::<Vec<_>>(),
            }))
        }
        "view" => {
            let machine = host.states.lock();
            Ok(machine.view.as_ref().map_or(Value::Null, |view| {
                json!({
                    "status": view.head.status.name(),
                    "view": view.head.view,
                    "state_id": view.head.state_id.to_string(),
                    "my_idx": view.head.my_idx,
                    "capabilities": view.head.capabilities,
                    "members": view.members.iter().map(MemberInfo::name).collect::<Vec<_>>(),
                    "ids": view.members.iter().map(|member| member.id.to_string()).collect::<Vec<_>>(),
                })
            }))
        }
        "events" => {
            let events = crate::checks::lock(&EVENTS_SEEN);
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(text));
            Ok(events.iter().map(|(name, text)| json!([name, value(text)])).collect())
        }
        "membership" => host.provider().and_then(|provider| match provider.membership() {
            None => Ok(Value::Null),
            Some(Err(status)) => Err(HostError::status("get_membership", status)),
            Some(Ok((status, gtid, members))) => {
                let member = |m: &MemberInfoExtV2| {
                    json!({ "id": m.base.id.to_string(), "name": m.base.name(), "incoming": m.base.incoming(),
                            "status": m.status.name(), "last_committed": m.last_committed, "flags": m.flags })
                };
                Ok(json!({ "status": status.name(), "gtid": gtid.to_string(), "seqno": gtid.seqno,
                           "members": members.iter().map(member).collect::<Vec<_>>() }))
            }
        }),
        "violations" => Ok(json!(host.checks.violations())),
        "most_in_flight" => Ok(json!(host.checks.most_in_flight())),
        "history" => Ok(host
            .checks
            .passed(args.int_or("from", 0))
            .iter()
            .map(|passed| json!([passed.seqno, passed.kind, passed.origin, passed.trx]))
            .collect()),
        "stats" => host.provider().map(|provider| {
            let stats = provider.stats().into_iter().map(|(name, value)| {
                let value = match value {
                    Stat::Text(text) => json!(text),
                    Stat::Int(number) => json!(number),
                    Stat::Double(number) => json!(number),
                };
                (name, value)
            });
            Value::Object(stats.collect::<Map<String, Value>>())
        }),
        "identity" => host.provider().map(|provider| {
            let (name, version, vendor) = provider.identity();
            let isolation = provider.exports(NODE_ISOLATION_MODE_SET_V1_SYMBOL);
            json!({ "name": name, "version": version, "vendor": vendor, "isolation": isolation,
                    "capabilities": provider.capabilities() })
        }),
        "options" => host.provider().map(|provider| json!(provider.options_get())),
        "parameters" => host.provider().map(|provider| match provider.parameters() {
            None => Value::Null,
            Some(Err(status)) => json!(status.name()),
            Some(Ok(all)) => {
                all.into_iter().map(|(name, flags, value)| json!([name, flags, value])).collect()
            }
        }),
        "usage" => Ok(lean::usage()),
        "ledger" => Ok(host.ledger.describe()),
        "last_committed" => host.provider().map(|provider| {
            let (status, gtid) = provider.last_committed_id();
            json!({ "status": status.name(), "gtid": gtid.to_string(), "seqno": gtid.seqno })
        }),
        _ => return None,
    };
    Some(result)
}

fn causal(host: &Host, args: &Args<'_>) -> Result<(), HostError> {
    if !args.flag("causal", false) {
        return Ok(());
    }
    match host.provider()?.sync_wait(None, args.int_or("seconds", 10) as i32) {
        (Status::OK, _) => Ok(()),
        (status, _) => Err(HostError::status("sync_wait", status)),
    }
}

fn control(host: &'static Host, client: &Client, name: &str, args: &Args<'_>) -> Result<Value, HostError> {
    let provider = host.provider();
    match name {
        "wait_state" => {
            let wanted = args.text("state")?;
            let wanted = ServerState::named(&wanted)
                .ok_or_else(|| HostError::new("args", format!("no state {wanted:?}")))?;
            let reached = host.states.wait_for(args.limit(), |machine| machine.state == wanted);
            reached.then(|| json!({})).ok_or_else(|| {
                let at = host.states.lock().state.name();
                HostError::new("timeout", format!("not {} in time, but {at}", wanted.name()))
            })
        }
        "wait_members" => {
            let count = args.int("count")? as usize;
            let seen = host.states.wait_for(args.limit(), |machine| {
                machine.view.as_ref().is_some_and(|view| {
                    view.head.status == ViewStatus::PRIMARY && view.members.len() == count
                })
            });
            seen.then(|| json!({})).ok_or_else(|| {
                HostError::new(
                    "timeout",
                    format!("no view of {count} members, but {:?}", host.states.lock().view),
                )
            })
        }
        "wait_seqno" => {
            let seqno = args.int("seqno")?;
            let reached = host
                .states
                .wait_for(args.limit(), |_| host.read_store(|store| store.position().seqno >= seqno));
            reached.then(|| json!({})).ok_or_else(|| {
                let at = host.read_store(|store| store.position());
                HostError::new("timeout", format!("not at {seqno} in time, but at {at}"))
            })
        }
        "hold" => {
            host.holds.set(&args.text("point")?);
            Ok(json!({}))
        }
        "let_go" => {
            host.holds.release(&args.text("point")?);
            Ok(json!({}))
        }
        "wait_held" => {
            let point = args.text("point")?;
            let held = host.holds.wait(&point, args.int_or("count", 1).max(0) as u32, args.limit());
            held.then(|| json!({}))
                .ok_or_else(|| HostError::new("timeout", format!("nobody stands at {point}")))
        }
        "sync_wait" => {
            let (status, gtid) = provider?.sync_wait(args.gtid("gtid")?, args.int_or("seconds", 10) as i32);
            Ok(json!({ "status": status.name(), "gtid": gtid.to_string(), "seqno": gtid.seqno }))
        }
        "set_options" => Ok(json!({ "status": provider?.options_set(&args.text("options")?).name() })),
        // The number itself: also one that is no mode.
        "isolation" => provider.and_then(|provider| {
            let mode = NodeIsolationMode(args.int("mode")? as u32);
            Ok(json!(provider.set_isolation(mode).map(|result| result.0)))
        }),
        "pause" => Ok(json!({ "seqno": provider?.pause() })),
        "resume" => Ok(json!({ "status": provider?.resume().name() })),
        "desync" => Ok(json!({ "status": provider?.desync().name() })),
        "resync" => Ok(json!({ "status": provider?.resync().name() })),
        "stats_reset" => provider.map(|provider| {
            provider.stats_reset();
            json!({})
        }),
        "load_test" => {
            let outcome = load::run(
                host,
                Load {
                    threads: args.int_or("threads", 4).clamp(1, 1024) as usize,
                    duration: Duration::from_millis(args.int_or("millis", 1000).max(1) as u64),
                    rows: args.int_or("rows", 100_000).max(1) as u64,
                    writes: args.int_or("writes", 1).max(1) as u64,
                    bytes: args.int_or("bytes", 16).max(0) as usize,
                    seed: args.int_or("seed", 1) as u64,
                    streams: args.int_or("streams", 0).clamp(0, 100) as u64,
                    gaps: args.int_or("gaps", 0).clamp(0, 100) as u64,
                    statements: args.int_or("statements", 0).clamp(0, 100) as u64,
                    rollbacks: args.int_or("rollbacks", 0).clamp(0, 100) as u64,
                },
            );
            Ok(json!({
                "committed": outcome.committed, "conflicts": outcome.conflicts, "replays": outcome.replays,
                "failed": outcome.failed, "failure": outcome.failure,
                "p50_us": outcome.quantile_us(0.5), "p99_us": outcome.quantile_us(0.99),
            }))
        }
        "lean_load" => Ok(host.lean_load(LeanLoad {
            clients: args.int_or("clients", 8).clamp(1, 1024) as usize,
            duration: Duration::from_millis(args.int_or("millis", 1000).max(1) as u64),
            keys: args.int_or("keys", 100_000).max(1) as u64,
            writes: args.int_or("writes", 1).max(1) as u64,
            bytes: args.int_or("bytes", 512).max(0) as usize,
            conflict: args.int_or("conflict", 0).clamp(0, 100) as u64,
            member: args.int_or("member", 0).clamp(0, 63) as u64,
        })),
        "raw" => raw(host, client, args),
        other => Err(HostError::new("args", format!("no command {other:?}"))),
    }
}

/// Calls of the table as they come, whatever the state: for tests of the wrong order.
fn raw(host: &'static Host, client: &Client, args: &Args<'_>) -> Result<Value, HostError> {
    let provider = host.provider()?;
    let mut handle = WsHandle { trx_id: args.int_or("trx", 9_000_001) as u64, opaque: std::ptr::null_mut() };
    let mut meta = TrxMeta::UNDEFINED;
    let gtid = args.gtid("gtid")?.unwrap_or(Gtid::UNDEFINED);
    let status = match args.text("call")?.as_str() {
        "certify" => {
            let appended = provider.append_key(&mut handle, &[b"d", b"t", b"r"], KeyType::EXCLUSIVE);
            let appended = [appended, provider.append_data(&mut handle, b"{\"ops\":[]}")];
            let status = provider.certify(client.conn, &mut handle, FLAG_TRX_START | FLAG_TRX_END, &mut meta);
            provider.release(&mut handle);
            return Ok(json!({ "status": status.name(), "append": appended.map(Status::name),
                              "gtid": meta.gtid.to_string() }));
        }
        "certify_nothing" => {
            provider.certify(client.conn, &mut handle, FLAG_TRX_START | FLAG_TRX_END, &mut meta)
        }
        "append_key" => {
            let status = provider.append_key(&mut handle, &[b"d", b"t", b"r"], KeyType::EXCLUSIVE);
            provider.release(&mut handle);
            status
        }
        "release" => provider.release(&mut handle),
        "commit_order_enter" => provider.commit_order_enter(&handle, &meta),
        "commit_order_leave" => provider.commit_order_leave(&handle, &meta, &[]),
        "replay_trx" => provider.replay_trx(&handle, None),
        "rollback" => provider.rollback(handle.trx_id),
        "abort_certification" => {
            let (status, victim) = provider.abort_certification(args.int_or("bf_seqno", 1), handle.trx_id);
            return Ok(json!({ "status": status.name(), "victim": victim }));
        }
        "to_execute_start" => {
            let keys = vec![vec![b"d".to_vec(), b"t".to_vec()]];
            let flags = FLAG_TRX_START | FLAG_TRX_END;
            provider.to_execute_start(client.conn, &keys, b"{\"ops\":[]}", flags, &mut meta)
        }
        "to_execute_end" => provider.to_execute_end(client.conn, &[]),
        "sync_wait" => provider.sync_wait(args.gtid("gtid")?, args.int_or("seconds", 1) as i32).0,
        "last_committed_id" => provider.last_committed_id().0,
        "sst_sent" => provider.sst_sent(&gtid, args.int_or("rcode", 0) as i32),
        "sst_received" => provider.sst_received(&gtid, args.int_or("rcode", 0) as i32),
        "disconnect" => provider.disconnect(),
        "recv" => provider.recv(None),
        "assign_read_view" => provider.assign_read_view(&mut handle, None),
        "free_connection" => provider.free_connection(77_777),
        "pause" => return Ok(json!({ "seqno": provider.pause() })),
        "resume" => provider.resume(),
        "desync" => provider.desync(),
        "resync" => provider.resync(),
        other => return Err(HostError::new("args", format!("no raw call {other:?}"))),
    };
    Ok(json!({ "status": status.name(), "gtid": meta.gtid.to_string() }))
}
