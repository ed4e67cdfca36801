use std::time::Instant;

use super::edn::Workload;
use super::registers::Write;
use super::*;

fn append(key: u64, element: u64) -> Op {
    Op::Append { key, element }
}

fn read(key: u64, list: &[u64]) -> Op {
    Op::Read { key, list: list.to_vec() }
}

/// All transactions of a test overlap, on members of their own, unless it says otherwise.
fn ended(completion: Completion, ops: &[Op]) -> Transaction {
    Transaction {
        ops: ops.to_vec(),
        completion,
        error: None,
        client: 0,
        member: 0,
        sync_wait: false,
        invoked: 0,
        completed: 1000,
    }
}

fn done(ops: &[Op]) -> Transaction {
    ended(Completion::Committed, ops)
}

fn at(member: usize, times: (u64, u64), transaction: Transaction) -> Transaction {
    Transaction { member, invoked: times.0, completed: times.1, ..transaction }
}

fn with_sync_wait(transaction: Transaction) -> Transaction {
    Transaction { sync_wait: true, ..transaction }
}

fn lists(last: &[(u64, &[u64])]) -> Lists {
    last.iter().map(|(key, list)| (*key, list.to_vec())).collect()
}

fn check_all(history: &[Transaction], last: &[(u64, &[u64])], claim: Claim) -> Vec<(Anomaly, bool)> {
    check(history, &lists(last), claim).into_iter().map(|f| (f.anomaly, f.allowed)).collect()
}

/// The anomalies that break snapshot isolation.
fn found(history: &[Transaction], last: &[(u64, &[u64])]) -> Vec<Anomaly> {
    let findings = check_all(history, last, Claim::snapshot_isolation()).into_iter();
    findings.filter(|(_, allowed)| !allowed).map(|(anomaly, _)| anomaly).collect()
}

#[test]
fn serial_history_has_no_anomaly() {
    let history = [
        done(&[append(1, 10), append(2, 20)]),
        done(&[read(1, &[10]), append(1, 11), read(1, &[10, 11])]),
        ended(Completion::Aborted, &[read(1, &[10]), append(1, 12)]),
        ended(Completion::Unknown, &[append(2, 21)]),
        ended(Completion::Unknown, &[append(2, 22)]),
        done(&[read(1, &[10, 11]), read(2, &[20, 21])]),
    ];
    for claim in [Claim::snapshot_isolation(), Claim::repeatable_read()] {
        assert_eq!(check_all(&history, &[(1, &[10, 11]), (2, &[20, 21])], claim), []);
    }
}

#[test]
fn lost_doubled_invented_and_torn_writes_are_found() {
    let history = [done(&[append(1, 10)]), ended(Completion::Unknown, &[append(1, 11), append(2, 20)])];
    assert_eq!(found(&history, &[(1, &[]), (2, &[])]), [Anomaly::Lost]);
    assert_eq!(found(&history, &[(1, &[10, 10])]), [Anomaly::Duplicated]);
    assert_eq!(found(&history, &[(1, &[10, 99])]), [Anomaly::Invented]);
    assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Torn]);
}

#[test]
fn aborted_write_in_a_list_or_a_read_is_g1a() {
    let aborted = ended(Completion::Aborted, &[append(1, 11)]);
    let first = done(&[append(1, 10)]);
    assert_eq!(found(&[first.clone(), aborted.clone()], &[(1, &[10, 11])]), [Anomaly::AbortedRead]);
    let reader = done(&[read(1, &[10, 11])]);
    assert_eq!(found(&[first, aborted, reader], &[(1, &[10])]), [Anomaly::AbortedRead]);
}

#[test]
fn half_of_a_transaction_read_is_g1b() {
    let history = [done(&[append(1, 10), append(1, 11)]), done(&[read(1, &[10])])];
    // The reader saw 10 and not 11, of one transaction: that is a cycle as well.
    assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::IntermediateRead, Anomaly::FracturedRead]);
}

#[test]
fn read_that_is_no_prefix_is_an_incompatible_order() {
    let writers = [done(&[append(1, 10)]), done(&[append(1, 11)])];
    for wrong in [&[11, 10][..], &[11]] {
        let mut history = writers.to_vec();
        history.push(done(&[read(1, wrong)]));
        assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Reordered], "{wrong:?}");
    }
    let mut history = writers.to_vec();
    history.push(done(&[read(1, &[10, 10])]));
    assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Duplicated, Anomaly::Reordered]);
}

#[test]
fn own_write_that_is_not_read_is_internal() {
    let history = [done(&[append(1, 10), read(1, &[])])];
    assert_eq!(found(&history, &[(1, &[10])]), [Anomaly::Internal]);
}

#[test]
fn write_cycle_is_g0_under_either_claim() {
    let history = [done(&[append(1, 10), append(2, 20)]), done(&[append(1, 11), append(2, 21)])];
    let last: [(u64, &[u64]); 2] = [(1, &[10, 11]), (2, &[21, 20])];
    assert_eq!(found(&history, &last), [Anomaly::G0]);
    assert_eq!(check_all(&history, &last, Claim::repeatable_read()), [(Anomaly::G0, false)]);
}

#[test]
fn circular_information_is_g1c_under_either_claim() {
    let history = [done(&[append(1, 10), read(2, &[20])]), done(&[append(2, 20), read(1, &[10])])];
    let last: [(u64, &[u64]); 2] = [(1, &[10]), (2, &[20])];
    assert_eq!(found(&history, &last), [Anomaly::G1c]);
    assert_eq!(check_all(&history, &last, Claim::repeatable_read()), [(Anomaly::G1c, false)]);
}

#[test]
fn write_over_an_unseen_version_is_a_lost_update() {
    let history = [done(&[append(1, 10)]), done(&[append(1, 11)]), done(&[read(1, &[]), append(1, 12)])];
    let last: [(u64, &[u64]); 1] = [(1, &[10, 11, 12])];
    assert_eq!(found(&history, &last), [Anomaly::LostUpdate]);
    assert_eq!(check_all(&history, &last, Claim::repeatable_read()), [(Anomaly::LostUpdate, true)]);
    let text = &check(&history, &lists(&last), Claim::snapshot_isolation())[0].text;
    assert_eq!(text, "T2 (n1) read 1 without 10, which T0 (n1) wrote; T2 (n1) wrote 12 to 1 after T0 (n1)");
}

#[test]
fn read_of_one_of_two_writes_is_a_fractured_read() {
    let history = [done(&[append(1, 10), append(2, 20)]), done(&[read(1, &[10]), read(2, &[])])];
    let last: [(u64, &[u64]); 2] = [(1, &[10]), (2, &[20])];
    assert_eq!(found(&history, &last), [Anomaly::FracturedRead]);
    // Also a read-only transaction of repeatable read has one snapshot.
    assert_eq!(check_all(&history, &last, Claim::repeatable_read()), [(Anomaly::FracturedRead, false)]);
}

#[test]
fn longer_read_skew_is_g_single() {
    let history = [
        done(&[append(1, 10)]),
        done(&[read(1, &[10]), append(2, 20)]),
        done(&[read(2, &[20]), read(1, &[])]),
    ];
    assert_eq!(found(&history, &[(1, &[10]), (2, &[20])]), [Anomaly::GSingle]);
}

#[test]
fn long_fork_is_g_nonadjacent() {
    // Two readers see two independent writes in opposite orders.
    let history = [
        done(&[append(1, 10)]),
        done(&[append(2, 20)]),
        done(&[read(1, &[10]), read(2, &[])]),
        done(&[read(1, &[]), read(2, &[20])]),
    ];
    let last: [(u64, &[u64]); 2] = [(1, &[10]), (2, &[20])];
    assert_eq!(found(&history, &last), [Anomaly::GNonadjacent]);
}

#[test]
fn write_skew_is_allowed_and_reported() {
    let history = [done(&[read(1, &[]), append(2, 20)]), done(&[read(2, &[]), append(1, 10)])];
    let found = check_all(&history, &[(1, &[10]), (2, &[20])], Claim::snapshot_isolation());
    assert_eq!(found, [(Anomaly::G2, true)]);
}

#[test]
fn stale_read_is_allowed_on_another_member_only() {
    let writer = at(0, (0, 10), done(&[append(1, 10)]));
    let last: [(u64, &[u64]); 1] = [(1, &[10])];
    let stale = |member, from| at(member, (from, from + 10), done(&[read(1, &[])]));
    for claim in [Claim::snapshot_isolation(), Claim::repeatable_read()] {
        let found = |reader| check_all(&[writer.clone(), reader], &last, claim);
        assert_eq!(found(stale(1, 11)), [(Anomaly::StaleRead, true)]);
        assert_eq!(found(stale(0, 11)), [(Anomaly::StaleRead, false)]);
        assert_eq!(found(with_sync_wait(stale(1, 11))), [(Anomaly::StaleRead, false)]);
        assert_eq!(found(with_sync_wait(stale(0, 9))), [], "they overlap");
    }
}

#[test]
fn stale_read_behind_an_unacknowledged_write_is_found() {
    // The first unseen write has no answer; the one on top of it was acknowledged.
    let history = [
        at(0, (0, 10), ended(Completion::Unknown, &[append(1, 10)])),
        at(0, (0, 10), done(&[append(1, 11)])),
        with_sync_wait(at(1, (11, 20), done(&[read(1, &[])]))),
    ];
    assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::RealTime]);
}

#[test]
fn writes_against_real_time_are_found() {
    let history = [at(0, (0, 10), done(&[append(1, 10)])), at(1, (11, 20), done(&[append(1, 11)]))];
    assert_eq!(found(&history, &[(1, &[10, 11])]), []);
    assert_eq!(found(&history, &[(1, &[11, 10])]), [Anomaly::RealTime]);
}

#[test]
fn stale_reader_without_sync_wait_promises_nothing_to_others() {
    // T1 on n2 misses T0; T2 on n2 begins after T1, and misses T0 too.
    let history = [
        at(0, (0, 10), done(&[append(1, 10)])),
        at(1, (11, 20), done(&[read(1, &[])])),
        at(1, (21, 30), done(&[read(1, &[])])),
    ];
    assert_eq!(found(&history, &[(1, &[10])]), []);
    // But what one transaction saw there, a later one sees as well.
    let mut back = history.to_vec();
    back[1].ops = vec![read(1, &[10])];
    assert_eq!(found(&back, &[(1, &[10])]), [Anomaly::RealTime]);
}

#[test]
fn register_reads_are_checked_as_lists() {
    let value = |key, version, element| Op::Value { key, version, element };
    let wrote = |version, element| Write { key: 1, version, element };
    let checked = |history: &[Transaction], journal: &[Write], last: Write| {
        let mut findings = Vec::new();
        let lists = registers::versions(journal, &BTreeMap::from([(1, last)]), &mut findings);
        findings.extend(check(&registers::as_lists(history, &lists), &lists, Claim::snapshot_isolation()));
        findings.into_iter().filter(|f| !f.allowed).map(|f| f.anomaly).collect::<Vec<_>>()
    };
    let writers =
        [done(&[append(1, 10)]), done(&[value(1, 1, Some(10)), append(1, 11), value(1, 2, Some(11))])];
    let journal = [wrote(2, 11), wrote(1, 10)];
    assert_eq!(checked(&writers, &journal, wrote(2, 11)), []);
    let reader = |version, element| {
        let mut history = writers.to_vec();
        history.push(done(&[value(1, version, element)]));
        checked(&history, &journal, wrote(2, 11))
    };
    assert_eq!(reader(0, None), []);
    assert_eq!(reader(1, Some(10)), []);
    assert_eq!(reader(1, Some(11)), [Anomaly::Reordered]);
    assert_eq!(reader(3, Some(11)), [Anomaly::Duplicated, Anomaly::Reordered]);
    // Two writes that did not see each other; a write that is gone; a register that is not the last write.
    let both = [wrote(1, 10), wrote(1, 11)];
    assert!(checked(&writers, &both, wrote(1, 11)).contains(&Anomaly::LostUpdate));
    assert_eq!(checked(&writers, &[wrote(2, 11)], wrote(2, 11))[0], Anomaly::Lost);
    assert_eq!(checked(&writers, &journal, wrote(2, 10)), [Anomaly::Torn]);
    // A read-modify-write on top of a version that it has not seen.
    let blind = [done(&[append(1, 10)]), done(&[value(1, 0, None), append(1, 11)])];
    assert_eq!(checked(&blind, &journal, wrote(2, 11)), [Anomaly::LostUpdate]);
}

fn edn_text(history: &[Transaction], workload: Workload) -> String {
    let mut text = Vec::new();
    edn::write(&history.iter().collect::<Vec<_>>(), workload, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn history_file_has_jepsens_form() {
    let mut unknown = at(1, (15, 30), ended(Completion::Unknown, &[append(1, 11)]));
    unknown.error = Some("the \"link\"\nbroke".into());
    let history = [
        at(0, (0, 10), done(&[append(1, 10), read(1, &[10])])),
        unknown,
        with_sync_wait(at(2, (40, 50), done(&[read(1, &[10, 11])]))),
    ];
    let mut expected = String::new();
    for line in [
        "{:index 0, :time 0, :type :invoke, :process 0, :f :txn, :value [[:append 1 10] [:r 1 nil]], :transaction 0, :member 1, :sync-wait false}",
        "{:index 1, :time 10000, :type :ok, :process 0, :f :txn, :value [[:append 1 10] [:r 1 [10]]], :transaction 0, :member 1, :sync-wait false}",
        "{:index 2, :time 15000, :type :invoke, :process 0, :f :txn, :value [[:append 1 11]], :transaction 1, :member 2, :sync-wait false}",
        "{:index 3, :time 30000, :type :info, :process 0, :f :txn, :value [[:append 1 11]], :transaction 1, :member 2, :sync-wait false, :error \"the \\\"link\\\"\\nbroke\"}",
        "{:index 4, :time 40000, :type :invoke, :process 1, :f :txn, :value [[:r 1 nil]], :transaction 2, :member 3, :sync-wait true}",
        "{:index 5, :time 50000, :type :ok, :process 1, :f :txn, :value [[:r 1 [10 11]]], :transaction 2, :member 3, :sync-wait true}",
    ] {
        expected.push_str(line);
        expected.push('\n');
    }
    assert_eq!(edn_text(&history, Workload::ListAppend), expected);
    let register = [done(&[append(1, 10), Op::Value { key: 1, version: 1, element: Some(10) }])];
    assert!(edn_text(&register, Workload::Register).contains(":value [[:w 1 10] [:r 1 10]]"));
}

/// Transactions on `keys` lists, each after the one before it.
fn serial(count: u64, keys: u64) -> (Vec<Transaction>, Lists) {
    let mut last = Lists::new();
    let history = (0..count)
        .map(|n| {
            // A list takes 16 elements, then another key follows it.
            let key = n / (16 * keys) * keys + n % keys;
            let other = n / (16 * keys) * keys + (n + 1) % keys;
            let seen = read(other, last.get(&other).map_or(&[], Vec::as_slice));
            last.entry(key).or_default().push(n);
            with_sync_wait(at((n % 3) as usize, (10 * n, 10 * n + 5), done(&[seen, append(key, n)])))
        })
        .collect();
    (history, last)
}

#[test]
fn long_cycle_is_found_without_recursion() {
    const N: u64 = 5000;
    let mut history: Vec<Transaction> =
        (0..N).map(|n| done(&[append(n, n), read((n + 1) % N, &[(n + 1) % N])])).collect();
    let last: Lists = (0..N).map(|n| (n, vec![n])).collect();
    let anomalies = |history: &[Transaction]| -> Vec<Anomaly> {
        check(history, &last, Claim::snapshot_isolation()).into_iter().map(|f| f.anomaly).collect()
    };
    assert_eq!(anomalies(&history), [Anomaly::G1c]);
    history[0].ops.pop();
    assert_eq!(anomalies(&history), []);
}

#[test]
fn hundred_thousand_transactions_are_checked_quickly() {
    let (mut history, last) = serial(100_000, 6);
    let began = Instant::now();
    assert_eq!(check(&history, &last, Claim::snapshot_isolation()), []);
    // One read in the middle misses earlier writes. Cycles of other reads lead through it, and do not count.
    let Op::Read { list, .. } = &mut history[50_000].ops[0] else { panic!("no read") };
    list.clear();
    let found = check(&history, &last, Claim::snapshot_isolation());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].anomaly, found[0].allowed), (Anomaly::GSingle, false));
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}
