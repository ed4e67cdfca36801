#!/bin/sh
# A stand-in for tc, to be put first in PATH: the real one with a plain queue (pfifo) in the place of netem, which few small
# kernels have. What the kernel is asked for is real but for the delay: devices that are not there, a queue that is there
# already, counters. Beside this file:
#   calls    each call's arguments, a line each, written
#   refused  the netem queues to refuse as a kernel without netem does, counted from 1: "all", or numbers with blanks between
here=${0%/*}
printf '%s\n' "$*" >>"$here/calls"
case " $* " in
*" netem "*)
    number=$(grep -c ' netem ' "$here/calls")
    case " $(cat "$here/refused" 2>/dev/null) " in
    *" all "* | *" $number "*)
        echo "Error: Specified qdisc kind is unknown." >&2
        exit 2
        ;;
    esac
    ;;
esac
words=
while [ $# -gt 0 ] && [ "$1" != netem ]; do
    words="$words $1"
    shift
done
[ $# -eq 0 ] || words="$words pfifo limit 32768"
PATH=${PATH#"$here":}
# shellcheck disable=SC2086 # words, indeed
exec tc $words
