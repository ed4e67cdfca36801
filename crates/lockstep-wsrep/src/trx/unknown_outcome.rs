//! The error of a commit whose outcome this member cannot tell, as the client gets it.
//!
//! The server reports a deadlock (1213) for a transaction that another one's write-set has aborted, whatever status
//! `certify` returns. Clients repeat a transaction after a deadlock, and this one may be committed. But the server keeps an
//! error that the session has already. So the provider sets it: on the client's own thread, by the function that the server
//! offers its plugins.

use crate::server_symbol;
use std::ffi::{CStr, c_char, c_uint, c_ulong, c_void};

/// `ER_ERROR_DURING_COMMIT`: the server's own error for such a commit, unless it was aborted.
const ERROR_DURING_COMMIT: c_uint = 1180;

/// The majority was lost while the commit waited.
pub(crate) const MAJORITY_LOST: &CStr =
    c"the majority was lost during COMMIT: it is unknown whether the transaction is committed (Provider in bad state)";
/// This member leaves while the commit waits for its turn.
pub(crate) const LEAVES: &CStr =
    c"this server leaves the cluster during COMMIT: the other members commit the transaction (Provider in bad state)";

type MyMessage = unsafe extern "C-unwind" fn(c_uint, *const c_char, c_ulong);

/// Sets the error of the calling client's statement. No effect in a process that is no server.
pub(crate) fn report(text: &CStr) {
    let Some(function) = my_message() else { return };
    // SAFETY: the server exports `void my_message(uint error, const char *text, myf flags)` with C linkage; `myf` is an
    // unsigned long. It copies the text into the session of the calling thread.
    unsafe {
        let function: MyMessage = std::mem::transmute(function);
        function(ERROR_DURING_COMMIT, text.as_ptr(), 0);
    }
}

/// The server's function, if this process has sessions. A client library has one of the same name.
fn my_message() -> Option<*mut c_void> {
    server_symbol::find(c"_current_thd").and_then(|_| server_symbol::find(c"my_message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_no_effect_outside_a_server() {
        assert_eq!(my_message(), None);
        report(MAJORITY_LOST);
    }
}
