//! A device in memory, for tests and measurements of the server. Whoever includes this file has the types of
//! `lockstep_block` at its root.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};

/// The unit in which space is allocated.
const BLOCK: usize = 4096;

/// A device in memory, with what tests count and change. Clones are the same device.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Device>);

pub(crate) struct Device {
    name: String,
    pub(crate) description: Description,
    disk: RwLock<Disk>,
    /// While it is true, requests wait.
    held: watch::Sender<bool>,
    pub(crate) fails: AtomicBool,
    pub(crate) flushes: AtomicU64,
    pub(crate) durable_writes: AtomicU64,
    pub(crate) trims: AtomicU64,
    pub(crate) zeroes: AtomicU64,
    pub(crate) attached: AtomicU64,
    pub(crate) detached: AtomicU64,
    pub(crate) lost: AtomicU64,
}

struct Disk {
    bytes: Vec<u8>,
    allocated: Vec<bool>,
}

impl std::ops::Deref for Memory {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.0
    }
}

impl Memory {
    pub(crate) fn new(name: &str, description: Description) -> Memory {
        let size = description.size as usize;
        let disk = Disk { bytes: vec![0; size], allocated: vec![false; size.div_ceil(BLOCK)] };
        let zero = AtomicU64::default;
        Memory(Arc::new(Device {
            name: name.to_owned(),
            description,
            disk: RwLock::new(disk),
            held: watch::Sender::new(false),
            fails: AtomicBool::new(false),
            flushes: zero(),
            durable_writes: zero(),
            trims: zero(),
            zeroes: zero(),
            attached: zero(),
            detached: zero(),
            lost: zero(),
        }))
    }

    /// Makes requests wait, or lets them go on.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// All of its bytes.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.disk.read().unwrap().bytes.clone()
    }
}

impl Export for Memory {
    type Attachment = Share;

    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn describe(&self, name: &str) -> Result<Description, Refusal> {
        if name != self.name && !name.is_empty() {
            return Err(Refusal::new(RefusalKind::Unknown, format!("no export is named {name:?}")));
        }
        Ok(self.description.clone())
    }

    async fn attach(&self, name: &str, _peer: &Peer) -> Result<Share, Refusal> {
        self.describe(name)?;
        self.attached.fetch_add(1, Relaxed);
        Ok(Share { device: self.clone(), detached: false })
    }
}

pub(crate) struct Share {
    device: Memory,
    detached: bool,
}

impl Share {
    async fn begin(&self) -> Result<(), IoError> {
        if *self.device.held.borrow() {
            let mut held = self.device.held.subscribe();
            let _ = held.wait_for(|held| !held).await;
        }
        if self.device.fails.load(Relaxed) {
            return Err(IoError::Io("the test breaks this device".into()));
        }
        Ok(())
    }

    fn note_durable(&self, fua: bool) {
        self.device.durable_writes.fetch_add(u64::from(fua), Relaxed);
    }

    /// Clears a range, and releases its whole blocks.
    fn clear(&self, offset: u64, length: u32, release: bool) {
        let (start, end) = (offset as usize, offset as usize + length as usize);
        let disk = &mut *self.device.disk.write().unwrap();
        disk.bytes[start..end].fill(0);
        if release && start.div_ceil(BLOCK) < end / BLOCK {
            disk.allocated[start.div_ceil(BLOCK)..end / BLOCK].fill(false);
        }
    }
}

impl Attachment for Share {
    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, IoError> {
        self.begin().await?;
        let start = offset as usize;
        Ok(Bytes::copy_from_slice(&self.device.disk.read().unwrap().bytes[start..start + length as usize]))
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<(), IoError> {
        self.begin().await?;
        let (start, end) = (offset as usize, offset as usize + data.len());
        let disk = &mut *self.device.disk.write().unwrap();
        disk.bytes[start..end].copy_from_slice(&data);
        disk.allocated[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
        self.note_durable(fua);
        Ok(())
    }

    async fn trim(&self, offset: u64, length: u32, fua: bool) -> Result<(), IoError> {
        self.begin().await?;
        self.device.trims.fetch_add(1, Relaxed);
        self.clear(offset, length, true);
        self.note_durable(fua);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, length: u32, may_trim: bool, fua: bool) -> Result<(), IoError> {
        self.begin().await?;
        self.device.zeroes.fetch_add(1, Relaxed);
        self.clear(offset, length, may_trim);
        self.note_durable(fua);
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.begin().await?;
        self.device.flushes.fetch_add(1, Relaxed);
        Ok(())
    }

    async fn block_status(&self, offset: u64, length: u32) -> Result<Vec<Extent>, IoError> {
        let disk = self.device.disk.read().unwrap();
        let (mut at, end) = (offset as usize, offset as usize + length as usize);
        let mut extents = Vec::new();
        while at < end && extents.len() < 1000 {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let hole = !disk.allocated[at / BLOCK];
            match extents.last_mut() {
                Some(Extent { length, hole: last, .. }) if *last == hole => *length += (next - at) as u32,
                _ => extents.push(Extent { length: (next - at) as u32, hole, zero: hole }),
            }
            at = next;
        }
        Ok(extents)
    }

    async fn detach(mut self) {
        self.detached = true;
        self.device.detached.fetch_add(1, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.detached {
            self.device.lost.fetch_add(1, Relaxed);
        }
    }
}
