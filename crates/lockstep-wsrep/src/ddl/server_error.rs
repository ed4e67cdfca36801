//! The error of a client's statement, from the server itself.
//!
//! A server with `wsrep_ignore_apply_errors` (7 by default) passes no error of a DDL statement to its provider. But it
//! offers its plugins the error of a session (`service_thd_error_context.h`), and programs that it loads find these
//! functions by their names.

use crate::server_symbol;
use std::ffi::{CStr, c_uint, c_void};

/// The functions of the server's plugin service.
type CurrentThd = unsafe extern "C" fn() -> *mut c_void;
type ErrorNumber = unsafe extern "C" fn(*const c_void) -> c_uint;

/// The error number of the statement that the calling thread, a client's, has just executed; 0: none. `None` if the server
/// does not offer it. A debug build of the server permits the call for a failed statement only.
pub(crate) fn of_own_statement() -> Option<u32> {
    if is_debug_build() {
        return None;
    }
    let (current, number) =
        (server_symbol::find(c"_current_thd")?, server_symbol::find(c"thd_get_error_number")?);
    // SAFETY: since MariaDB 10.0 the server exports both under these names, with these signatures. The first one returns
    // the session of the calling thread, which lives through the call, or null.
    unsafe {
        let current: CurrentThd = std::mem::transmute(current);
        let number: ErrorNumber = std::mem::transmute(number);
        let session = current();
        (!session.is_null()).then(|| number(session))
    }
}

/// Errors that a statement has on its origin only: it was interrupted, or this machine lacked something.
const LOCAL: [u32; 17] =
    [1021, 1037, 1038, 1040, 1041, 1053, 1114, 1158, 1159, 1160, 1161, 1205, 1213, 1317, 1927, 1969, 3024];

/// Whether another member may execute the statement without this error.
pub(crate) fn is_local(number: u32) -> bool {
    LOCAL.contains(&number)
}

fn is_debug_build() -> bool {
    // SAFETY: the server exports its version, an array of at most 60 bytes that ends with NUL.
    let version = server_symbol::find(c"server_version").map(|at| unsafe { CStr::from_ptr(at.cast()) });
    version.is_some_and(|version| String::from_utf8_lossy(version.to_bytes()).contains("debug"))
}

/// Bits of `wsrep_ignore_apply_errors` that hide errors of DDL.
const HIDES_DDL: c_uint = 1 | 4;

/// Whether the server hides errors of statements from its provider; `None` if it does not say so.
pub(crate) fn are_hidden() -> Option<bool> {
    let variable = server_symbol::find(c"wsrep_ignore_apply_errors")?.cast::<c_uint>();
    // SAFETY: the server exports this variable of type uint, which lives as long as the process. Other threads may change
    // it, so it is read as volatile.
    Some(unsafe { variable.read_volatile() } & HIDES_DDL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_no_server_says_nothing() {
        assert_eq!((of_own_statement(), are_hidden()), (None, None));
    }
}
