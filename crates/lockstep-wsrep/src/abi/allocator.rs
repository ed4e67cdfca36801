//! The library's own allocator, apart from the server's.
//!
//! glibc's allocator has locks that all threads of a process share. On one processor with hundreds of busy threads, the
//! holder of such a lock may be preempted for long, and the waiters wait as long. When 512 clients connected at once,
//! `ls-node` waited for the lock of an arena for up to 7.5 s, and lost its leadership. mimalloc
//! allocates from heaps of each thread, and returns memory of other threads by atomic operations, usually without a lock
//! (Leijen, Zorn and de Moura, "Mimalloc: Free List Sharding in Action", 2019). There still are locks where it takes memory
//! from the system or from a thread that has ended. So are the kernel's for the process's memory.
//!
//! Version 2, not 3: in 3.3.2 the thread that has loaded the library may not end (microsoft/mimalloc#1287). It does where
//! a client loads it (`SET GLOBAL wsrep_on=ON`); `tests/loaded_by_a_thread.rs` of lockstep-host has both ends.
//!
//! It serves only Rust's allocations in this library. `malloc` in the process stays the server's, and memory that the server
//! frees comes from that (`status/stats.rs`, `abi/entry_points.rs`). Its symbols are not exported. It does not change the
//! environment, but it reads its own variables there (`MIMALLOC_VERBOSE`).

/// In tests the counting allocator of `lockstep-fuzz` stands in its place.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
