//! Memory of the library's own, apart from the server's.
//!
//! glibc's allocator has locks that all threads of a process share. On one processor with hundreds of busy threads, whoever
//! holds such a lock may be put aside among the others, and who waits for it waits for its turn: when 512 clients
//! connected at once, `ls-node` stood at the lock of an arena for up to 7.5 s, and its leadership was lost. mimalloc gives
//! a thread its memory from heaps of its own and takes what other threads give back by atomic steps (Leijen, Zorn and de
//! Moura, "Mimalloc: Free List Sharding in Action", 2019), so that nobody waits for one who does not run.
//!
//! It serves Rust's allocations in this library and nothing else: `malloc` in the process stays the server's, and what goes
//! to the server to be freed by it comes from that (`stats.rs`, `table.rs`). Its symbols are not exported. It reads `MIMALLOC_*`
//! from the environment, and sets nothing there.

/// In tests the counting allocator of `lockstep-fuzz` stands in its place.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
