//! The connections to other members.

use crate::member::{Admission, Member, Micros};
use crate::pack::{Packed, Packer, UNPACKED_SINCE};
use crate::wire::{FRAME_PACKED, Hello};
use bytes::Bytes;
use lockstep_core::{MemberId, Uuid};
use lockstep_net::proto::VERSIONS;
use lockstep_net::{Address, ConnId, DownReason, ListenError, PeerHello, Reactor, Reason};
use std::collections::BTreeMap;

/// The port of members where an address names none.
pub const DEFAULT_PORT: u16 = 4567;
/// After a frame of this size or more, the length of its queue is reported at once.
const REPORTED_FRAME: usize = 32 << 10;
/// The most addresses that a member learns from peers and dials.
const KEPT_MAX: usize = 512;
/// How often the log has a line about a refused member of another branch, in microseconds.
const SAY_REFUSED: Micros = 60_000_000;

#[derive(Clone, Debug)]
struct Link {
    conn: ConnId,
    incarnation: u64,
    view_uuid: Uuid,
    outgoing: bool,
    /// The protocol version of the connection.
    version: u16,
}

/// The accepted connections, by member and by connection.
pub(crate) struct Links {
    listen: Address,
    listening: bool,
    /// Connections are encrypted, at least if the peer supports it.
    encrypts: bool,
    /// The last value passed to the reactor.
    isolated: bool,
    packer: Packer,
    by_member: BTreeMap<MemberId, Link>,
    by_conn: BTreeMap<ConnId, MemberId>,
    /// Addresses to dial, and the members at these addresses.
    kept: BTreeMap<String, Option<MemberId>>,
    /// For unreachable addresses: the last logged reason.
    unreachable: BTreeMap<String, String>,
    /// When the log last had a line about these refused members.
    refused: BTreeMap<MemberId, Micros>,
}

/// The decision on a connection that introduced itself.
pub(crate) enum Arrival {
    /// Accepted: the member knows the peer as connected.
    Taken,
    /// Accepted without encryption, because the peer does not support it.
    Unencrypted,
    /// Refused without a line in the log.
    Quiet,
    /// Refused, with a line for the log. `fatal`: for this reason this member cannot join.
    Refused { text: String, fatal: bool },
}

impl Links {
    pub(crate) fn new(listen: Address, encrypts: bool) -> Links {
        Links {
            listen,
            listening: false,
            encrypts,
            isolated: false,
            packer: Packer::default(),
            by_member: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            kept: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Listens for members, if it does not yet.
    pub(crate) fn listen(&mut self, reactor: &mut Reactor) -> Result<(), ListenError> {
        if !self.listening {
            reactor.listen(std::slice::from_ref(&self.listen))?;
            self.listening = true;
        }
        Ok(())
    }

    /// Cuts this member off from the others, or lets it back.
    pub(crate) fn isolate(&mut self, reactor: &mut Reactor, on: bool) {
        if on != self.isolated {
            self.isolated = on;
            reactor.set_isolated(on);
        }
    }

    /// Queues a frame for a member, if it is connected. After a long one: the bytes now queued for the member.
    pub(crate) fn send(
        &mut self,
        reactor: &mut Reactor,
        to: &MemberId,
        kind: u8,
        payload: Vec<Bytes>,
        compresses: bool,
    ) -> Option<usize> {
        let Link { conn, version, .. } = *self.by_member.get(to)?;
        let packs = compresses && version >= UNPACKED_SINCE;
        let packed = if packs { self.packer.pack(kind, &payload) } else { None };
        let (kind, payload) = match packed {
            Some(packed) => (FRAME_PACKED, vec![packed]),
            None => (kind, payload),
        };
        // A queue that overflows closes the connection, which comes back as an event.
        let large = payload.iter().map(Bytes::len).sum::<usize>() >= REPORTED_FRAME;
        let _ = reactor.send(conn, kind, &payload);
        if large { reactor.stats(conn).map(|stats| stats.queued) } else { None }
    }

    /// Statistics of compressed frames.
    pub(crate) fn packed(&self) -> Packed {
        self.packer.sent
    }

    pub(crate) fn member(&self, conn: &ConnId) -> Option<MemberId> {
        self.by_conn.get(conn).copied()
    }

    /// All members that are connected.
    pub(crate) fn all(&self) -> Vec<(MemberId, ConnId)> {
        self.by_member.iter().map(|(id, link)| (*id, link.conn)).collect()
    }

    /// The highest protocol version that this member and all that are connected speak.
    pub(crate) fn protocol(&self) -> u16 {
        self.by_member.values().map(|link| link.version).fold(VERSIONS.1, u16::min)
    }

    /// Keeps a connection to this address.
    pub(crate) fn keep(&mut self, reactor: &mut Reactor, text: &str) -> Result<(), String> {
        if self.kept.contains_key(text) {
            return Ok(());
        }
        if self.kept.len() >= KEPT_MAX {
            return Err(format!("{KEPT_MAX} addresses are tried already"));
        }
        let address = Address::parse(text, DEFAULT_PORT).map_err(|e| e.to_string())?;
        reactor.keep(&address);
        self.kept.insert(text.to_string(), None);
        Ok(())
    }

    /// Whether this failure of this address has not been logged yet. It is logged once, until the address is reached or the
    /// reason changes: the wait report names missing members, not the attempts.
    pub(crate) fn is_news(&mut self, addr: &str, why: &str) -> bool {
        let old = self.unreachable.insert(addr.to_owned(), why.to_owned());
        old.is_none_or(|old| old != why)
    }

    /// Forgets every address and connection.
    pub(crate) fn clear(&mut self, reactor: &mut Reactor, text: &str) {
        for kept in std::mem::take(&mut self.kept).into_keys() {
            if let Ok(address) = Address::parse(&kept, DEFAULT_PORT) {
                reactor.forget(&address);
            }
        }
        for (_, link) in std::mem::take(&mut self.by_member) {
            reactor.close(link.conn, Reason::Shutdown, text);
        }
        self.by_conn.clear();
        self.unreachable.clear();
    }

    /// Leaves the cluster: forgets all members, and listens no more.
    pub(crate) fn leave(&mut self, reactor: &mut Reactor, text: &str) {
        self.clear(reactor, text);
        // Members that still know this address would dial it, and report it to their servers, again and again.
        reactor.unlisten();
        self.listening = false;
    }

    pub(crate) fn arrived(
        &mut self,
        reactor: &mut Reactor,
        engine: &mut Member,
        conn: ConnId,
        peer: &PeerHello,
    ) -> Arrival {
        let hello = match Hello::from_bytes(peer.blob.clone()) {
            Ok(hello) => hello,
            Err(error) => {
                reactor.reject(conn, Reason::Malformed, "the introduction cannot be read");
                return Arrival::Refused {
                    text: format!("{} introduced itself with what {error}: refused", peer.remote_addr),
                    fatal: false,
                };
            }
        };
        if !engine.ctx.connection().is_connected() {
            reactor.reject(conn, Reason::Shutdown, "this member is not connected to a cluster now");
            return Arrival::Quiet;
        }
        let refuse = |reactor: &mut Reactor, reason, text: String| {
            reactor.reject(conn, reason, &text);
            Arrival::Refused { text, fatal: true }
        };
        let replaces = match engine.admit(&hello) {
            Admission::Ourselves => {
                if let Some(address) = &peer.dialed
                    && let Ok(address) = Address::parse(address, DEFAULT_PORT)
                {
                    reactor.forget(&address);
                }
                reactor.reject(conn, Reason::Myself, "");
                return Arrival::Quiet;
            }
            Admission::Superseded(text) => {
                // Not for good: this member will be another one.
                reactor.reject(conn, Reason::Busy, &text);
                let quiet = engine.met_branch(&hello);
                return if quiet { Arrival::Quiet } else { self.say_refused(engine, hello.id, text) };
            }
            Admission::Outdated(text) | Admission::Beside(text) | Admission::OtherKind(text) => {
                reactor.reject(conn, Reason::Busy, &text);
                return self.say_refused(engine, hello.id, text);
            }
            Admission::OtherLog(text) => return refuse(reactor, Reason::WrongBranch, text),
            Admission::SameIdentity(text) => return refuse(reactor, Reason::NotAllowed, text),
            Admission::Welcome => false,
            Admission::Replaces => true,
        };
        let link = Link {
            conn,
            incarnation: hello.incarnation,
            view_uuid: hello.view_uuid,
            outgoing: peer.outgoing,
            version: peer.version,
        };
        if let Some(old) = self.by_member.get(&hello.id).cloned() {
            // The one dialed by the smaller id stays; of two dialed by the same side, the newer.
            let wanted_outgoing = engine.ctx.me().id < hello.id;
            let newer = replaces || old.incarnation < link.incarnation || old.view_uuid != link.view_uuid;
            let keep_new = newer || old.outgoing == link.outgoing || link.outgoing == wanted_outgoing;
            if !keep_new {
                reactor.reject(conn, Reason::Duplicate, "");
                self.settle(reactor, engine, &hello, peer, old.conn);
                return Arrival::Quiet;
            }
            self.by_conn.remove(&old.conn);
            reactor.close(old.conn, Reason::Duplicate, "");
            // Messages in flight on the old connection are lost, so for Raft the peer has disconnected and reconnected.
            engine.peer_down(hello.id, "another connection takes its place");
        }
        reactor.accept(conn);
        self.by_conn.insert(conn, hello.id);
        self.by_member.insert(hello.id, link);
        self.settle(reactor, engine, &hello, peer, conn);
        let id = hello.id;
        engine.peer_up(hello);
        engine.on_peer_version(id, peer.version);
        debug_assert_eq!(self.by_conn.len(), self.by_member.len(), "one connection for each member");
        if self.encrypts && !peer.encrypted { Arrival::Unencrypted } else { Arrival::Taken }
    }

    /// Refuses a peer that will dial each second until an operator decides. The log has a line from time to time.
    fn say_refused(&mut self, engine: &Member, id: MemberId, text: String) -> Arrival {
        self.refused.retain(|_, at| engine.ctx.now() < *at + SAY_REFUSED);
        if self.refused.contains_key(&id) {
            return Arrival::Quiet;
        }
        self.refused.insert(id, engine.ctx.now());
        Arrival::Refused { text, fatal: false }
    }

    /// The addresses that lead to this member need not be dialed while it is connected.
    fn settle(
        &mut self,
        reactor: &mut Reactor,
        engine: &mut Member,
        hello: &Hello,
        peer: &PeerHello,
        conn: ConnId,
    ) {
        for text in [Some(&hello.address), peer.dialed.as_ref()].into_iter().flatten() {
            if self.kept.len() >= KEPT_MAX && !self.kept.contains_key(text) {
                continue;
            }
            if let Ok(address) = Address::parse(text, DEFAULT_PORT) {
                self.unreachable.remove(&address.to_string());
                engine.reached(&address.to_string());
                if !self.kept.contains_key(text) {
                    reactor.keep(&address);
                }
                self.kept.insert(text.clone(), Some(hello.id));
                reactor.keep_via(&address, conn);
            }
        }
    }

    pub(crate) fn down(&mut self, conn: ConnId) -> Option<MemberId> {
        let member = self.by_conn.remove(&conn)?;
        self.by_member.remove(&member);
        Some(member)
    }

    /// The engine wants this connection closed.
    pub(crate) fn drop_member(&mut self, reactor: &mut Reactor, member: &MemberId) -> bool {
        let Some(link) = self.by_member.remove(member) else { return false };
        self.by_conn.remove(&link.conn);
        reactor.close(link.conn, Reason::Failure, "");
        true
    }
}

/// Whether a refusal means that this member cannot join as it is configured.
pub(crate) fn is_final(reason: &DownReason) -> bool {
    matches!(reason, DownReason::Rejected(Reason::WrongBranch | Reason::Version, _))
}
