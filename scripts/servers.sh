#!/bin/bash
# Runs the tests on real servers.
#
#     scripts/servers.sh short       for `make test`: without the tests in `long`, in two lanes
#     scripts/servers.sh all         for `make servers`: one after the other
#     scripts/servers.sh longest     for `make servers-long`: also tests marked `#[ignore]`, a minute each
#
# LANES=1 or LANES=2 overrides the number of lanes. With two lanes, the tests that measure time run first, one after the
# other. The others then run in two processes, each with its own clusters and ports. These tests mostly wait for servers,
# so two lanes save a third of the time. Each line of output begins with its lane's letter and the seconds since the start.
#
# Servers have timeouts, which a busy machine may exceed. Up to three failed tests are therefore run once more, alone; the
# second result counts, and both are printed. Tests in chaos:: and stress:: are not repeated: they search for rare errors,
# and one lost row is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests of times (write outages, round trips), which could fail on a busy machine.
timed=(allow:: disk:: distance:: failover:: policy:: wan::)
# About half of the others, by time. Modules in neither list, such as new ones, run in the first lane.
second=(chaos:: daily:: damage:: galera:: joining:: rejoin:: restart:: special:: stress:: tools:: up:: verify:: versions::)
# Tests of 14 s to a minute. A shorter test in `make test`, or the simulator, would find most errors that break them.
long=(
    allow::allow_list_table_lock_delays_joiner_only
    applying::delayed_member_killed_in_ddl_and_stream_recovers
    archive::backup_and_s3_archive_give_tables_of_a_time
    binlog::full_disk_delays_the_stream_and_damages_nothing
    binlog::replica_of_binlog_server_has_what_the_cluster_has
    binlog::replica_that_switches_between_instances_loses_nothing
    block::device_holds_every_flushed_write_under_faults
    block::mariadb_on_device_keeps_acknowledged_commits
    branch::majority_without_identities_is_reported_and_bootstrap_works
    chaos::isolation_holds_on_three_members_with_kills
    chaos::under_all_one_of_three_is_enough
    chaos::under_async_no_more_is_lost_than_was_at_risk
    chaos::under_semisync_a_replica_goes_on_when_the_only_voter_is_lost
    consumers::java_connector_resumes_by_gtid_and_reads_each_row_once
    consumers::python_library_resumes_by_gtid_and_reads_each_row_once
    ddl::member_killed_applying_ddl_executes_each_once
    distance::leadership_follows_a_single_writer_and_its_commits_get_near
    distance::connections_over_distance_scale_the_rate
    galera::from_galera_and_back_and_again
    ingest::promoted_replica_takes_over_in_the_same_group
    lab::far_replica_costs_round_trip_only_under_semisync
    policy::leader_stopped_in_order_hands_over_its_tail
    policy::rescue_file_as_sql_restores_transactions
    policy::lost_leaders_tail_is_in_rescue_file_only
    shootout::each_setup_keeps_replicas_equal_and_cleans_up
    synchronous::far_clients_pay_per_statement_and_far_slave_costs_none
    tls::tls_is_enabled_in_turn_and_reloaded_live
    up::up_says_at_once_which_member_cannot_go_on
    votes::ddl_failing_on_one_member_is_voted_on
    votes::ddl_succeeding_on_one_member_is_voted_on
)

which=${1:-all}
[ $# = 0 ] || shift
case $which in
short) lanes=${LANES:-2} ;;
all) lanes=${LANES:-1} ;;
longest)
    lanes=${LANES:-1}
    set -- --include-ignored "$@"
    ;;
*)
    echo "servers: expected short, all or longest, not $which" >&2
    exit 2
    ;;
esac

binary=$(cargo test --quiet --locked --workspace --features lockstep-lab/servers,lockstep/servers,lockstep-binlog/servers,lockstep-block/servers --test servers --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/servers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$binary" ] || {
    echo "servers: cargo did not report the path of the tests" >&2
    exit 1
}
# The directory in which cargo would run it.
cd testing/lockstep-lab

# An outdated name would silently move tests to the other lane.
names=$("$binary" --list 2>/dev/null)
for name in "${timed[@]}" "${second[@]}" "${long[@]}"; do
    grep -q "^$name" <<<"$names" || {
        echo "servers: no test is named $name: correct scripts/servers.sh" >&2
        exit 1
    }
done
[ "$which" != short ] || for name in "${long[@]}"; do set -- --skip "$name" "$@"; done

folder=$(mktemp -d)
pids=()
trap 'rm -rf "$folder"' EXIT
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM

# mark LETTER: puts the lane and the time before each line.
mark() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do printf '%s %4d| %s\n' "$1" "$SECONDS" "$line"; done
}

# start LETTER ARGUMENT...: starts a lane. Its output is also saved as $folder/LETTER.
start() {
    local letter=$1
    shift
    "$binary" --test-threads=1 "$@" > >(tee "$folder/$letter" | mark "$letter") 2>&1 &
    pids+=($!)
}

failed=0
# finish AT: waits for a lane.
finish() { wait "${pids[$1]}" || failed=1; }

if [ "$lanes" = 1 ]; then
    start a "$@"
    finish 0
else
    skip=()
    for module in "${timed[@]}" "${second[@]}"; do skip+=(--skip "$module"); done
    start t "${timed[@]}" "$@"
    finish 0
    start a "${skip[@]}" "$@"
    start b "${second[@]}" "$@"
    finish 1
    finish 2
fi
# Waits for the last lines of output.
wait
[ "$failed" = 1 ] || exit 0

# A test binary that ended by itself lists the names of failed tests, one per line.
mapfile -t again < <(cat "$folder"/* | sed -n '/^failures:$/,$s/^    \([a-z_0-9]*::[a-z_0-9:]*\)$/\1/p' | sort -u)
ended=$(cat "$folder"/* | grep -c '^test result:') || true
rare=$(printf '%s\n' "${again[@]}" | grep -cE '^(chaos|stress)::') || true
if [ "${#again[@]}" = 0 ] || [ "$rare" != 0 ] || [ "${#again[@]}" -gt 3 ] || [ "$ended" != ${#pids[@]} ]; then
    echo "== ${#again[@]} tests on real servers failed: ${again[*]}"
    exit 1
fi
echo "== failed, running once more, alone: ${again[*]}"
"$binary" --test-threads=1 --include-ignored --exact "${again[@]}" || exit 1
echo "== FLAKY: failed once, then passed alone: ${again[*]}"
