//! Symbols of the server that has loaded this library. A server exports its functions and variables to its plugins.

use std::ffi::{CStr, c_void};

/// The address of a function or variable; `None` in a process without it. The caller knows its type.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a search in the symbols of the process, with a name that ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
