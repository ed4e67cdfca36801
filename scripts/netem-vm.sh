#!/bin/sh
# Runs a command in a QEMU virtual machine with Debian's kernel, which has netem. The guest uses this machine's files.
#
#     scripts/netem-vm.sh [COMMAND [ARGUMENT...]]      as root; default: the tests of the lab's delay lines
#
# The guest mounts this machine's root read-only and keeps its writes in memory, except for /mnt, which is the folder `out`
# below. It has a loopback and no network device. Its processors are always emulated, so that it runs wherever QEMU does.
# It is about ten times slower; for times take the shortest of several tries. The script installs Debian's QEMU package if
# it is missing, and unpacks the kernel's without installing it.
#
# LOCKSTEP_NETEM_VM names the folder [/var/cache/lockstep/netem-vm]; it takes 500 MB. MEMORY [6G] and MINUTES [60] limit the
# guest.
set -eu

folder=${LOCKSTEP_NETEM_VM:-/var/cache/lockstep/netem-vm}
here=$(cd "$(dirname "$0")/.." && pwd)
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin
export PATH

say() { printf '%s\n' "netem-vm: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "the guest reads this machine's files as root: run this with sudo"
[ "$(uname -m)" = x86_64 ] || fail "this script supports x86_64 only"

if ! command -v qemu-system-x86_64 >/dev/null; then
    say "installing qemu-system-x86"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 >/dev/null ||
        fail "apt-get could not install qemu-system-x86"
fi
if [ ! -e "$folder/guest/bin/busybox" ]; then
    # linux-image-amd64 depends on the package with the current kernel version.
    kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$kernel" ] || fail "apt-cache does not list linux-image-amd64: run apt-get update"
    say "fetching $kernel and busybox-static"
    # The folder gets its final name once it is complete.
    rm -rf "$folder/guest" "$folder/guest.new"
    mkdir -p "$folder/guest.new"
    (cd "$folder/guest.new" && apt-get download -qq -o APT::Sandbox::User=root "$kernel" busybox-static) || fail "apt-get could not download them"
    for package in "$folder/guest.new"/*.deb; do dpkg-deb -x "$package" "$folder/guest.new"; done
    rm "$folder/guest.new"/*.deb
    mv "$folder/guest.new" "$folder/guest"
fi
guest=$folder/guest
release=$(ls "$guest/lib/modules")
busybox=$guest/bin/busybox
say "Linux $release, $(qemu-system-x86_64 --version | head -n 1)"

# The initial RAM disk mounts this machine's root, and has the network modules: the kernel calls /sbin/modprobe here,
# whatever root directory the requesting process has.
start=$(mktemp -d)
trap 'rm -rf "$start"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
modules=$start/lib/modules/$release
mkdir -p "$start/bin" "$start/sbin" "$start/dev" "$start/proc" "$start/sys" "$start/lower" "$start/rw" "$start/root" "$modules"
cp "$busybox" "$start/bin/"
ln -s busybox "$start/bin/sh"
ln -s ../bin/busybox "$start/sbin/modprobe"
(cd "$guest/lib/modules/$release/kernel" && cp --parents -r net/9p net/802 net/llc net/bridge net/sched fs/9p fs/netfs fs/fscache \
    fs/overlayfs drivers/virtio drivers/net/tun.ko drivers/net/veth.ko "$modules")
"$busybox" depmod -b "$start" "$release"
cat >"$start/init" <<'END'
#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in virtio_pci 9pnet_virtio 9p overlay tun; do modprobe $module; done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $options,cache=loose,ro root /lower
mount -t tmpfs rw /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /root
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for at in proc sys dev; do mount --rbind /$at /root/$at; done
for at in dev/shm run tmp; do mount -t tmpfs -o mode=1777 tmpfs /root/$at; done
mount -t 9p -o $options out /root/mnt
ip link set lo up
chroot /root /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    LOCKSTEP_TEST_SLOWER_MS=5 sh /mnt/command
echo "netem-vm: exit $?"
poweroff -f
END
chmod 755 "$start/init"
(cd "$start" && find . | "$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$folder/start.gz"

mkdir -p "$folder/out"
if [ $# = 0 ]; then
    say "building"
    # built TARGET...: prints the path of the test binary $name.
    built() { (cd "$here" && cargo test --quiet --locked --workspace --features lockstep-lab/servers,lockstep/servers "$@" --no-run \
        --message-format=json) | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep "/$name-[0-9a-f]*$" | tail -n 1; }
    name=lockstep_lab unit=$(built --lib)
    name=netem words=$(built --test netem)
    name=servers real=$(built --test servers)
    [ -x "$unit" ] && [ -x "$words" ] && [ -x "$real" ] || fail "cargo did not report the paths of the tests"
    # shellcheck disable=SC2016 # expanded in the guest
    set -- sh -c 'cd "$0/testing/lockstep-lab" && "$1" --test-threads=1 wan:: netns:: && "$2" --test-threads=1 --nocapture &&
        "$3" --test-threads=1 --nocapture wan::' "$here" "$unit" "$words" "$real"
fi
quoted() { printf " '%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }
{
    printf 'cd%s\nexec' "$(quoted "$PWD")"
    for word in "$@"; do quoted "$word"; done
    echo
} >"$folder/out/command"

say "starting the guest; its /mnt is $folder/out"
timeout "${MINUTES:-60}m" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${MEMORY:-6G}" -nodefaults -no-user-config \
    -display none -nic none -no-reboot -serial stdio -kernel "$guest/boot/vmlinuz-$release" -initrd "$folder/start.gz" \
    -append "console=ttyS0 loglevel=4 panic=-1" \
    -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$folder/out,mount_tag=out,security_model=none" </dev/null 2>&1 | sed -u 's/\r$//' | tee "$folder/console"
code=$(sed -n 's/^netem-vm: exit \([0-9]*\)$/\1/p' "$folder/console" | tail -n 1)
[ -n "$code" ] || fail "the guest did not shut down in order: see $folder/console"
exit "$code"
