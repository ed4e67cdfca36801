//! MariaDB's global transaction ids, and the two states that are made of them.
//!
//! A replica's state has one GTID per domain: the last one that it has. The state of a stream also knows the last seqno of
//! every server id in each domain. The difference matters at a branch: server ids change there, and a replica of the
//! branch that was left must be recognised.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Domain, server id and seqno of one event group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gtid {
    /// The replication domain.
    pub domain: u32,
    /// The server id of its origin.
    pub server: u32,
    /// Its number within the domain.
    pub seqno: u64,
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.domain, self.server, self.seqno)
    }
}

/// A text that is no GTID, or no list of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GtidError(String);

impl fmt::Display for GtidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GtidError {}

impl FromStr for Gtid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Gtid, GtidError> {
        let wrong = || {
            let shown: String = text.chars().take(64).collect();
            GtidError(format!("'{shown}' is no GTID: expected DOMAIN-SERVER-SEQNO"))
        };
        let mut parts = text.split('-');
        let mut part = || parts.next().filter(|p| p.bytes().all(|b| b.is_ascii_digit())).ok_or_else(wrong);
        let (domain, server, seqno) = (part()?, part()?, part()?);
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Gtid {
            domain: domain.parse().map_err(|_| wrong())?,
            server: server.parse().map_err(|_| wrong())?,
            seqno: seqno.parse().map_err(|_| wrong())?,
        })
    }
}

/// The last GTID of each domain that a replica has, such as `gtid_slave_pos`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReplicaState(BTreeMap<u32, Gtid>);

impl ReplicaState {
    /// The GTID of a domain.
    pub fn get(&self, domain: u32) -> Option<Gtid> {
        self.0.get(&domain).copied()
    }

    /// Sets the GTID of its domain.
    pub fn set(&mut self, gtid: Gtid) {
        self.0.insert(gtid.domain, gtid);
    }

    /// Removes a domain.
    pub fn remove(&mut self, domain: u32) {
        self.0.remove(&domain);
    }

    /// Whether it has no GTID.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its GTIDs, by domain.
    pub fn iter(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.0.values().copied()
    }
}

impl fmt::Display for ReplicaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.iter())
    }
}

impl FromStr for ReplicaState {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<ReplicaState, GtidError> {
        let mut state = ReplicaState::default();
        if text.trim().is_empty() {
            return Ok(state);
        }
        for part in text.split(',') {
            let gtid: Gtid = part.trim().parse()?;
            if state.0.insert(gtid.domain, gtid).is_some() {
                return Err(GtidError(format!("domain {} appears twice in a GTID state", gtid.domain)));
            }
        }
        Ok(state)
    }
}

/// The last seqno of each server id in each domain: what a Gtid_list event holds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StreamState(BTreeMap<u32, Domain>);

/// Invariant: `servers[last.server] == last.seqno`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Domain {
    last: Gtid,
    servers: BTreeMap<u32, u64>,
}

impl StreamState {
    /// The state of a Gtid_list: of each domain, the last GTID in the list is the last one in the stream.
    pub fn from_list(list: &[Gtid]) -> StreamState {
        let mut state = StreamState::default();
        list.iter().for_each(|gtid| state.update(*gtid));
        state
    }

    /// Adds the GTID of the next event group.
    pub fn update(&mut self, gtid: Gtid) {
        let domain =
            self.0.entry(gtid.domain).or_insert_with(|| Domain { last: gtid, servers: BTreeMap::new() });
        domain.last = gtid;
        domain.servers.insert(gtid.server, gtid.seqno);
    }

    /// Adds the GTID of an event group that came before all others of its domain.
    pub fn precede(&mut self, gtid: Gtid) {
        let domain =
            self.0.entry(gtid.domain).or_insert_with(|| Domain { last: gtid, servers: BTreeMap::new() });
        domain.servers.entry(gtid.server).or_insert(gtid.seqno);
    }

    /// The last GTID of a domain.
    pub fn last(&self, domain: u32) -> Option<Gtid> {
        self.0.get(&domain).map(|d| d.last)
    }

    /// The last seqno of a server id in a domain.
    pub fn seqno_of(&self, domain: u32, server: u32) -> Option<u64> {
        self.0.get(&domain)?.servers.get(&server).copied()
    }

    /// The last GTID of each domain, by domain.
    pub fn lasts(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.0.values().map(|d| d.last)
    }

    /// Whether it has no GTID.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The GTIDs of a Gtid_list event: domains ascending, in each the server ids ascending, its last GTID at the end.
    /// The order depends on nothing else, so that instances write identical events.
    pub fn to_list(&self) -> Vec<Gtid> {
        let mut list = Vec::new();
        for (domain, Domain { last, servers }) in &self.0 {
            let others = servers.iter().filter(|(server, _)| **server != last.server);
            list.extend(others.map(|(server, seqno)| Gtid {
                domain: *domain,
                server: *server,
                seqno: *seqno,
            }));
            list.push(*last);
        }
        list
    }

    /// The state of a replica that has applied all of the stream.
    pub fn to_replica(&self) -> ReplicaState {
        let mut state = ReplicaState::default();
        self.lasts().for_each(|gtid| state.set(gtid));
        state
    }
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.to_list().into_iter())
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, gtids: impl Iterator<Item = Gtid>) -> fmt::Result {
    for (at, gtid) in gtids.enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        write!(f, "{gtid}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gtid_text_round_trips_and_bad_text_is_refused() {
        let gtid = Gtid { domain: 1, server: 4_294_967_295, seqno: u64::MAX };
        assert_eq!(gtid.to_string().parse(), Ok(gtid));
        for text in [
            "",
            "1",
            "1-2",
            "1-2-",
            "1-2-3-4",
            "-1-2-3",
            "1-+2-3",
            "4294967296-1-1",
            "1-2-18446744073709551616",
        ] {
            assert!(text.parse::<Gtid>().is_err(), "{text}");
        }
    }

    #[test]
    fn replica_state_tolerates_spaces_and_refuses_repeated_domain() {
        let state: ReplicaState = " 1-2-3 , 0-1-9".parse().unwrap();
        assert_eq!(state.to_string(), "0-1-9,1-2-3");
        assert!("".parse::<ReplicaState>().unwrap().is_empty());
        assert!("1-2-3,1-3-4".parse::<ReplicaState>().is_err());
        assert!("1-2-3,".parse::<ReplicaState>().is_err());
    }

    #[test]
    fn stream_state_keeps_each_server_and_lists_last_one_last() {
        let gtid = |server, seqno| Gtid { domain: 1, server, seqno };
        let mut state = StreamState::default();
        [gtid(11, 80), gtid(10, 90), gtid(10, 91)].into_iter().for_each(|g| state.update(g));
        assert_eq!(state.to_list(), [gtid(11, 80), gtid(10, 91)]);
        assert_eq!(StreamState::from_list(&state.to_list()), state);
        assert_eq!(state.last(1), Some(gtid(10, 91)));
        assert_eq!(state.seqno_of(1, 11), Some(80));
        assert_eq!(state.to_replica().to_string(), "1-10-91");
        // Of another server, of a server that goes on, and of another domain.
        state.precede(gtid(9, 70));
        state.precede(gtid(11, 60));
        state.precede(Gtid { domain: 3, server: 4, seqno: 5 });
        assert_eq!(state.to_string(), "1-9-70,1-11-80,1-10-91,3-4-5");
        state.update(Gtid { domain: 3, server: 6, seqno: 6 });
        assert_eq!(state.to_replica().to_string(), "1-10-91,3-6-6");
    }
}
