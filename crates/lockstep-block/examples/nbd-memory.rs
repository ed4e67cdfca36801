//! Serves a device in memory, for measurements beside nbdkit: `nbd-memory SOCKET|PORT SIZE_MIB [THREADS]`.

#[allow(dead_code)]
#[path = "../src/nbd/memory.rs"]
mod memory;

use std::net::{Ipv4Addr, SocketAddr};

use lockstep_block::nbd::{Listen, Places, Server, ServerConfig};
use lockstep_block::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, size, rest @ ..] = &arguments[..] else {
        return Err("usage: nbd-memory SOCKET|PORT SIZE_MIB [THREADS]".into());
    };
    let listen = match place.parse() {
        Ok(port) => Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => Listen::Unix { path: place.into(), mode: 0o600 },
    };
    let mut builder = match rest.first() {
        None => tokio::runtime::Builder::new_current_thread(),
        Some(threads) => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads.parse()?);
            builder
        }
    };
    builder.enable_all().build()?.block_on(async {
        let device = memory::Memory::new("memory", Description::new(size.parse::<u64>()? << 20));
        let log = std::sync::Arc::new(|line: &str| eprintln!("{line}"));
        let config = ServerConfig { log, ..ServerConfig::default() };
        let _server = Server::start(config, Places::take(&[listen])?, device)?;
        std::future::pending().await
    })
}
