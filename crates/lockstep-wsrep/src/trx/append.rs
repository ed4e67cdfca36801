//! `append_key` and `append_data`: the content of a transaction's next fragment.

use crate::context::Context;
use lockstep_abi::*;
use lockstep_node::core::writeset::{DataKind, KeyType as Kind};

fn parts_of<'a>(key: &Key) -> Option<Vec<&'a [u8]>> {
    if key.key_parts_num > 0 && key.key_parts.is_null() {
        return None;
    }
    // SAFETY: the server passes `key_parts_num` parts, each with its length, valid during the call.
    Some(unsafe { (0..key.key_parts_num).map(|at| (*key.key_parts.add(at)).as_slice()).collect() })
}

/// The parts of each key in the server's array. `None` if a pointer is missing.
///
/// # Safety
/// `keys` points to `count` keys, valid with all they point to during `'a`.
pub(crate) unsafe fn keys_of<'a>(keys: *const Key, count: usize) -> Option<Vec<Vec<&'a [u8]>>> {
    if count > 0 && keys.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    (0..count).map(|at| parts_of(unsafe { &*keys.add(at) })).collect()
}

/// `append_key`.
///
/// # Safety
/// The arguments are as the API requires.
pub(crate) unsafe fn append_key(
    cx: &Context,
    handle: &mut WsHandle,
    keys: *const Key,
    count: usize,
    kind: KeyType,
) -> Status {
    let Some(kind) = u8::try_from(kind.0).ok().and_then(Kind::from_u8) else {
        cx.host.log.warn(format!("append_key: key type {} is unknown", kind.0));
        return Status::CONN_FAIL;
    };
    // SAFETY: by this function's contract.
    let Some(mut keys) = (unsafe { keys_of(keys, count) }) else {
        cx.host.log.warn("append_key: a key without parts");
        return Status::CONN_FAIL;
    };
    if keys.is_empty() {
        // The key that conflicts with every transaction.
        keys.push(Vec::new());
    }
    let Some(trx) = cx.trxs.of_handle(handle).as_local() else { return Status::NOT_ALLOWED };
    let mut content = trx.content();
    for parts in keys {
        if let Err(status) = content.append_key(&parts, kind) {
            return status;
        }
    }
    Status::OK
}

/// `append_data`.
///
/// # Safety
/// The arguments are as the API requires.
pub(crate) unsafe fn append_data(
    cx: &Context,
    handle: &mut WsHandle,
    data: *const Buf,
    count: usize,
    kind: DataType,
) -> Status {
    let kind = match kind {
        DataType::ORDERED => DataKind::Ordered,
        DataType::UNORDERED => DataKind::Unordered,
        DataType::ANNOTATION => DataKind::Annotation,
        _ => {
            cx.host.log.warn(format!("append_data: data type {} is unknown", kind.0));
            return Status::CONN_FAIL;
        }
    };
    if data.is_null() {
        return Status::OK;
    }
    let Some(trx) = cx.trxs.of_handle(handle).as_local() else { return Status::NOT_ALLOWED };
    let mut content = trx.content();
    for at in 0..count {
        // SAFETY: the server passes `count` buffers, valid during the call.
        let bytes = unsafe { (*data.add(at)).as_slice() };
        if let Err(status) = content.append_data(kind, bytes, cx.host.settings.max_write_set()) {
            return status;
        }
    }
    Status::OK
}
