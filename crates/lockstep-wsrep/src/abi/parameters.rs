//! The configuration service: the options one by one, with their types.
//!
//! Servers from 11.4 on ask for it when they load a provider, and MariaDB 11.8 does not start with one that has no such
//! service. With `plugin_wsrep_provider=ON` the server makes a variable of each, and sets it by `options_set`.

use crate::abi::entry_points::enter;
use crate::provider::Provider;
use lockstep_abi::*;
use lockstep_node::options::{Kind, Value};
use std::ffi::{CString, c_int, c_void};

/// Tells the server where to ask.
///
/// # Safety
/// `service` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_config_service_v1(service: *mut ConfigServiceV1) -> c_int {
    // SAFETY: the caller vouches for it.
    match unsafe { service.as_mut() } {
        Some(service) => {
            service.get_parameters = Some(get_parameters);
            0
        }
        None => libc::EINVAL,
    }
}

/// The server has asked. Nothing is kept.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_config_service_v1() {}

/// One option as reported to the server. The strings outlive the callback.
struct Listed {
    name: CString,
    flags: c_int,
    value: ListedValue,
}

enum ListedValue {
    Bool(bool),
    Integer(i64),
    Double(f64),
    Text(CString),
}

fn list(provider: &Provider) -> Vec<Listed> {
    provider.cx().host.settings.with(|options| {
        let all = options.values().into_iter();
        all.filter_map(|(row, value)| {
            let (kind, value) = match value {
                Some(Value::Bool(on)) => (PARAM_TYPE_BOOL, ListedValue::Bool(on)),
                Some(Value::Int(n)) => (PARAM_TYPE_INTEGER, ListedValue::Integer(n)),
                Some(Value::Size(n)) => {
                    (PARAM_TYPE_INTEGER, ListedValue::Integer(i64::try_from(n).unwrap_or(i64::MAX)))
                }
                Some(Value::Real(x)) => (PARAM_TYPE_DOUBLE, ListedValue::Double(x)),
                // As Galera: a number of seconds, which `options_set` takes as well.
                Some(Value::Time(time)) => (PARAM_TYPE_DOUBLE, ListedValue::Double(time.as_secs_f64())),
                Some(Value::Until(_)) => (0, ListedValue::Text(CString::new(options.text(row.name)).ok()?)),
                Some(Value::Text(text)) => (0, ListedValue::Text(CString::new(text).ok()?)),
                // There is no way to say that a number is not set.
                None if !matches!(row.kind, Kind::Text | Kind::Enum(_)) => return None,
                None => (0, ListedValue::Text(CString::default())),
            };
            let fixed = if row.running { 0 } else { PARAM_READONLY };
            Some(Listed { name: CString::new(row.name).ok()?, flags: kind | fixed, value })
        })
        .collect()
    })
}

/// Walks the options. The server's callback is called outside of any guard: it may throw.
unsafe extern "C-unwind" fn get_parameters(
    wsrep: *mut Wsrep,
    cb: Option<GetParametersCb>,
    context: *mut c_void,
) -> Status {
    let Some(cb) = cb else { return Status::FATAL };
    // SAFETY: as for every entry point.
    let Some(all) = (unsafe { enter(wsrep, "get_parameters", None, |p| Some(list(p))) }) else {
        return Status::FATAL;
    };
    for parameter in &all {
        let value = match &parameter.value {
            ListedValue::Bool(on) => ParameterValue { as_bool: *on },
            ListedValue::Integer(n) => ParameterValue { as_integer: *n },
            ListedValue::Double(x) => ParameterValue { as_double: *x },
            ListedValue::Text(text) => ParameterValue { as_string: text.as_ptr() },
        };
        let parameter = Parameter { flags: parameter.flags, name: parameter.name.as_ptr(), value };
        // SAFETY: the parameter and its strings live until the callback returns; the context is the server's own.
        if unsafe { cb(&parameter, context) } != Status::OK {
            return Status::FATAL;
        }
    }
    Status::OK
}
