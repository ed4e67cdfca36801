#!/bin/bash
# Runs the tests on real servers: `make servers`. By default one after the other. With LANES=2: first those that measure
# time, one after the other with nothing beside them; then the others in two lanes, for they mostly wait (for servers that start, that are missed, that come back).
# Each lane is a process with a cluster and ports of its own; a line of output begins with the lane's letter.
#
#     scripts/servers.sh [ARGUMENT...]       further arguments for the tests, such as --include-ignored
#
# Two lanes take a third of the time less, and on a busy machine a test may wait for longer than it is ready to.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a loaded machine could make fail: how long nobody writes, round trips.
timed=(allow:: disk:: distance:: failover:: policy:: wan::)
# About half of the rest, by time. What is in neither list, as a new module is, runs in the first lane.
second=(chaos:: galera:: rejoin:: restart:: special:: stress:: tls:: tools:: up:: verify:: versions::)

binary=$(cargo test --quiet --locked --workspace --features lockstep-lab/servers,lockstep/servers --test servers --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/servers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$binary" ] || {
    echo "servers: cargo did not say where the tests are" >&2
    exit 1
}
# As cargo would start it.
cd crates/lockstep-lab

if [ "${LANES:-1}" = 1 ]; then
    exec "$binary" --test-threads=1 "$@"
fi

# A name that no test has any more would silently move tests to the other lane.
names=$("$binary" --list 2>/dev/null)
for module in "${timed[@]}" "${second[@]}"; do
    grep -q "^$module" <<<"$names" || {
        echo "servers: scripts/servers.sh names $module, and there is no such test" >&2
        exit 1
    }
done
skip=()
for module in "${timed[@]}" "${second[@]}"; do skip+=(--skip "$module"); done

pids=()
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM

# start LETTER ARGUMENT...
start() {
    local letter=$1
    shift
    "$binary" --test-threads=1 "$@" > >(exec sed -u "s/^/$letter| /") 2>&1 &
    pids+=($!)
}

failed=0
start t "${timed[@]}" "$@"
wait "${pids[0]}" || failed=1
start a "${skip[@]}" "$@"
start b "${second[@]}" "$@"
wait "${pids[1]}" || failed=1
wait "${pids[2]}" || failed=1
# For the last lines of output.
wait
exit "$failed"
