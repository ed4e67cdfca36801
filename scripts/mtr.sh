#!/bin/bash
# Runs MariaDB's own Galera tests (Debian's package mariadb-test) with a provider, and compares the results with
# conformance/tests.txt.
#
#   scripts/mtr.sh [short|listed|all] [TEST...]
#
# short    the tests marked `short` in the list: a few minutes
# listed   all tests of the list, i.e. those that Galera's library passes (default)
# all      the whole suites. Most tests that are not in the list are skipped, or fail with Galera's library, too
# TEST...  these tests instead, as suite.name
#
# PROVIDER=path   the library (default: target/release/liblockstep.so)
# RIVAL=path      also run this library and print its numbers beside ours; RIVAL=1 is Debian's galera-4
# PARALLEL=n      parallel MTR workers (default: one per processor)
# MTR_BUILD_THREAD=n  ports from 10000 + 30 n on, 30 per worker (default: MTR looks for free ones)
# MTR_DIR=path    directory of servers and results (default: /tmp/lockstep-mtr, removed at the start of a run)
#
# Prints a line per suite, and writes MTR_DIR/ours.tsv (test, verdict, milliseconds) and ours.log (MTR's output). Exit
# status 1: a test listed as `pass` or `short` did not pass. A failed test is run again alone, and the second result counts.
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
# A test's name may contain '#', so only a '#' at the beginning of a line is a comment.
bad=$(grep -vE '^(#|$)' "$list" | grep -vE '^[a-z_0-9]+\.[^ ]+ (pass|short|open .{10,})$' || true)
[ -z "$bad" ] || die "conformance/tests.txt: expected 'test pass', 'test short' or 'test open <reason>': $bad"
bad=$(grep -vE '^(#|$)' "$list" | cut -d' ' -f1 | sort | uniq -d)
[ -z "$bad" ] || die "conformance/tests.txt: duplicate tests: $bad"

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

# mariadbd and rsync's state transfer refuse to run as root. The account `mysql` cannot read a working copy under /root.
as_user=()
if [ "$(id -u)" = 0 ]; then
    as_user=(setpriv --reuid=mysql --regid=mysql --clear-groups)
    chown mysql: "$dir" "$dir/lib"
fi

# Runs MTR once: mtr <provider> <log> <workers> <test or --suite=...>... Its exit status is ignored.
mtr() {
    local library=$1 log=$2 workers=$3
    shift 3
    local thread=() options=
    [ "$library" != "$dir/lib/ours.so" ] || options=trx.streaming=yes
    [ -z "${MTR_BUILD_THREAD:-}" ] || thread=(--build-thread="$MTR_BUILD_THREAD")
    (cd "$mtr_home" && "${as_user[@]}" env -i HOME="$dir" PATH=/usr/sbin:/usr/bin:/sbin:/bin WSREP_PROVIDER="$library" \
        LOCKSTEP_OPTIONS="$options" \
        perl -I"$dir/lib" -MSuppressions ./mariadb-test-run.pl --vardir="$dir/var" "${thread[@]}" --parallel="$workers" \
        --force --max-test-fail=0 --retry=0 --testcase-timeout=5 --suite-timeout=300 --max-save-core=0 \
        --max-save-datadir=0 --nocheck-testcases --timer "$@") >>"$log" 2>&1 </dev/null || true
}

# Extracts lines "test verdict ms" from MTR's output. A test that runs in several combinations gets its worst verdict.
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

# Runs all selected tests with one provider, and writes $dir/<name>.tsv.
run() {
    local name=$1 library=$dir/lib/$1.so
    local log=$dir/$name.log tsv=$dir/$name.tsv
    install -m 755 "$2" "$library"
    : >"$log"
    if [ -s "$dir/tests" ]; then
        # MTR stops after some errors, and its workers die after others. Tests without a verdict are then run again.
        local round todo
        for round in 1 2 3; do
            todo=$(verdicts "$log" | cut -f1 | sort | comm -13 - <(sort "$dir/tests"))
            [ -n "$todo" ] || break
            [ "$round" = 1 ] || echo "mtr: $(wc -l <<<"$todo") tests have no verdict: running MTR again"
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
        echo "mtr: $(wc -w <<<"$failed") tests failed with $name: running them again, one by one"
        # shellcheck disable=SC2086
        mtr "$library" "$log.again" 1 $failed
    fi
    {
        # If a test ran twice, the second verdict counts, if there is one.
        { verdicts "$log.again" && verdicts "$log"; } | awk -F'\t' '!seen[$1]++'
        for test in $todo; do printf '%s\tnone\t0\n' "$test"; done
    } | sort >"$tsv"
    rm -rf "$dir/var"
}

started=$SECONDS
run ours "$provider"
: >"$dir/rival.tsv"
[ -z "$rival" ] || run rival "$rival"

# The table, compared with the tests that Galera's library passes: by this run, or else by the list.
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
        # The list has the tests that Galera'"'"'s library passes, so it replaces a run of that library.
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

# Differences between the list and this run.
passed=$(awk -F'\t' '$2 == "pass" { print $1 }' "$dir/ours.tsv" | sort)
expected=$(grep -E '^[a-z_0-9]+\.[^ ]+ (pass|short)$' "$list" | cut -d' ' -f1 | sort | comm -12 - <(cut -f1 "$dir/ours.tsv" | sort))
better=$(comm -23 <(echo "$passed") <(grep -E '^[a-z_0-9]+\.[^ ]+ (pass|short)$' "$list" | cut -d' ' -f1 | sort) | grep . || true)
worse=$(comm -13 <(echo "$passed") <(echo "$expected") | grep . || true)
# shellcheck disable=SC2086
[ -z "$better" ] || echo "pass, but not listed as pass:" $better
if [ -n "$worse" ]; then
    # shellcheck disable=SC2086
    echo "REGRESSION, listed as pass:" $worse
    exit 1
fi
