//! The format: golden bytes, round trips, hostile bytes, pieces.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn meta() -> Meta {
    Meta {
        flags: flags::TRX_START | flags::TRX_END,
        last_seen: 0x0102_0304,
        source: Uuid(*b"0123456789abcdef"),
        epoch: 0,
        conn: 7,
        trx: 8,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes are on disks and wires: a change of them is a new format version.
#[test]
fn golden() {
    let mut b = WriteSetBuilder::new();
    b.append_data(DataKind::Annotation, b"note").unwrap();
    b.append_key(&[b"db", b"t", b"\x01"], KeyType::Exclusive).unwrap();
    b.append_data(DataKind::Ordered, b"row").unwrap();
    b.append_key(&[b"db", b"t", b"\x02"], KeyType::Update).unwrap();
    b.append_key(&[b"db", b"p", b""], KeyType::Reference).unwrap();
    b.append_data(DataKind::Ordered, b"s").unwrap();
    b.append_data(DataKind::Unordered, b"?").unwrap();
    assert_eq!(
        hex(&b.finish(&meta())),
        concat!(
            "0100",
            "0000",
            "41000000",
            "0403020100000000",
            "30313233343536373839616263646566",
            "0700000000000000",
            "0800000000000000",
            "04000000",
            "01000000",
            "04000000",
            "06000000",
            "00000000",
            "00000000",
            "0000000000000000",
            "726f7773",
            "3f",
            "6e6f7465",
            "e618f3bf3016e320",
            "9212da620319e4d6",
            "6e4b80d9bdd6d49b",
            "d5e80c0a06c5ba6a",
            "c2e4e81fd48dd28b",
            "70fa20b6fbd7b6b0",
            "b004",
        )
    );
}

#[test]
fn hashes_are_fixed() {
    assert_eq!(path_hash(&[]), ROOT);
    // XXH3's own specification: the empty input with seed 0.
    assert_eq!(child_hash(0, b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(path_hash(&[b"db"]), 0x20e3_1630_bff3_18e6);
    assert_eq!(path_hash(&[b"db", b"t", &[0; 300]]), 16_338_614_951_214_783_487);
    // Where parts end matters.
    assert_ne!(path_hash(&[b"ab", b"c"]), path_hash(&[b"a", b"bc"]));
    assert_ne!(path_hash(&[b"a", b""]), path_hash(&[b"a"]));
    assert_ne!(path_hash(&[b""]), ROOT);
}

#[test]
fn pieces_come_back() {
    let mut b = WriteSetBuilder::new();
    let data: Vec<u8> = (0..10_000u32).map(|n| (n * 7) as u8).collect();
    b.append_data(DataKind::Ordered, &data).unwrap();
    b.append_data(DataKind::Annotation, b"a").unwrap();
    b.append_key(&[b"x"], KeyType::Exclusive).unwrap();
    let whole = b.finish(&meta());
    let plain = WriteSet::parse(&whole).unwrap();

    assert_eq!(split(&whole, 20_000).unwrap(), Split { pieces: vec![], last: whole.clone() });
    let Split { pieces, last } = split(&whole, 3000).unwrap();
    assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [3000, 3000, 3000, 1000]);
    let set = WriteSet::parse(&last).unwrap();
    assert_eq!(set.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
    assert_eq!(assemble(set.clone(), &pieces).unwrap(), plain);
    // Pieces of a write-set that never came precede.
    let stale = [&[Bytes::from_static(b"stale")], &pieces[..]].concat();
    assert_eq!(assemble(set.clone(), &stale).unwrap(), plain);

    assert_eq!(assemble(set.clone(), &pieces[1..]), Err(AssembleError::Count { expected: 4, found: 3 }));
    let other = [&pieces[1..], &pieces[..1]].concat();
    assert_eq!(assemble(set.clone(), &other), Err(AssembleError::Hash));
    let short = [&pieces[..3], &[Bytes::from_static(b"short")]].concat();
    assert_eq!(assemble(set, &short), Err(AssembleError::Bytes { expected: 10_000, found: 9005 }));
}

#[test]
fn too_large_is_refused_before_it_is_kept() {
    let mut b = WriteSetBuilder::new();
    b.append_data(DataKind::Annotation, b"12").unwrap();
    b.append_key(&[b"k"], KeyType::Shared).unwrap();
    // Untouched zero pages: nothing reads them.
    let huge = vec![0u8; MAX_BYTES - HEADER - 2 - 9 + 1];
    for kind in [DataKind::Ordered, DataKind::Unordered, DataKind::Annotation] {
        assert_eq!(b.append_data(kind, &huge), Err(TooLarge));
    }
    assert_eq!(b.size(), HEADER + 2 + 9);
    b.clear();
    assert!(b.is_empty());
    assert_eq!(b.size(), HEADER);
}

/// Paths from a small world, so that they repeat.
fn path() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(0u8..3, 0..2), 0..4)
}

fn kind() -> impl Strategy<Value = KeyType> {
    (0u8..4).prop_map(|k| KeyType::from_u8(k).unwrap())
}

fn keys() -> impl Strategy<Value = Vec<(Vec<Vec<u8>>, KeyType)>> {
    prop::collection::vec((path(), kind()), 0..60)
}

fn append(b: &mut WriteSetBuilder, path: &[Vec<u8>], kind: KeyType) {
    let parts: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    b.append_key(&parts, kind).unwrap();
}

fn any_payload() -> impl Strategy<Value = Bytes> {
    (
        keys(),
        prop::collection::vec(any::<u8>(), 0..50),
        any::<u32>(),
        any::<i64>(),
        prop::option::of(1usize..20),
    )
        .prop_map(|(keys, data, flags, last_seen, cut)| {
            let mut b = WriteSetBuilder::new();
            keys.iter().for_each(|(path, kind)| append(&mut b, path, *kind));
            b.append_data(DataKind::Ordered, &data).unwrap();
            let whole = b.finish(&Meta { flags, last_seen, ..meta() });
            cut.map_or(whole.clone(), |n| split(&whole, n).unwrap().last)
        })
}

proptest! {
    /// The builder's set of keys is that of a map from paths to the strongest type.
    #[test]
    fn keys_as_a_map(keys in keys()) {
        let mut b = WriteSetBuilder::new();
        let mut naive = BTreeMap::new();
        for (path, kind) in &keys {
            append(&mut b, path, *kind);
            for depth in 1..path.len() {
                naive.entry(path[..depth].to_vec()).or_insert(KeyType::Shared);
            }
            let held = naive.entry(path.clone()).or_insert(*kind);
            *held = (*held).max(*kind);
        }
        prop_assert_eq!(b.key_count(), naive.len());
        let size = b.size();
        let payload = b.finish(&meta());
        prop_assert_eq!(payload.len(), size);
        prop_assert!(b.is_empty());
        let set = WriteSet::parse(&payload).unwrap();
        let found: BTreeMap<u64, KeyType> = set.keys().map(|k| (k.hash, k.kind)).collect();
        let expected: BTreeMap<u64, KeyType> = naive
            .iter()
            .map(|(path, kind)| (path_hash(&path.iter().map(Vec::as_slice).collect::<Vec<_>>()), *kind))
            .collect();
        prop_assert_eq!(set.key_count(), found.len());
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn data_come_back(
        chunks in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..20)), 0..20),
        flags in any::<u32>(), last_seen in any::<i64>(), conn in any::<u64>(), trx in any::<u64>(),
        source in any::<[u8; 16]>(), epoch in any::<u16>(),
    ) {
        let meta = Meta { flags, last_seen, source: Uuid(source), epoch, conn, trx };
        let mut b = WriteSetBuilder::new();
        let mut parts = [vec![], vec![], vec![]];
        for (at, bytes) in &chunks {
            let kind = [DataKind::Ordered, DataKind::Unordered, DataKind::Annotation][*at as usize];
            b.append_data(kind, bytes).unwrap();
            parts[*at as usize].extend_from_slice(bytes);
        }
        let set = WriteSet::parse(&b.finish(&meta)).unwrap();
        prop_assert_eq!(set.meta, meta);
        prop_assert_eq!([set.data, set.unordered, set.annotation], parts.map(Bytes::from));
    }

    #[test]
    fn noise_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = WriteSet::parse(&Bytes::from(bytes)).map(|set| set.keys().count());
    }

    /// A changed payload is refused, or decodes to a write-set that encodes to the same bytes.
    #[test]
    fn mutants_are_refused_or_read(payload in any_payload(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut raw = payload.to_vec();
        let at = at.index(raw.len());
        raw[at] = to;
        let raw = Bytes::from(raw);
        if let Ok(set) = WriteSet::parse(&raw) {
            let sizes = [&set.data, &set.unordered, &set.annotation].map(|part| part.len() as u32);
            let mut w = Writer::new();
            put_header(&mut w, &set.meta, [sizes[0], sizes[1], sizes[2], set.key_count() as u32], set.pieces.as_ref());
            for part in [&set.data, &set.unordered, &set.annotation, &set.hashes, &set.types] {
                w.raw(part);
            }
            prop_assert_eq!(w.into_bytes(), raw);
            prop_assert_eq!(set.keys().len(), set.key_count());
        }
    }

    #[test]
    fn cut_short_is_refused(payload in any_payload(), at in any::<prop::sample::Index>()) {
        let cut = payload.slice(..at.index(payload.len()));
        prop_assert!(WriteSet::parse(&cut).is_err());
        let more = Bytes::from([&payload[..], b"x"].concat());
        prop_assert_eq!(WriteSet::parse(&more), Err(DecodeError::Trailing));
    }
}
