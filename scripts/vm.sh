#!/bin/bash
# Two small virtual machines with Debian 12's kernel, for what needs kernel modules: DRBD, the kernel's NBD client, netem.
#
#     scripts/vm.sh check            exit code 0, or 77 and the reason why virtual machines cannot run here
#     scripts/vm.sh build            makes the image of the root file system and the data disks, unless they exist: root
#     scripts/vm.sh start [a|b]...   starts both guests, or those named, and waits until they answer
#     scripts/vm.sh hold             starts both, prints "ready", and stops them when its standard input ends
#     scripts/vm.sh run a COMMAND    runs a shell command in a guest as root; its output and exit code are the command's
#     scripts/vm.sh copy a FILE PATH copies a file into a guest
#     scripts/vm.sh kill a           switches a guest off at once, like a power failure
#     scripts/vm.sh stop             ends both guests
#     scripts/vm.sh status           says which guests run
#
# Each guest has one processor, a root file system in memory and on a temporary overlay (forgotten at its end), a data disk
# /dev/disk/by-id/virtio-data (kept), a link to the other guest (eth1: 10.77.0.1 is a, 10.77.0.2 is b), and a port for ssh
# on the host's loopback. The link is a pair of unix sockets between the two QEMU processes: it needs no right beyond
# /dev/kvm.
#
# VM_DIR    the folder of images and sockets [target/vm]; keep its path short, because sockets have paths of 107 bytes
# VM_DISK   MiB of a data disk [3072]: written once, so that later writes do not allocate
# VM_MEMORY MiB of a guest [1024]
# VM_ACCEL  kvm, or where there is no KVM: uml, Debian's user-mode-linux, a kernel of the same version that is a process
#           of the host; or tcg: QEMU emulates the processors [kvm]
#
# With uml, the guests share the host's processors and its cache of the disk. Their link is a bridge in a network namespace
# of their own, which needs root. A system call takes some 30 microseconds.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=${VM_DIR:-${CARGO_TARGET_DIR:-$root/target}/vm}
disk=${VM_DISK:-3072}
memory=${VM_MEMORY:-1024}
accel=${VM_ACCEL:-kvm}
suite=bookworm
skipped=77
PATH=$PATH:/usr/sbin:/sbin

# The namespace of the link between the guests of user-mode-linux. Its name says whose it is.
namespace=lockstep-vm-$(printf '%s' "$dir" | cksum | cut -d ' ' -f 1)

# In the image. The guests use only what Debian ships: its kernel with its DRBD 8.4, its MariaDB, its tools.
case $accel in
uml) kernel=(user-mode-linux) image=$dir/root-uml.img versions=$dir/versions-uml ;;
*) kernel=(linux-image-amd64 initramfs-tools) image=$dir/root.img versions=$dir/versions ;;
esac
packages=("${kernel[@]}" systemd-sysv systemd udev kmod iproute2 iputils-ping openssh-server procps
    drbd-utils nbd-client nbdkit fio sysbench mariadb-server e2fsprogs xfsprogs mount zstd)

say() { printf 'vm: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

skip() {
    say "skipped: $*"
    exit "$skipped"
}

check() {
    [ "$(uname -m)" = x86_64 ] || skip "the virtual machines are for x86_64, and this machine is $(uname -m)"
    local program programs="qemu-system-x86_64 ssh ssh-keygen"
    local emulate="VM_ACCEL=uml runs the guests' kernels as processes of this machine, and needs no KVM"
    case $accel in
    tcg) ;;
    uml)
        [ "$(id -u)" = 0 ] || skip "the link between guests of user-mode-linux is a network namespace, which needs root"
        [ -e /dev/net/tun ] || skip "/dev/net/tun is missing: the link between guests of user-mode-linux needs it"
        # Its kernel 6.1 has no room for their registers, and ends at the first process.
        ! grep -qsw amx_tile /proc/cpuinfo ||
            skip "Debian 12's user-mode-linux does not run on processors with AMX: use another machine, or VM_ACCEL=tcg"
        programs="ip ssh ssh-keygen"
        ;;
    kvm)
        [ -e /dev/kvm ] ||
            skip "/dev/kvm is missing: this machine cannot run virtual machines, or its kernel lacks KVM ($emulate)"
        if [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then
            skip "/dev/kvm may not be used by $(id -un): join the group kvm, or run as root ($emulate)"
        fi
        # KVM without the processor's help (PVM) runs only kernels made for it. It interprets Debian's kernel one
        # instruction at a time: a boot takes a quarter of an hour.
        if [ ! -e /sys/module/kvm_intel ] && [ ! -e /sys/module/kvm_amd ]; then
            skip "/dev/kvm has no processor behind it (neither kvm_intel nor kvm_amd): $emulate"
        fi
        ;;
    *) fail "VM_ACCEL=$accel: expected kvm, uml or tcg" ;;
    esac
    for program in $programs; do
        command -v "$program" >/dev/null || skip "$program is missing: run scripts/setup.sh vm"
    done
}

# The host's own sources of Debian packages, mirrors and proxies included; Debian's public ones if it has none.
sources() {
    local line
    apt-get indextargets --format "\$(REPO_URI) \$(RELEASE) \$(COMPONENT)" \
        'Created-By: Packages' 'Origin: Debian' 2>/dev/null | while read -r line; do
        case $line in
        *" $suite"*) printf 'deb %s\n' "$line" ;;
        esac
    done | sort -u
}

# Settings of the image. Runs on the host, with the folder of the new root.
customize() {
    local new=$1
    echo guest >"$new/etc/hostname"
    printf '127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n' >"$new/etc/hosts"
    printf 'LABEL=guest / ext4 rw,noatime 0 0\n' >"$new/etc/fstab"
    mkdir -p "$new/root/.ssh" "$new/data"
    cp "$dir/key.pub" "$new/root/.ssh/authorized_keys"
    chmod 700 "$new/root/.ssh"
    printf 'PermitRootLogin prohibit-password\nUseDNS no\nUsePAM no\n' >"$new/etc/ssh/sshd_config.d/guest.conf"

    cat >"$new/usr/local/sbin/guest-network" <<'GUEST'
#!/bin/sh
# The addresses of this guest, whose name the kernel's command line has.
set -eu
name=$(sed -n 's/.*guest\.name=\([a-z]*\).*/\1/p' /proc/cmdline)
case $name in
a) host=1 ;;
b) host=2 ;;
*) exit 1 ;;
esac
hostname "$name"
ip link set lo up
if [ -e /sys/class/net/vec0 ]; then
    # User-mode Linux: one interface for both.
    ip link set vec0 name eth1
    mkdir -p /dev/disk/by-id
    ln -sf /dev/ubdb /dev/disk/by-id/virtio-data
else
    ip address add 10.0.2.15/24 dev eth0
    ip link set eth0 up
fi
ip address add "10.77.0.$host/24" dev eth1
# User-mode Linux has frames of 1500 bytes, and hands over longer segments whole.
ip link set eth1 mtu 9000 2>/dev/null || true
ip link set eth1 up
# 85 ms at a gigabit need windows of 11 MB.
sysctl -q -w net.core.rmem_max=33554432 net.core.wmem_max=33554432 \
    net.ipv4.tcp_rmem='4096 131072 33554432' net.ipv4.tcp_wmem='4096 65536 33554432'
GUEST
    chmod 755 "$new/usr/local/sbin/guest-network"
    cat >"$new/etc/systemd/system/guest-network.service" <<'GUEST'
[Unit]
DefaultDependencies=no
After=systemd-udevd.service systemd-udev-trigger.service
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/guest-network
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
GUEST
    local unit
    for unit in mariadb nbd-client drbd apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
        e2scrub_all.timer e2scrub_reap systemd-timesyncd man-db.timer xfs_scrub_all.timer; do
        chroot "$new" systemctl mask "$unit" >/dev/null 2>&1 || true
    done
    # No more than the guest needs for a start: `run` starts MariaDB itself.
    chroot "$new" systemctl enable guest-network ssh >/dev/null 2>&1
    rm -rf "$new"/usr/share/doc "$new"/usr/share/man "$new"/usr/share/locale "$new"/var/cache/apt "$new"/var/lib/apt/lists
}

build_image() {
    [ "$(id -u)" = 0 ] || fail "the image is made with mmdebstrap, which needs root here"
    local program
    for program in mmdebstrap mkfs.ext4; do
        command -v "$program" >/dev/null || fail "$program is missing: run scripts/setup.sh vm"
    done
    local new=$dir/root.new
    rm -rf "$new"
    [ -s "$dir/key" ] || ssh-keygen -q -t ed25519 -N '' -C lockstep-vm -f "$dir/key"
    sources >"$dir/sources.list"
    [ -s "$dir/sources.list" ] || printf 'deb http://deb.debian.org/debian %s main\ndeb %s %s-security main\n' \
        "$suite" http://deb.debian.org/debian-security "$suite" >"$dir/sources.list"
    # What the host says of its proxies and of old mirrors holds for the image, too.
    apt-config dump | grep -E '^Acquire::(http|https|Check-)[^ ]* "' >"$dir/apt.conf" || true
    local list
    list=$(
        IFS=,
        printf '%s' "${packages[*]}"
    )
    say "making the root file system from Debian's packages: takes some minutes, once"
    # MODULES=most: the guests' disks are virtio, whatever the host has.
    if ! mmdebstrap --mode=root --variant=minbase --include="$list" --aptopt="$dir/apt.conf" \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' "$suite" "$new" "$dir/sources.list" >"$dir/build.log" 2>&1; then
        tail -n 25 "$dir/build.log" >&2
        rm -rf "$new"
        fail "mmdebstrap failed: its output is in $dir/build.log"
    fi
    customize "$new"
    if [ "$accel" = uml ]; then
        cp "$new/usr/bin/linux.uml" "$dir/linux.uml"
        mkdir -p "$new/lib/modules"
        local modules
        for modules in "$new"/usr/lib/uml/modules/*; do
            ln -s "/usr/lib/uml/modules/${modules##*/}" "$new/lib/modules/"
        done
    else
        cp "$new"/boot/vmlinuz-* "$dir/vmlinuz"
        cp "$new"/boot/initrd.img-* "$dir/initrd.img"
    fi
    chroot "$new" dpkg-query -W "${kernel[0]}" drbd-utils mariadb-server fio nbd-client >"$versions"
    rm -rf "${new:?}"/boot/*
    rm -f "$image.new"
    truncate -s 4G "$image.new"
    mkfs.ext4 -q -L guest -E lazy_itable_init=1 -d "$new" "$image.new"
    rm -rf "$new"
    mv "$image.new" "$image"
    say "made $image ($(du -m "$image" | cut -f1) MB)"
}

# A data disk is written once here: the first writes of a sparse or preallocated file would also measure the host's
# file system.
build_disks() {
    local guest file
    for guest in a b; do
        file=$dir/data-$guest.img
        [ ! -s "$file" ] || [ "$(stat -c %s "$file")" != $((disk << 20)) ] || continue
        dd if=/dev/zero of="$file.new" bs=4M count=$((disk / 4)) oflag=direct conv=fsync status=none ||
            fail "cannot write $file.new: there must be room for two files of $disk MiB, and direct I/O"
        mv "$file.new" "$file"
    done
}

build() {
    check
    mkdir -p "$dir"
    chmod 700 "$dir"
    [ -s "$image" ] || build_image
    build_disks
}

# Whether the process is still the guest's: after a reboot, another one may have its number.
is_running() { [ -s "$dir/$1.pid" ] && grep -qsF "$dir/" "/proc/$(cat "$dir/$1.pid")/cmdline"; }

known() {
    case $1 in
    a | b) ;;
    *) fail "there is no guest $1: they are a and b" ;;
    esac
}

in_namespace() { ip -n "$namespace" "$@"; }

# A bridge with a port for each guest, and an address for ssh.
make_link() {
    [ ! -e "/run/netns/$namespace" ] || return 0
    ip netns add "$namespace"
    # Not half a link: the next start would take it for a whole one.
    { make_bridge && make_port a && make_port b; } || {
        remove_link
        fail "cannot make the link between the guests"
    }
}

make_bridge() {
    in_namespace link add bridge type bridge && in_namespace link set bridge mtu 9000 &&
        in_namespace address add 10.77.0.254/24 dev bridge && in_namespace link set bridge up
}

make_port() {
    in_namespace tuntap add dev "tap-$1" mode tap && in_namespace link set "tap-$1" mtu 9000 master bridge &&
        in_namespace link set "tap-$1" up
}

remove_link() { [ ! -e "/run/netns/$namespace" ] || ip netns delete "$namespace"; }

# Starts user-mode Linux. What a guest writes to its root file system goes to a file beside the image.
launch_uml() {
    local guest=$1 host=1
    [ "$guest" = a ] || host=2
    make_link
    rm -rf "$dir/$guest.cow" "$dir/uml-$guest"
    mkdir -p "$dir/uml-$guest"
    setsid ip netns exec "$namespace" "$dir/linux.uml" "mem=${memory}M" "uml_dir=$dir/uml-$guest/" umid=guest \
        "ubda=$dir/$guest.cow,$image" "ubdb=$dir/data-$guest.img" \
        "vec0:transport=tap,ifname=tap-$guest,depth=128,gro=1,mac=52:54:00:77:00:0$host" \
        root=/dev/ubda rw "guest.name=$guest" con=null con0=null,fd:1 ssl=null \
        </dev/null >"$dir/$guest.log" 2>&1 &
    echo $! >"$dir/$guest.pid"
    # Or else bash reports its end.
    disown
    sleep 0.5
    is_running "$guest" || fail "guest $guest does not start: $(tail -n 3 "$dir/$guest.log")"
}

# Starts QEMU. A port that is in use makes QEMU fail at once; another one is tried then.
launch_qemu() {
    local guest=$1 other=b host=1 port tries processor=max
    # Without ARCH_CAPABILITIES, which KVM inside a virtual machine may refuse to set.
    [ "$accel" = tcg ] || processor=host,-arch-capabilities
    [ "$guest" = a ] || {
        other=a
        host=2
    }
    for tries in 1 2 3 4 5; do
        rm -f "$dir/$guest.sock"
        port=$((18000 + (RANDOM % 900)))
        TMPDIR=$dir setsid qemu-system-x86_64 -name "lockstep-$guest" -machine q35 -accel "$accel" -cpu "$processor" -smp 1 -m "$memory" \
            -nodefaults -display none -no-reboot \
            -kernel "$dir/vmlinuz" -initrd "$dir/initrd.img" \
            -append "root=LABEL=guest rw console=ttyS0 net.ifnames=0 guest.name=$guest" \
            -serial "file:$dir/$guest.log" -device virtio-rng-pci \
            -drive "file=$image,format=raw,if=none,id=root,snapshot=on,cache=unsafe" \
            -device virtio-blk-pci,drive=root,serial=root \
            -drive "file=$dir/data-$guest.img,format=raw,if=none,id=data,cache=none,aio=native" \
            -device virtio-blk-pci,drive=data,serial=data \
            -netdev "user,id=host,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" \
            -device virtio-net-pci,netdev=host \
            -netdev "dgram,id=link,local.type=unix,local.path=$dir/$guest.sock,remote.type=unix,remote.path=$dir/$other.sock" \
            -device "virtio-net-pci,netdev=link,mac=52:54:00:77:00:0$host,host_mtu=9000" \
            </dev/null >"$dir/$guest.err" 2>&1 &
        echo $! >"$dir/$guest.pid"
        # Or else bash reports its end.
        disown
        echo "$port" >"$dir/$guest.port"
        sleep 0.5
        ! is_running "$guest" || return 0
        grep -q 'host forwarding' "$dir/$guest.err" || break
    done
    rm -f "$dir/$guest.pid"
    fail "guest $guest does not start after $tries tries: $(tail -n 3 "$dir/$guest.err")"
}

secure() {
    local guest=$1 host=127.0.0.1 port inside=()
    shift
    if [ "$accel" = uml ]; then
        host=10.77.0.1 port=22
        [ "$guest" = a ] || host=10.77.0.2
        inside=(ip netns exec "$namespace")
    else
        port=$(cat "$dir/$guest.port")
    fi
    "${inside[@]}" ssh -o LogLevel=ERROR -T -i "$dir/key" -p "$port" -o BatchMode=yes -o StrictHostKeyChecking=no \
        -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30 -o ServerAliveInterval=5 -o ServerAliveCountMax=12 \
        "root@$host" "$@"
}

start() {
    local guest deadline patience=180
    [ "$accel" != tcg ] || patience=900
    [ $# -gt 0 ] || set -- a b
    for guest in "$@"; do
        known "$guest"
        is_running "$guest" || case $accel in
        uml) launch_uml "$guest" ;;
        *) launch_qemu "$guest" ;;
        esac
    done
    for guest in "$@"; do
        deadline=$((SECONDS + patience))
        until secure "$guest" true </dev/null 2>/dev/null; do
            is_running "$guest" || fail "guest $guest ended while it started: see $dir/$guest.log"
            [ $SECONDS -lt $deadline ] || fail "guest $guest does not answer after $patience s: see $dir/$guest.log"
            sleep 0.3
        done
    done
}

# Ends a guest's process and waits for it. User-mode Linux has a process for each process of the guest, in one group.
kill_guest() {
    local pid
    known "$1"
    is_running "$1" || return 0
    pid=$(cat "$dir/$1.pid")
    kill -9 -- "-$pid" 2>/dev/null || true
    for _ in {1..250}; do
        kill -0 -- "-$pid" 2>/dev/null || break
        sleep 0.02
    done
    rm -rf "$dir/$1.pid" "$dir/$1.port" "$dir/$1.sock" "$dir/$1.cow" "$dir/uml-$1"
}

stop() {
    kill_guest a
    kill_guest b
    [ "$accel" != uml ] || remove_link
}

action=${1:-}
[ $# = 0 ] || shift
case $action in
check) check ;;
build) build ;;
start)
    build
    start "$@"
    ;;
hold)
    # For a program that measures: the guests end with it, and are its descendants, whose processor time it can tell.
    trap stop EXIT
    build
    start
    echo ready
    cat >/dev/null
    ;;
run)
    [ $# -ge 2 ] || fail "usage: vm.sh run a|b COMMAND"
    known "$1"
    is_running "$1" || fail "guest $1 does not run: scripts/vm.sh start"
    code=0
    secure "$@" || code=$?
    if [ "$code" = 255 ]; then
        if is_running "$1"; then say "guest $1 runs, and its ssh failed"; else say "guest $1 has ended"; fi
    fi
    exit "$code"
    ;;
copy)
    [ $# = 3 ] || fail "usage: vm.sh copy a|b FILE PATH"
    known "$1"
    is_running "$1" || fail "guest $1 does not run: scripts/vm.sh start"
    mode=$(stat -c %a "$2")
    secure "$1" "cat >'$3.new' && chmod $mode '$3.new' && mv '$3.new' '$3'" <"$2"
    ;;
kill) kill_guest "${1:?which guest}" ;;
stop) stop ;;
status)
    for guest in a b; do
        if is_running "$guest"; then echo "$guest runs (pid $(cat "$dir/$guest.pid"))"; else echo "$guest is off"; fi
    done
    ;;
*) fail "usage: vm.sh check|build|start|hold|run|copy|kill|stop|status (the file begins with a description)" ;;
esac
