//! Transaction handles, and the local transactions by id.

use crate::apply::remote::Remote;
use crate::sync::{Interrupt, lock};
use crate::trx::state::Inner;
use bytes::Bytes;
use lockstep_abi::{ConnId, Seqno, Status, TrxId, WsHandle};
use lockstep_node::core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A local transaction, from its first key to `release`.
#[derive(Debug)]
pub(crate) struct Trx {
    id: TrxId,
    interrupt: Interrupt,
    /// The node has been asked to hurry for it. Set under the lock, while it is in [`State::Replicating`].
    hurried: AtomicBool,
    inner: Mutex<Inner>,
    content: Mutex<Content>,
}

/// Keys and data of the next fragment. Only the transaction's own thread uses it, and may copy much data meanwhile. It has
/// its own lock, so that an aborting thread does not wait for that.
#[derive(Debug)]
pub(crate) struct Content {
    builder: WriteSetBuilder,
    /// An append to `builder` failed. The server does not always check the status of an append, and might certify half of
    /// a transaction.
    incomplete: bool,
}

impl Content {
    /// Appends a key.
    ///
    /// # Errors
    /// The status to return. The content is incomplete from now on.
    pub(crate) fn append_key(&mut self, parts: &[&[u8]], kind: KeyType) -> Result<(), Status> {
        let fits = self.builder.append_key(parts, kind).is_ok();
        self.appended(fits)
    }

    /// Appends data, unless the content becomes larger than `max`.
    ///
    /// # Errors
    /// As for [`Content::append_key`].
    pub(crate) fn append_data(&mut self, kind: DataKind, data: &[u8], max: usize) -> Result<(), Status> {
        let fits = self.size() + data.len() <= max && self.builder.append_data(kind, data).is_ok();
        self.appended(fits)
    }

    fn appended(&mut self, fits: bool) -> Result<(), Status> {
        if fits {
            return Ok(());
        }
        self.incomplete = true;
        Err(Status::SIZE_EXCEEDED)
    }

    /// Whether an append has failed since the last call.
    pub(crate) fn take_incomplete(&mut self) -> bool {
        std::mem::take(&mut self.incomplete)
    }

    pub(crate) fn size(&self) -> usize {
        self.builder.size()
    }

    /// Drops keys and data.
    pub(crate) fn clear(&mut self) {
        self.builder.clear();
    }

    /// The payload of the fragment; the next one begins empty.
    pub(crate) fn finish(&mut self, meta: &Meta) -> Bytes {
        self.builder.finish(meta)
    }
}

impl Trx {
    pub(crate) fn new(id: TrxId) -> Trx {
        Trx {
            id,
            interrupt: Interrupt::default(),
            hurried: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
            content: Mutex::new(Content { builder: WriteSetBuilder::new(), incomplete: false }),
        }
    }

    /// The server's id of the transaction.
    pub(crate) fn id(&self) -> TrxId {
        self.id
    }

    /// Ends the waits of the transaction's own thread when another thread aborts it.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// An applier waits for the transaction, which is in [`State::Replicating`]. Call it under the lock. Returns whether
    /// the caller has to ask the node to hurry.
    ///
    /// [`State::Replicating`]: crate::trx::state::State::Replicating
    pub(crate) fn begin_hurry(&self) -> bool {
        !self.hurried.swap(true, Ordering::AcqRel)
    }

    /// `certify` no longer waits for the order of the transaction. Returns whether the node was asked to hurry for it.
    pub(crate) fn end_hurry(&self) -> bool {
        self.hurried.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// For the transaction's own thread.
    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        lock(&self.content)
    }
}

/// The target of a write-set handle's `opaque` pointer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the small one is on a stack, one per applying thread")]
pub(crate) enum Handle {
    /// Kept in [`Transactions`].
    Local(Trx),
    /// On the applying thread's stack.
    Remote(Remote),
}

impl Handle {
    pub(crate) fn as_local(&self) -> Option<&Trx> {
        match self {
            Handle::Local(trx) => Some(trx),
            Handle::Remote(_) => None,
        }
    }
}

const SHARDS: usize = 64;

/// All local transactions by the server's id, and statements in total order by connection.
///
/// **Invariant:** a pointer that was put into a handle stays valid until [`Transactions::remove`], called in `release`,
/// the server's last call for the transaction.
pub(crate) struct Transactions {
    shards: [Mutex<HashMap<TrxId, Arc<Handle>>>; SHARDS],
    count: AtomicUsize,
    statements: Mutex<HashMap<ConnId, Arc<Trx>>>,
}

impl Transactions {
    pub(crate) fn new() -> Transactions {
        Transactions {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            count: AtomicUsize::new(0),
            statements: Mutex::default(),
        }
    }

    fn shard(&self, id: TrxId) -> MutexGuard<'_, HashMap<TrxId, Arc<Handle>>> {
        lock(&self.shards[(id % SHARDS as u64) as usize])
    }

    /// The number of local transactions.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The transaction with this id.
    pub(crate) fn get(&self, id: TrxId) -> Option<Arc<Handle>> {
        self.shard(id).get(&id).cloned()
    }

    /// The transaction of this handle. If it has none, creates it and fills the handle in.
    pub(crate) fn of_handle<'a>(&'a self, handle: &'a mut WsHandle) -> &'a Handle {
        if handle.opaque.is_null() {
            let mut shard = self.shard(handle.trx_id);
            let made = shard.entry(handle.trx_id).or_insert_with(|| {
                self.count.fetch_add(1, Ordering::Relaxed);
                Arc::new(Handle::Local(Trx::new(handle.trx_id)))
            });
            handle.opaque = Arc::as_ptr(made).cast_mut().cast();
        }
        // SAFETY: the pointer is not null, so that it was set above or in an earlier call. Its target stays in the table
        // until `remove`.
        unsafe { &*handle.opaque.cast::<Handle>() }
    }

    /// The transaction of this handle, if it has one.
    ///
    /// # Safety
    /// `handle.opaque` is null or as this provider set it, and the transaction has not been released since.
    pub(crate) unsafe fn find<'a>(&self, handle: &WsHandle) -> Option<&'a Handle> {
        // SAFETY: by this function's contract.
        unsafe { handle.opaque.cast::<Handle>().as_ref() }
    }

    /// Describes the local transaction or statement that has this seqno, for the report of a long wait.
    pub(crate) fn describe(&self, seqno: Seqno) -> Option<String> {
        let own = self.shards.iter().find_map(|shard| {
            let shard = lock(shard);
            shard.values().filter_map(|handle| handle.as_local()).find_map(|trx| {
                let (state, place) = trx.lock().progress_at(seqno)?;
                Some(format!("this server's transaction {} ({state:?}, {place:?} its turn)", trx.id))
            })
        });
        own.or_else(|| {
            lock(&self.statements).iter().find_map(|(conn, trx)| {
                let has = trx.lock().progress_at(seqno).is_some();
                has.then(|| format!("this server's statement in total order of connection {conn}"))
            })
        })
    }

    /// A statement in total order begins. Returns whether the connection's previous one has ended.
    pub(crate) fn begin_statement(&self, conn: ConnId, trx: Arc<Trx>) -> bool {
        lock(&self.statements).insert(conn, trx).is_none()
    }

    /// The connection's statement in total order has ended.
    pub(crate) fn end_statement(&self, conn: ConnId) -> Option<Arc<Trx>> {
        lock(&self.statements).remove(&conn)
    }

    /// The number of statements in total order.
    pub(crate) fn statements(&self) -> usize {
        lock(&self.statements).len()
    }

    /// Removes the transaction. Pointers to it are valid only as long as another thread uses it.
    pub(crate) fn remove(&self, id: TrxId) {
        if self.shard(id).remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
