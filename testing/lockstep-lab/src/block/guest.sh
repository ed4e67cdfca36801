#!/bin/sh
# The part of `lockstep lab block` that runs in a guest (see scripts/vm.sh). The host calls one command at a time.
#
#     guest clear                           ends whatever uses the data disk
#     guest delay MS                        delays what this guest sends to the other by so much
#     guest raw                             the data disk itself
#     guest nbdkit                          a file on the data disk, served by nbdkit without replication
#     guest drbd-create A|B|C               a DRBD resource on the data disk; then on the primary: drbd-first
#     guest lockstep-start A|B|C MiB CACHE  a member of ours, and on b an arbitrator; then on the primary: lockstep-first
#     guest fio ARGUMENTS                   fio's JSON of a load on the device
#     guest mariadb THREADS SECONDS         sysbench's report of oltp_write_only, MariaDB on ext4 on the device
#     guest drbd-take, lockstep-take        takes over from a primary that is gone, and says "promoted", then "written"
#     guest drbd-leave, drbd-return, lockstep-leave, lockstep-return    the replica goes away, and comes back up to date
set -eu
PATH=$PATH:/usr/sbin:/sbin
disk=/dev/disk/by-id/virtio-data
name=$(hostname)
device=$(cat /run/device 2>/dev/null || true)

# Waits until a command succeeds, so many tenths of a second at most.
until_ok() {
    tenths=$1
    shift
    while ! "$@" >/dev/null 2>&1; do
        tenths=$((tenths - 1))
        if [ "$tenths" -le 0 ]; then
            echo "not in time: $*" >&2
            return 1
        fi
        sleep 0.1
    done
}

# Waits until the server, a process of this shell, takes clients. Fails with its errors if it ends.
until_mariadb_answers() {
    tenths=1200
    until mariadb-admin --socket=/run/lab/mariadb.sock ping >/dev/null 2>&1; do
        tenths=$((tenths - 1))
        if [ "$tenths" -le 0 ] || ! kill -0 "$1" 2>/dev/null; then
            echo "MariaDB does not answer:" >&2
            grep -F '[ERROR]' /run/mariadbd.log >&2 || tail -n 5 /run/mariadbd.log >&2
            return 1
        fi
        sleep 0.1
    done
}

# The device that the loads use.
use() {
    echo "$1" >/run/device
    echo none >"/sys/block/$(basename "$(readlink -f "$1")")/queue/scheduler" 2>/dev/null || true
}

quietly() { "$@" >/dev/null 2>&1 || true; }

clear_disk() {
    quietly mariadb-admin --socket=/run/lab/mariadb.sock shutdown
    quietly pkill -9 mariadbd
    quietly umount /mnt
    quietly nbd-client -d /dev/nbd0
    quietly pkill -9 -x lockstep
    quietly pkill -9 -x nbdkit
    until_ok 50 sh -c '! pgrep -x lockstep && ! pgrep -x nbdkit'
    quietly umount /data
    if [ -e /proc/drbd ]; then
        quietly drbdadm down r0
        # A primary that has lost its peer, or is busy, must go as well.
        quietly drbdsetup down r0
    fi
    rm -f /run/device
}

# Neither DRBD nor a file system is to find what was there before.
wipe() {
    wipefs -q -a "$disk"
    dd if=/dev/zero of="$disk" bs=1M count=1 oflag=direct conv=fsync status=none
}

# A file system for what keeps its data in files.
data() {
    wipe
    mkfs.ext4 -q -F "$disk"
    mount -o noatime "$disk" /data
}

drbd_conf() {
    cat >/etc/drbd.conf <<CONF
global { usage-count no; }
resource r0 {
    protocol $1;
    disk { disk-flushes yes; md-flushes yes; al-extents 6007; c-max-rate 1G; resync-rate 200M; }
    net { max-buffers 8000; max-epoch-size 8000; }
    device /dev/drbd0;
    disk $disk;
    meta-disk internal;
    on a { address 10.77.0.1:7789; }
    on b { address 10.77.0.2:7789; }
}
CONF
}

lockstep_serve() {
    address=10.77.0.2
    [ "$name" = b ] || address=10.77.0.1
    everyone=gcomm://10.77.0.1:4567,10.77.0.2:4567,10.77.0.2:4568
    # shellcheck disable=SC2086 # options that may be none
    setsid lockstep block serve --address $everyone --group disk --name "$name" --dir /data/member \
        --options "gmcast.listen_addr=tcp://$address:4567; base_host=$address" --listen unix:/run/disk.nbd \
        --log /data/member.log "$@" </dev/null >/data/member.err 2>&1 &
}

lockstep_status() { lockstep block status --dir /data/member --json; }

# A number of the status.
number() { lockstep_status 2>/dev/null | sed -n "s/.*\"$1\":\([0-9-]*\).*/\1/p"; }

is_whole() {
    seqno=$(number seqno)
    [ -n "$seqno" ] && [ "$seqno" -ge "${1:-0}" ] && [ "$(number written_seqno)" = "$seqno" ]
}

all_vote() { lockstep status --json --socket /data/member/lockstep.sock | grep -q '"voters_connected":3'; }

# Makes both disks count as equal, because a first copy is not what is measured. DRBD refuses it for a moment after the
# connection was made.
drbd_equal() {
    drbdadm -- --clear-bitmap new-current-uuid r0 || true
    drbdadm dstate r0 | grep -qx UpToDate/UpToDate
}

# Attaches the kernel's client by an export's name.
attach() { nbd-client -unix /run/disk.nbd -name "$1" -timeout 0 /dev/nbd0; }

# The first write of a client after a failover.
first_write() {
    dd if=/dev/zero of="$1" bs=4096 count=1 oflag=direct conv=fsync status=none
    echo written
}

command=$1
shift
case $command in
clear) clear_disk ;;
delay)
    tc qdisc del dev eth1 root 2>/dev/null || true
    [ "$1" = 0 ] || tc qdisc add dev eth1 root netem delay "$1ms" limit 100000
    ;;
raw) use "$disk" ;;
nbdkit)
    data
    fallocate -l "$1M" /data/image
    dd if=/dev/zero of=/data/image bs=1M count="$1" oflag=direct conv=notrunc,fsync status=none
    nbdkit -U /run/disk.nbd -e disk file /data/image
    modprobe nbd
    attach disk
    use /dev/nbd0
    ;;
drbd-create)
    modprobe drbd
    drbd_conf "$1"
    wipe
    yes yes | drbdadm create-md --force r0 >/dev/null
    drbdadm up r0
    ;;
drbd-first)
    until_ok 600 sh -c 'drbdadm cstate r0 | grep -qx Connected'
    until_ok 100 drbd_equal
    until_ok 100 drbdadm primary r0
    use /dev/drbd0
    ;;
lockstep-start)
    modprobe nbd
    data
    protocol=$1 size=$2 cache=$3
    set -- --protocol "$protocol" --cache "$cache"
    echo "$*" >/data/options
    if [ "$name" = a ]; then
        lockstep_serve "$@" --new --size "${size}M"
        until_ok 600 lockstep_status
    else
        lockstep_serve "$@"
        setsid lockstep arbitrator --address gcomm://10.77.0.1:4567,10.77.0.2:4567 --group disk --name arbitrator \
            --dir /data/arbitrator --options 'gmcast.listen_addr=tcp://10.77.0.2:4568; base_host=10.77.0.2' \
            --log /data/arbitrator.log </dev/null >/data/arbitrator.err 2>&1 &
        until_ok 600 is_whole 1
    fi
    ;;
lockstep-first)
    until_ok 600 all_vote
    attach disk
    use /dev/nbd0
    ;;
fio)
    # After MariaDB's load at another distance. fio writes to no device that is mounted.
    if mountpoint -q /mnt; then
        mariadb-admin --socket=/run/lab/mariadb.sock shutdown
        until_ok 1200 umount /mnt
    fi
    fio --name=load --filename="$device" --direct=1 --randrepeat=0 --norandommap --group_reporting \
        --output-format=json "$@"
    ;;
mariadb)
    threads=$1 seconds=$2
    if ! mountpoint -q /mnt; then
        mkfs.ext4 -q -F "$device"
        mount -o noatime "$device" /mnt
        cp -a /var/lib/mysql /mnt/data
        install -d -o mysql /run/lab
        # The default limit of the pool is 8 TiB of addresses, which a process of user-mode Linux does not have.
        setsid mariadbd --no-defaults --user=mysql --datadir=/mnt/data --socket=/run/lab/mariadb.sock --skip-networking \
            --innodb-buffer-pool-size=128M --loose-innodb-buffer-pool-size-max=128M --innodb-log-file-size=96M --innodb-flush-method=O_DIRECT \
            --innodb-flush-log-at-trx-commit=1 --skip-log-bin --pid-file=/run/lab/mariadb.pid --max-connections=200 \
            </dev/null >/run/mariadbd.log 2>&1 &
        until_mariadb_answers "$!"
        mariadb --socket=/run/lab/mariadb.sock -e 'CREATE DATABASE sbtest'
        sysbench oltp_write_only --mysql-socket=/run/lab/mariadb.sock --mysql-user=root --tables=4 --table-size=5000 prepare >/dev/null
    fi
    sysbench oltp_write_only --mysql-socket=/run/lab/mariadb.sock --mysql-user=root --tables=4 --table-size=5000 \
        --rand-type=uniform --threads="$threads" --time="$seconds" --percentile=99 run
    ;;
drbd-take)
    until_ok 1200 drbdadm primary r0
    echo promoted
    first_write /dev/drbd0
    ;;
lockstep-take)
    until_ok 1200 sh -c 'lockstep block promote --dir /data/member --force >/run/export'
    echo promoted
    attach "$(cat /run/export)" >/dev/null
    first_write /dev/nbd0
    ;;
drbd-leave) drbdadm disconnect r0 ;;
drbd-return)
    drbdadm connect r0
    until_ok 6000 sh -c 'drbdadm dstate r0 | grep -qx UpToDate/UpToDate'
    ;;
lockstep-leave) pkill -9 -f 'block serve' ;;
lockstep-return)
    # shellcheck disable=SC2046 # the words of the first start
    lockstep_serve $(cat /data/options)
    until_ok 6000 is_whole "$1"
    ;;
seqno) number seqno ;;
*)
    echo "guest: there is no command $command" >&2
    exit 2
    ;;
esac
