#!/bin/sh
# Installs the packages that a bare Debian 12 lacks for building and running Lockstep (`setup.sh up`), or also for testing
# it (`setup.sh test`), or only what virtual machines need (`setup.sh vm`, for scripts/vm.sh). It installs only missing
# packages, so a second run takes no time and needs no root.
#
# It does not start Debian's services (MariaDB, the exporter), and disables those that it installs: Lockstep's clusters
# run beside them, on their own ports and folders.
set -eu

purpose=${1:-up}
minor_needed=88 # Rust 1.88, as Cargo.toml says
log=${TMPDIR:-/tmp}/lockstep-setup.$$.log
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin
export PATH DEBIAN_FRONTEND=noninteractive

case $purpose in
up | test | vm) ;;
*)
    echo "usage: scripts/setup.sh up|test|vm" >&2
    exit 2
    ;;
esac

say() { printf '%s\n' "setup: $*"; }
have() { command -v "$1" >/dev/null 2>&1; }

fail() {
    say "$*" >&2
    if [ -s "$log" ]; then
        say "the end of $log:" >&2
        tail -n 25 "$log" >&2
    fi
    exit 1
}

# Runs a command, prints dots meanwhile, and writes its output to the log, which is shown only after a failure.
quietly() {
    what=$1
    shift
    printf 'setup: %s ' "$what"
    "$@" >>"$log" 2>&1 &
    pid=$!
    seconds=0
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 3)) -ne 0 ] || printf '.'
    done
    if wait "$pid"; then
        printf ' done (%s s)\n' "$seconds"
    else
        printf ' FAILED\n'
        return 1
    fi
}

rust_is_recent() {
    have cargo && have rustc || return 1
    for tool in cargo rustc; do
        minor=$("$tool" --version 2>/dev/null | sed -n 's/^[a-z]* 1\.\([0-9]*\)\..*/\1/p')
        [ -n "$minor" ] && [ "$minor" -ge "$minor_needed" ] || return 1
    done
}

# need PROGRAM PACKAGE: adds the package to the list if the program is missing.
packages=
need() {
    have "$1" || packages="$packages $2"
}

need mariadbd mariadb-server
need wsrep_sst_rsync mariadb-server
need mariadb mariadb-client
need mariadb-backup mariadb-backup
need rsync rsync
need socat socat
need lsof lsof
need ss iproute2
need pkill procps
need cc gcc
[ -e /usr/include/stdio.h ] || packages="$packages libc6-dev"
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages="$packages ca-certificates"
if [ "$purpose" = test ]; then
    need sysbench sysbench
    need mkfs.xfs xfsprogs
    need mkfs.ext4 e2fsprogs
    need mount mount
    need nbdinfo libnbd-bin
    need nbdfuse nbdfuse
    need fusermount3 fuse3
    need nbdkit nbdkit
    need qemu-io qemu-utils
    need fio fio
    /usr/bin/python3 -c 'import nbd' 2>/dev/null || packages="$packages python3-libnbd"
    need prometheus-mysqld-exporter prometheus-mysqld-exporter
    need javac default-jdk-headless
    need mvn maven
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
    [ -e /usr/lib/galera/libgalera_smm.so ] || packages="$packages galera-4"
    [ -e /usr/share/mysql/mysql-test/mariadb-test-run.pl ] || packages="$packages mariadb-test"
fi
if [ "$purpose" != vm ] && ! rust_is_recent; then
    if have rustup; then
        fail "Rust $(rustc --version 2>/dev/null || echo 'of unknown version') is too old: run 'rustup update stable'"
    fi
    packages="$packages rustc-web cargo-web"
fi
if [ "$purpose" = test ] && ! have rustfmt && ! have rustup; then
    packages="$packages rustfmt-web"
fi

if [ "$purpose" = vm ]; then
    # Not the list above: the guests have their own MariaDB.
    packages=
    need qemu-system-x86_64 qemu-system-x86
    need mmdebstrap mmdebstrap
    need ip iproute2
    need mkfs.ext4 e2fsprogs
    need ssh openssh-client
fi

# A temporary file that keeps newly installed services from starting.
guard=
cleanup() {
    [ -z "$guard" ] || rm -f "$guard"
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -n "$packages" ]; then
    packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')
    [ "$(id -u)" = 0 ] || fail "these packages are missing: ${packages}(run this as root, or install them)"
    have apt-get || fail "these packages are missing: ${packages}(this script supports only Debian's apt-get)"
    say "missing packages: $packages"
    quietly "reading the list of packages" apt-get update || fail "apt-get update failed"
    services=
    case " $packages " in *" mariadb-server "*) services="$services mariadb" ;; esac
    case " $packages " in
    *" prometheus-mysqld-exporter "*) services="$services prometheus-mysqld-exporter" ;;
    esac
    case $services in
    ?*)
        if [ ! -e /usr/sbin/policy-rc.d ]; then
            guard=/usr/sbin/policy-rc.d
            printf '#!/bin/sh\nexit 101\n' >"$guard"
            chmod 755 "$guard"
        fi
        ;;
    esac
    # shellcheck disable=SC2086 # a list of words
    quietly "installing them" apt-get install -y --no-install-recommends $packages ||
        fail "apt-get install failed"
    if [ -n "$services" ] && have systemctl; then
        # shellcheck disable=SC2086 # a list of words
        systemctl disable $services >>"$log" 2>&1 || true
    fi
    hash -r
fi

[ "$purpose" != vm ] || exit 0
rust_is_recent || fail "cargo and rustc 1.$minor_needed or later are needed, and Debian's packages do not provide them"

if [ "$purpose" = test ] && ! have cargo-deny; then
    say "building cargo-deny, which checks licences and sources of dependencies: takes minutes, once"
    quietly "building cargo-deny" cargo install --locked --version 0.20.2 cargo-deny ||
        fail "cargo install cargo-deny failed"
fi

# An S3 server for the test of archives.
moto=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/moto
if [ "$purpose" = test ] && [ ! -x "$moto/bin/moto_server" ]; then
    quietly "installing moto, an S3 server for tests, in $moto" sh -c '
        python3 -m venv "$1" && "$1/bin/pip" install "moto[server]==5.2.1"' sh "$moto" ||
        fail "moto could not be installed"
fi

# Libraries that read a binlog, for the tests of `lockstep binlog serve`. Without one its test is left out.
consumers=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/consumers
if [ "$purpose" = test ] && [ ! -e "$consumers/mysql-binlog-connector-java.jar" ]; then
    quietly "installing mysql-binlog-connector-java in $consumers" sh -c '
        mvn --batch-mode dependency:copy -Dartifact=com.zendesk:mysql-binlog-connector-java:0.30.1 \
            -DoutputDirectory="$1" -Dmdep.stripVersion=true' sh "$(realpath -m "$consumers")" ||
        say "mysql-binlog-connector-java could not be installed: its test will be left out"
fi
if [ "$purpose" = test ] && [ ! -e "$consumers/python/lib" ]; then
    quietly "installing python-mysql-replication in $consumers" sh -c '
        python3 -m venv "$1" && "$1/bin/pip" install "mysql-replication==1.0.17" || { rm -rf "$1"; exit 1; }' \
        sh "$consumers/python" ||
        say "python-mysql-replication could not be installed: its test will be left out"
fi
