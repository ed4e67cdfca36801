//! One member with a miniature server, driven by JSON lines on standard input; see the library's `command`.

fn main() {
    lockstep_host::command::serve(std::io::stdin().lock());
    // Whatever still runs in the provider goes down with the process, as when a server is killed.
    std::process::exit(0);
}
