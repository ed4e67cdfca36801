//! Link flags of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The server unloads the provider while threads that ran in it live on; thread-local destructors of ours would
    // then be called in unmapped memory.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
