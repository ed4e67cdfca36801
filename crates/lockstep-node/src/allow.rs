//! The allow-list of peers, which the front end checks. The check may block while a session holds a lock on a table. So a
//! short-lived thread makes it, and only the connection waits.
//!
//! Answers are cached for a moment, because a peer dials more than once. If there is no answer in time, the last one
//! counts, however old: a table lock must not reject an address that was accepted before.

use crate::api::AllowCheck;
use lockstep_core::Micros;
use lockstep_net::{PeerHello, Reason};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The most threads that check at a time.
const THREADS_MAX: usize = 4;
/// The most connections that wait for an answer.
const WAITING_MAX: usize = 64;
/// The longest wait of a connection. After a longer one its peer would give up.
const TIMEOUT: Micros = 2_000_000;
/// How long an acceptance is cached.
const YES_KEPT: Micros = 10_000_000;
/// How long a rejection is cached. A rejected peer dials several times a second, and may be accepted meanwhile.
const NO_KEPT: Micros = 1_000_000;
/// The most addresses in the cache.
const REMEMBERED_MAX: usize = 1024;
/// A rejection that took longer counts as no answer.
const NO_AT_MOST: Duration = Duration::from_millis(900);
/// How often the log has a line about one address at most.
const SAY_EVERY: Micros = 60_000_000;

/// A peer that has introduced itself and waits for the decision.
#[derive(Debug)]
pub(crate) struct Waiting<C> {
    pub(crate) conn: C,
    pub(crate) hello: PeerHello,
    ip: IpAddr,
    since: Micros,
}

/// The answer for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Accepted.
    Yes,
    /// Rejected.
    No,
    /// The check has not answered in time.
    Silence,
}

#[derive(Default)]
struct Known {
    /// The last answer, and when it came.
    answer: Option<(bool, Micros)>,
    /// When the log last had a line about it.
    said: Option<Micros>,
}

/// See the module.
/// `C` names connections.
pub(crate) struct AllowList<C> {
    check: Option<AllowCheck>,
    known: BTreeMap<IpAddr, Known>,
    asking: BTreeSet<IpAddr>,
    waiting: Vec<Waiting<C>>,
    /// The addresses of `wsrep_cluster_address`. The operator names them, so they are not checked when this member dials
    /// them.
    named: BTreeSet<String>,
}

/// A peer's address in the form of the table: IPv4 also if the connection came by a socket for IPv6.
pub(crate) fn ip_of(hello: &PeerHello) -> IpAddr {
    hello.remote_addr.ip().to_canonical()
}

impl<C: PartialEq> AllowList<C> {
    /// Without a check every peer is accepted.
    pub(crate) fn new(check: Option<AllowCheck>) -> AllowList<C> {
        AllowList {
            check,
            known: BTreeMap::new(),
            asking: BTreeSet::new(),
            waiting: Vec::new(),
            named: BTreeSet::new(),
        }
    }

    /// The addresses that the configuration names.
    pub(crate) fn set_named(&mut self, addresses: BTreeSet<String>) {
        self.named = addresses;
    }

    /// Whether the check has to be asked about a peer that this member `dialed` at this address, or that dialed.
    pub(crate) fn is_asked(&self, dialed: Option<&str>) -> bool {
        self.check.is_some() && !dialed.is_some_and(|address| self.named.contains(address))
    }

    /// The answer for this peer's address. `None`: the query is pending, and the connection has to wait with
    /// [`AllowList::wait`]. `answered` is called on the querying thread, with `None` if the query failed.
    pub(crate) fn ask(
        &mut self,
        now: Micros,
        ip: IpAddr,
        answered: impl FnOnce(IpAddr, Option<bool>) + Send + 'static,
    ) -> Option<Answer> {
        let Some(check) = &self.check else { return Some(Answer::Yes) };
        if let Some((allowed, at)) = self.known.get(&ip).and_then(|k| k.answer) {
            let kept = if allowed { YES_KEPT } else { NO_KEPT };
            if now < at + kept {
                return Some(if allowed { Answer::Yes } else { Answer::No });
            }
        }
        if self.asking.contains(&ip) {
            return None;
        }
        if self.asking.len() >= THREADS_MAX || self.waiting.len() >= WAITING_MAX {
            return Some(self.last_resort(ip));
        }
        let check = check.clone();
        let thread =
            std::thread::Builder::new().name("ls-allow".into()).stack_size(512 * 1024).spawn(move || {
                let began = Instant::now();
                let answer = catch_unwind(AssertUnwindSafe(|| check(ip))).ok();
                // The server also rejects if it could not read the table, such as after a lock timeout. A successful read
                // takes next to no time.
                answered(ip, answer.filter(|allowed| *allowed || began.elapsed() < NO_AT_MOST));
            });
        if thread.is_err() {
            return Some(self.last_resort(ip));
        }
        self.asking.insert(ip);
        None
    }

    fn last_resort(&self, ip: IpAddr) -> Answer {
        match self.known.get(&ip).and_then(|k| k.answer) {
            Some((true, _)) => Answer::Yes,
            _ => Answer::Silence,
        }
    }

    /// This connection waits for the answer.
    pub(crate) fn wait(&mut self, now: Micros, conn: C, hello: PeerHello) {
        let ip = ip_of(&hello);
        self.waiting.push(Waiting { conn, hello, ip, since: now });
    }

    /// The connection has closed.
    pub(crate) fn gone(&mut self, conn: &C) {
        self.waiting.retain(|w| w.conn != *conn);
    }

    /// Records an answer. [`AllowList::due`] decides on the connections that waited for it.
    pub(crate) fn answered(&mut self, now: Micros, ip: IpAddr, answer: Option<bool>) {
        self.asking.remove(&ip);
        let Some(allowed) = answer else { return };
        if self.known.len() >= REMEMBERED_MAX && !self.known.contains_key(&ip) {
            self.known.retain(|_, k| k.answer.is_some_and(|(allowed, at)| allowed && now < at + YES_KEPT));
            if self.known.len() >= REMEMBERED_MAX {
                return;
            }
        }
        self.known.entry(ip).or_default().answer = Some((allowed, now));
    }

    /// The connections whose wait has ended, with their answers.
    pub(crate) fn due(&mut self, now: Micros) -> Vec<(Waiting<C>, Answer)> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let (waiting, asking) = (std::mem::take(&mut self.waiting), &self.asking);
        let (stay, due): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|w| asking.contains(&w.ip) && now < w.since + TIMEOUT);
        self.waiting = stay;
        due.into_iter()
            .map(|w| {
                let answer = match self.known.get(&w.ip).and_then(|k| k.answer) {
                    // The answer arrived while the connection waited.
                    Some((false, at)) if at >= w.since => Answer::No,
                    _ => self.last_resort(w.ip),
                };
                (w, answer)
            })
            .collect()
    }

    /// Whether the log may have another line about this address.
    pub(crate) fn is_news(&mut self, now: Micros, ip: IpAddr) -> bool {
        if self.known.len() >= REMEMBERED_MAX && !self.known.contains_key(&ip) {
            return false;
        }
        let said = &mut self.known.entry(ip).or_default().said;
        let news = said.is_none_or(|at| now >= at + SAY_EVERY);
        if news {
            *said = Some(now);
        }
        news
    }
}

/// A rejection of a peer.
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) to_peer: String,
    pub(crate) to_log: String,
}

/// The rejection of `peer` at this address by the member `own`, after an answer other than yes.
pub(crate) fn refusal(answer: Answer, ip: IpAddr, own: &str, peer: &str) -> Refusal {
    let insert = format!("INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('{ip}')");
    match answer {
        Answer::Yes | Answer::No => Refusal {
            reason: Reason::NotListed,
            to_peer: format!(
                "{own} does not find {ip} in its allow-list; to let this member in, on a member of the cluster: {insert}"
            ),
            to_log: format!(
                "Connection not allowed: {peer} at {ip} is not in the allow-list; to let it in: {insert}"
            ),
        },
        Answer::Silence => Refusal {
            reason: Reason::Busy,
            to_peer: format!("{own} does not know yet whether {ip} is in its allow-list: try again"),
            to_log: format!(
                "{peer} at {ip} has to wait outside: the server does not say whether the address is in the allow-list; \
                 is the table mysql.wsrep_allowlist locked?"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_net::Bytes;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, mpsc};

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn hello(ip: IpAddr) -> PeerHello {
        PeerHello {
            cluster: "c".into(),
            version: 1,
            blob: Bytes::new(),
            remote_addr: (ip, 5).into(),
            outgoing: false,
            dialed: None,
            encrypted: false,
        }
    }

    #[test]
    fn allow_list_answer_is_cached_for_a_while() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let mut list = AllowList::new(Some(Arc::new(move |ip| {
            count.fetch_add(1, Ordering::SeqCst);
            ip == A
        })));
        let (sender, received) = mpsc::channel();
        let ask = |list: &mut AllowList<usize>, now, ip| {
            let sender = sender.clone();
            list.ask(now, ip, move |ip, answer| sender.send((ip, answer)).unwrap())
        };
        assert_eq!(ask(&mut list, 1, A), None);
        let (ip, answer) = received.recv().unwrap();
        list.answered(2, ip, answer);
        assert_eq!(ask(&mut list, 3, A), Some(Answer::Yes));
        assert_eq!(ask(&mut list, 2 + YES_KEPT, A), None, "it may have been taken out");
        list.answered(2 + YES_KEPT, A, received.recv().unwrap().1);

        let b: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
        let ip = ip_of(&hello(b));
        assert_eq!(ip, IpAddr::from([10, 0, 0, 2]), "as the table would have it");
        assert_eq!(ask(&mut list, 5, ip), None);
        list.answered(6, ip, received.recv().unwrap().1);
        assert_eq!(ask(&mut list, 7, ip), Some(Answer::No));
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        assert_eq!(ask(&mut list, 6 + NO_KEPT, ip), None, "it may have been let in");
    }

    #[test]
    fn earlier_accepted_address_passes_during_lock() {
        let lock = Arc::new(Mutex::new(()));
        let table = lock.clone();
        let mut list = AllowList::new(Some(Arc::new(move |_| table.lock().is_ok())));
        let (sender, received) = mpsc::channel();
        let ask = |list: &mut AllowList<usize>, now, ip| {
            let sender = sender.clone();
            list.ask(now, ip, move |ip, answer| {
                let _ = sender.send((ip, answer));
            })
        };
        assert_eq!(ask(&mut list, 0, A), None);
        list.answered(0, A, received.recv().unwrap().1);
        let held = lock.lock().unwrap();
        let b = IpAddr::from([10, 0, 0, 2]);
        for (n, ip) in [A, b].into_iter().enumerate() {
            assert_eq!(ask(&mut list, YES_KEPT, ip), None);
            list.wait(YES_KEPT, n, hello(ip));
        }
        assert!(list.due(YES_KEPT + TIMEOUT - 1).is_empty());
        let due: Vec<_> = list.due(YES_KEPT + TIMEOUT).into_iter().map(|(w, a)| (w.ip, a)).collect();
        assert_eq!(due, [(A, Answer::Yes), (b, Answer::Silence)]);
        // No more than a few threads hang there.
        let others: Vec<_> = (3..9).map(|n| ask(&mut list, YES_KEPT, IpAddr::from([10, 0, 0, n]))).collect();
        let hanging = others.iter().filter(|a| a.is_none()).count();
        assert_eq!(hanging, THREADS_MAX - 2);
        drop(held);
    }

    #[test]
    fn named_address_is_not_asked_about() {
        let mut list = AllowList::<usize>::new(Some(Arc::new(|_| false)));
        list.set_named(["h1:4567".to_owned()].into());
        assert!(!list.is_asked(Some("h1:4567")));
        assert!(list.is_asked(Some("h2:4567")) && list.is_asked(None));
        assert!(!AllowList::<usize>::new(None).is_asked(None));
    }

    #[test]
    fn slow_refusal_does_not_count() {
        let mut list = AllowList::<usize>::new(Some(Arc::new(|_| {
            std::thread::sleep(NO_AT_MOST);
            false
        })));
        let (sender, received) = mpsc::channel();
        assert_eq!(list.ask(1, A, move |ip, answer| sender.send((ip, answer)).unwrap()), None);
        assert_eq!(received.recv().unwrap(), (A, None), "the table could not be read in time");
    }
}
