#!/bin/bash
# Runs MariaDB's own Galera tests (Debian's package mariadb-test) on a provider and compares with conformance/tests.txt.
#
#   scripts/mtr.sh [short|listed|all] [TEST...]
#
# short    the tests that the list marks `short`: a few minutes
# listed   all tests of the list, which are those that Galera's library passes (default)
# all      the whole suites, for news: most tests beyond the list are skipped, or fail with Galera's library, too
# TEST...  these instead, as suite.name
#
# PROVIDER=path   the library (default: target/release/liblockstep.so)
# RIVAL=path      run this library, too, and print its numbers beside ours; RIVAL=1 is Debian's galera-4
# PARALLEL=n      servers' groups at a time (default: one for each processor)
# MTR_BUILD_THREAD=n  the ports: 10000 + 30 n and on, 30 for each of the groups (default: MTR looks for free ones)
# MTR_DIR=path    where servers and results live (default: /tmp/lockstep-mtr, removed at the start of a run)
#
# Prints a line for each suite; leaves MTR_DIR/ours.tsv (test, verdict, milliseconds), and ours.log, MTR's output. Ends with 1 if a
# test that the list calls `pass` or `short` does not pass. A test that fails is run again alone before it is believed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/conformance/tests.txt
suites=galera,galera_sr,galera_3nodes,wsrep
dir=${MTR_DIR:-/tmp/lockstep-mtr}
parallel=${PARALLEL:-$(nproc)}
provider=${PROVIDER:-${CARGO_TARGET_DIR:-$root/target}/release/liblockstep.so}
rival=${RIVAL:-}
[ "$rival" != 1 ] || rival=/usr/lib/galera/libgalera_smm.so
mtr_home=
for home in /usr/share/mysql/mysql-test /usr/share/mariadb/mariadb-test; do
    [ ! -e "$home/mariadb-test-run.pl" ] || mtr_home=$home
done

die() {
    echo "mtr: $*" >&2
    exit 2
}

[ -n "$mtr_home" ] || die "MariaDB's tests are not installed: apt-get install mariadb-test"
[ -e "$provider" ] || die "no $provider: build it with 'cargo build --release -p lockstep-wsrep', or set PROVIDER"
[ -z "$rival" ] || [ -e "$rival" ] || die "no $rival: apt-get install galera-4, or set RIVAL"
# The name of a test may contain '#'; a comment begins a line.
bad=$(grep -vE '^(#|$)' "$list" | grep -vE '^[a-z_0-9]+\.[^ ]+ (pass|short|open .{10,})$' || true)
[ -z "$bad" ] || die "conformance/tests.txt: neither 'test pass', 'test short' nor 'test open <reason>': $bad"
bad=$(grep -vE '^(#|$)' "$list" | cut -d' ' -f1 | sort | uniq -d)
[ -z "$bad" ] || die "conformance/tests.txt: listed twice: $bad"

mode=listed
case ${1:-} in
short | listed | all)
    mode=$1
    shift
    ;;
esac
rm -rf "$dir"
mkdir -p "$dir/lib"
install -m 644 "$root/conformance/Suppressions.pm" "$dir/lib/"
if [ $# -gt 0 ]; then
    printf '%s\n' "$@" >"$dir/tests"
elif [ "$mode" = all ]; then
    : >"$dir/tests"
else
    wanted='pass|open|short'
    [ "$mode" != short ] || wanted=short
    grep -E "^[a-z_0-9]+\.[^ ]+ ($wanted)" "$list" | cut -d' ' -f1 >"$dir/tests"
fi

# rsync's state transfer refuses root, and so does a server. The account `mysql` cannot read a clone under /root.
as_user=()
if [ "$(id -u)" = 0 ]; then
    as_user=(setpriv --reuid=mysql --regid=mysql --clear-groups)
    chown mysql: "$dir" "$dir/lib"
fi

# MTR once: mtr <provider> <log> <workers> <test or --suite=...>...; its verdict is not ours.
mtr() {
    local library=$1 log=$2 workers=$3
    shift 3
    local thread=()
    [ -z "${MTR_BUILD_THREAD:-}" ] || thread=(--build-thread="$MTR_BUILD_THREAD")
    (cd "$mtr_home" && "${as_user[@]}" env -i HOME="$dir" PATH=/usr/sbin:/usr/bin:/sbin:/bin WSREP_PROVIDER="$library" \
        perl -I"$dir/lib" -MSuppressions ./mariadb-test-run.pl --vardir="$dir/var" "${thread[@]}" --parallel="$workers" \
        --force --max-test-fail=0 --retry=0 --testcase-timeout=5 --suite-timeout=300 --max-save-core=0 \
        --max-save-datadir=0 --nocheck-testcases --timer "$@") >>"$log" 2>&1 </dev/null || true
}

# Lines "test verdict ms" of MTR's output; of a test that runs in several combinations, the worst.
verdicts() {
    awk '
        match($0, /\[ (pass|fail|skipped|disabled) \]/) && $1 ~ /^[a-z_0-9]+\./ {
            verdict = substr($0, RSTART + 2, RLENGTH - 4)
            ms = substr($0, RSTART + RLENGTH) + 0
            if (verdict == "disabled") verdict = "skipped"
            rank = verdict == "fail" ? 3 : verdict == "pass" ? 2 : 1
            if (rank > best[$1]) { best[$1] = rank; said[$1] = verdict }
            if (verdict == "pass") took[$1] += ms
        }
        END { for (test in said) print test "\t" said[test] "\t" took[test] + 0 }' "$@" | sort
}

# Runs everything with one provider, leaves $dir/<name>.tsv.
run() {
    local name=$1 library=$dir/lib/$1.so
    local log=$dir/$name.log tsv=$dir/$name.tsv
    install -m 755 "$2" "$library"
    : >"$log"
    if [ -s "$dir/tests" ]; then
        # MTR gives up on some kinds of trouble, and its workers die of others: what has no verdict then is started again.
        local round todo
        for round in 1 2 3; do
            todo=$(verdicts "$log" | cut -f1 | sort | comm -13 - <(sort "$dir/tests"))
            [ -n "$todo" ] || break
            [ "$round" = 1 ] || echo "mtr: $(wc -l <<<"$todo") tests have no verdict: MTR is started again"
            # shellcheck disable=SC2086 # a list of words
            mtr "$library" "$log" "$parallel" $todo
        done
        todo=$(verdicts "$log" | cut -f1 | sort | comm -13 - <(sort "$dir/tests"))
    else
        mtr "$library" "$log" "$parallel" --suite="$suites"
        todo=
    fi
    local failed
    failed=$(verdicts "$log" | awk -F'\t' '$2 == "fail" { print $1 }')
    : >"$log.again"
    if [ -n "$failed" ]; then
        echo "mtr: $(wc -w <<<"$failed") failed with $name and are run again, one by one"
        # shellcheck disable=SC2086
        mtr "$library" "$log.again" 1 $failed
    fi
    {
        # Of a test that ran twice the second verdict counts, if it has one.
        { verdicts "$log.again" && verdicts "$log"; } | awk -F'\t' '!seen[$1]++'
        for test in $todo; do printf '%s\tnone\t0\n' "$test"; done
    } | sort >"$tsv"
    rm -rf "$dir/var"
}

started=$SECONDS
run ours "$provider"
: >"$dir/rival.tsv"
[ -z "$rival" ] || run rival "$rival"

# The table, beside what Galera's library passes: by the list, or by this run.
awk -F'\t' -v rival="$rival" -v list="$list" -v whole="$([ "$mode" = listed ] && [ $# = 0 ] && echo 1)" '
    function suite(test) { sub(/\..*/, "", test); return test }
    BEGIN {
        while ((getline line < list) > 0) {
            if (line ~ /^(#|$)/) continue
            split(line, word, " ")
            listed[word[1]] = 1
        }
    }
    FILENAME ~ /rival/ { if ($2 == "pass") theirs[$1] = 1; next }
    { verdict[$1] = $2; n[suite($1), $2]++; n["all", $2]++; seen[suite($1)] = 1 }
    END {
        # The list is of what Galera'"'"'s library passes, so that it stands for a run of that where there is none.
        theirs_from = rival ? "run now" : "by the list"
        printf "\n%-14s %7s %7s %7s %8s  %-20s %s\n", "suite", "passed", "failed", "skipped", "no end", \
            "Galera passes", "of these we pass"
        printf "%-14s %7s %7s %7s %8s  (%s)\n", "", "", "", "", "", theirs_from
        for (test in verdict) {
            if (rival ? (test in theirs) : (test in listed)) {
                total[suite(test)]++; total["all"]++
                if (verdict[test] == "pass") { both[suite(test)]++; both["all"]++ }
            }
        }
        split("galera galera_sr galera_3nodes wsrep all", order, " ")
        for (i = 1; i in order; i++) {
            s = order[i]
            if (s != "all" && !(s in seen)) continue
            share = total[s] ? sprintf("%d (%.1f %%)", both[s], 100 * both[s] / total[s]) : "-"
            printf "%-14s %7d %7d %7d %8d  %-20d %s\n", s, n[s, "pass"], n[s, "fail"], n[s, "skipped"], n[s, "none"], \
                total[s], share
        }
    }' "$dir/rival.tsv" "$dir/ours.tsv"
echo "took $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s; details: $dir/ours.tsv, $dir/ours.log"

# What the list says and this run does not.
passed=$(awk -F'\t' '$2 == "pass" { print $1 }' "$dir/ours.tsv" | sort)
expected=$(grep -E '^[a-z_0-9]+\.[^ ]+ (pass|short)$' "$list" | cut -d' ' -f1 | sort | comm -12 - <(cut -f1 "$dir/ours.tsv" | sort))
better=$(comm -23 <(echo "$passed") <(grep -E '^[a-z_0-9]+\.[^ ]+ (pass|short)$' "$list" | cut -d' ' -f1 | sort) | grep . || true)
worse=$(comm -13 <(echo "$passed") <(echo "$expected") | grep . || true)
# shellcheck disable=SC2086
[ -z "$better" ] || echo "pass, though the list does not say so:" $better
if [ -n "$worse" ]; then
    # shellcheck disable=SC2086
    echo "REGRESSION, the list says that these pass:" $worse
    exit 1
fi
