#!/bin/bash
# Runs the tests on real servers.
#
#     scripts/servers.sh short       for `make test`: without those in `long`, in two lanes
#     scripts/servers.sh all         for `make servers`: one after the other
#     scripts/servers.sh longest     for `make servers-long`: also those marked `#[ignore]`, which take a minute each
#
# LANES=1 or LANES=2 says otherwise. With two lanes, those that measure time run first, one after the other with nothing
# beside them; then the others in two processes, each with clusters and ports of its own, for they mostly wait (for
# servers that start, that are missed, that come back). That takes a third of the time less. A line of output begins
# with its lane's letter.
#
# Servers wait for each other with bounds, and a machine that is busy with something else may keep them waiting for longer.
# So up to three tests that fail are run once more, alone: what fails then has failed. Both outcomes are said. Not so those
# that look for what happens once in many times: a lost row is none the less lost.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a loaded machine could make fail: how long nobody writes, round trips.
timed=(allow:: disk:: distance:: failover:: policy:: wan::)
# About half of the rest, by time. What is in neither list, as a new module is, runs in the first lane.
second=(chaos:: galera:: rejoin:: restart:: special:: stress:: tools:: up:: verify:: versions::)
# Each takes 14 s to a minute, and one beside it in `make test`, or the simulator, would notice most of what breaks it.
long=(
    allow::allow_list_table_lock_delays_joiner_only
    applying::delayed_member_killed_in_ddl_and_stream_recovers
    branch::majority_log_damage_is_reported_and_bootstrap_works
    chaos::under_all_one_of_three_is_enough
    chaos::under_async_no_more_is_lost_than_was_at_risk
    chaos::under_semisync_a_replica_goes_on_when_the_only_voter_is_lost
    ddl::member_killed_applying_ddl_executes_each_once
    distance::leadership_follows_a_single_writer_and_its_commits_get_near
    distance::connections_over_distance_scale_the_rate
    galera::from_galera_and_back_and_again
    lab::far_replica_costs_round_trip_only_under_semisync
    lab::command_uses_netem_when_asked_and_available
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
    echo "servers: short, all or longest, not $which" >&2
    exit 2
    ;;
esac

binary=$(cargo test --quiet --locked --workspace --features lockstep-lab/servers,lockstep/servers --test servers --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/servers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$binary" ] || {
    echo "servers: cargo did not say where the tests are" >&2
    exit 1
}
# As cargo would start it.
cd testing/lockstep-lab

# A name that no test has any more would silently move tests to the other lane.
names=$("$binary" --list 2>/dev/null)
for name in "${timed[@]}" "${second[@]}" "${long[@]}"; do
    grep -q "^$name" <<<"$names" || {
        echo "servers: scripts/servers.sh names $name, and there is no such test" >&2
        exit 1
    }
done
[ "$which" != short ] || for name in "${long[@]}"; do set -- --skip "$name" "$@"; done

folder=$(mktemp -d)
pids=()
trap 'rm -rf "$folder"' EXIT
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM

# start LETTER ARGUMENT...: what comes is kept as $folder/LETTER, too.
start() {
    local letter=$1
    shift
    "$binary" --test-threads=1 "$@" > >(tee "$folder/$letter" | exec sed -u "s/^/$letter| /") 2>&1 &
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
# For the last lines of output.
wait
[ "$failed" = 1 ] || exit 0

# A test binary lists the names of what failed, each on a line, when it has ended by itself.
mapfile -t again < <(cat "$folder"/* | sed -n '/^failures:$/,$s/^    \([a-z_0-9]*::[a-z_0-9:]*\)$/\1/p' | sort -u)
ended=$(cat "$folder"/* | grep -c '^test result:') || true
rare=$(printf '%s\n' "${again[@]}" | grep -cE '^(chaos|stress)::') || true
if [ "${#again[@]}" = 0 ] || [ "$rare" != 0 ] || [ "${#again[@]}" -gt 3 ] || [ "$ended" != ${#pids[@]} ]; then
    echo "== ${#again[@]} tests on real servers failed: ${again[*]}"
    exit 1
fi
echo "== failed, and run once more, alone: ${again[*]}"
"$binary" --test-threads=1 --include-ignored --exact "${again[@]}" || exit 1
echo "== FLAKY: failed once and passed alone: ${again[*]}"
