#!/bin/sh
# Runs the tests on real servers with Debian 13's MariaDB 11.8 instead of this machine's. They run in their own root
# directory (made once, by debootstrap) and their own namespaces for processes and network, so the machine is not changed.
#
#     scripts/mariadb-11.8.sh [TEST...]      names, or parts of names, of tests; default: all
#
# LOCKSTEP_DEBIAN_13 names the root directory [/var/cache/lockstep/debian-13]; it takes 800 MB.
# LOCKSTEP_TEST_PROVIDER=galera tests Debian 13's Galera library instead, to validate the tests themselves.
set -eu

root=${LOCKSTEP_DEBIAN_13:-/var/cache/lockstep/debian-13}
provider=${LOCKSTEP_TEST_PROVIDER:-lockstep}
packages=mariadb-server,mariadb-backup,galera-4,sysbench,prometheus-mysqld-exporter,rsync,socat,lsof,iproute2,procps,e2fsprogs,xfsprogs,ca-certificates
here=$(dirname "$0")/..
target=${CARGO_TARGET_DIR:-$here/target}
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin
export PATH

say() { printf '%s\n' "mariadb-11.8: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "chroot needs root: run this with sudo"
for tool in unshare chroot flock ip; do
    command -v "$tool" >/dev/null || fail "the program $tool is missing (Debian: util-linux, coreutils, iproute2)"
done

if [ ! -e "$root/usr/sbin/mariadbd" ]; then
    if ! command -v debootstrap >/dev/null; then
        say "installing debootstrap"
        apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap ||
            fail "apt-get could not install debootstrap"
    fi
    say "creating Debian 13 in $root: takes some minutes, once"
    # The directory gets its final name once it is complete.
    rm -rf "$root.new"
    mkdir -p "$(dirname "$root")"
    debootstrap --variant=minbase "--include=$packages" trixie "$root.new" |
        sed -n 's/^I: \(Retrieving Packages\|Extracting\|Unpacking the base\|Configuring the base\|Base\)/  \1/p' |
        awk '{ if ($1 != "Extracting" || ++n % 20 == 0) print; fflush() }'
    [ -e "$root.new/usr/sbin/mariadbd" ] ||
        fail "debootstrap failed; the end of its log: $(tail -n 3 "$root.new/debootstrap/debootstrap.log" 2>/dev/null)"
    [ -e "$root.new/etc/hosts" ] || printf '127.0.0.1 localhost\n::1 localhost\n' >"$root.new/etc/hosts"
    mv "$root.new" "$root"
fi
say "$(chroot "$root" mariadbd --version)"

exec 9>"$root/lockstep.lock"
flock -n 9 || fail "another run uses $root: wait for it, or set LOCKSTEP_DEBIAN_13 to another directory"

say "building"
(cd "$here" && cargo build --quiet --locked --release -p lockstep-wsrep -p lockstep -p lockstep-floor)
tests=$(cd "$here" && cargo test --quiet --locked --workspace --features lockstep-lab/servers,lockstep/servers,lockstep-binlog/servers,lockstep-block/servers --test servers --no-run \
    --message-format=json | sed -n 's/.*"executable":"\([^"]*\/servers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$tests" ] || fail "cargo did not report the path of the tests"
# The tests look for the release build in $CARGO_TARGET_DIR/release, inside the root directory, too.
rm -rf "$root/lockstep"
mkdir -p "$root/lockstep/release"
cp "$target/release/liblockstep.so" "$target/release/lockstep" "$root/lockstep/release/"
cp "$tests" "$root/lockstep/"
case $provider in
lockstep) provider=/lockstep/release/liblockstep.so ;;
galera) ;;
*) fail "LOCKSTEP_TEST_PROVIDER must be lockstep or galera here" ;;
esac

# When the namespace's first process ends, the kernel kills the others, and mounts disappear with the last one. That
# includes the shell that would remove the servers' files, so they are removed here.
clean() { [ -n "${LOCKSTEP_LAB_KEEP:-}" ] || rm -rf "$root"/var/tmp/lockstep-*; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --mount --pid --net --fork --kill-child sh -euc '
    root=$1 provider=$2 tests=$3
    shift 3
    ip link set lo up
    mount --make-rprivate /
    # A separate mount, because ip netns changes the mount propagation of /.
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs tmpfs "$root/run"
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin RUST_BACKTRACE=0 \
        CARGO_TARGET_DIR=/lockstep \
        LOCKSTEP_TEST_PROVIDER="$provider" ${LOCKSTEP_LAB_KEEP:+LOCKSTEP_LAB_KEEP=1} "/lockstep/$tests" --test-threads=1 "$@"
' sh "$root" "$provider" "$(basename "$tests")" "$@"
