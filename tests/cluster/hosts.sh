#!/usr/bin/env bash
# The cluster library itself: hosts with names, links that can be cut, nothing left behind.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/lib.sh"
cluster_can || exit 77

before=$(ip netns list | grep -c "^$CLUSTER_ID-" || true)
equal 'namespaces before' "$before" 0
cluster_up 2
cluster_second
cluster_bait
equal 'name of host 1' "$(cluster_run 1 hostname)" node1
equal 'directory on a host' "$(cd / && cluster_run 1 pwd)" /
equal 'argument with blanks' "$(cluster_run 0 printf '%s' 'a  b')" 'a  b'
identity=/proc/sys/kernel/random/boot_id
equal 'identities' "$(for i in 0 1; do (cluster_run $i cat $identity); done | cat - $identity | sort -u | wc -l)" 3
equal 'address of a name' "$(cluster_run 0 getent hosts node1 | awk '{ print $1 }')" 10.77.0.11
equal 'second interface' "$(cluster_run 1 ip -4 -br addr show eth1 | awk '{ print $3 }')" 10.88.0.11/24
equal 'what the machine has' "$(ip -br link | grep -c docker0 || true)" 0
export CLUSTER_TEST_VARIABLE=seen
equal 'variable with cluster_run' "$(cluster_run 0 printenv CLUSTER_TEST_VARIABLE)" seen
equal 'variable with the agent' "$("$(cluster_agent)" -x node0 'printenv CLUSTER_TEST_VARIABLE || echo none')" none
equal 'words with the agent' "$("$(cluster_agent)" node1 hostname '&&' echo more | tr '\n' ' ')" 'node1 more '

# until_true COMMAND...: waits for it, a minute at most.
until_true() {
    local until=$((SECONDS + 60))
    while [ $SECONDS -lt $until ]; do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.05
    done
    fail "not after a minute: $*"
}
listens() { cluster_run 1 grep -q ':1B58 .* 0A ' /proc/net/tcp; } # port 7000
# Reads to the end: a writer that nobody reads any more would fail the pipe.
runs() { cluster_left | grep -- "$1" >/dev/null; }

# hear NAME: host 1 waits for a word from host 0, and keeps it in a file.
hear() {
    cluster_run 1 timeout 60 python3 -c '
import socket
s = socket.create_server(("10.77.0.11", 7000))
print(s.accept()[0].recv(99).decode())' >"$work/$1" 2>&1 &
    until_true listens
}
say() { cluster_run 0 timeout "$2" bash -c "echo $1 >/dev/tcp/node1/7000" 2>/dev/null; }
if ! command -v python3 >/dev/null; then
    echo 'skipped: words over the link, without python3'
else
    hear first
    say word 30 || true
    wait
    equal 'word over the link' "$(cat "$work/first" | head -n 1)" word
    hear second
    cluster_cut 1
    if say lost 1; then fail 'a word went over a link that is cut'; else pass; fi
    cluster_join 1
    say found 30 || true
    wait
    equal 'word over the mended link' "$(head -n 1 "$work/second")" found
fi

read -r sent _ <<<"$(cluster_bytes 0)"
if [ "$sent" -gt 0 ]; then pass; else fail "bytes sent: $sent"; fi
cluster_shape 10mbit
equal 'rate of a host' "$(tc -n "$(cluster_net 1)" qdisc show dev eth0 | grep -o 'rate [^ ]*')" 'rate 10Mbit'
equal 'rate to a host' "$(tc -n "$CLUSTER_ID-sw" qdisc show dev port1 | grep -o 'rate [^ ]*')" 'rate 10Mbit'
cluster_shape none
equal 'no rate' "$(tc -n "$(cluster_net 1)" qdisc show dev eth0 | grep -c tbf || true)" 0

cluster_run 1 bash -c 'touch /dev/shm/left; exec -a lingering sleep 100' &
lingering=$!
until_true runs lingering
if [ -e /dev/shm/left ]; then fail 'a host shares /dev/shm with the machine'; else pass; fi
equal 'what is left' "$(cluster_left | sed 's/process [0-9]*/process N/' | tr '\n' ' ')" \
    'node1: process N: lingering 100  node1: /dev/shm/left '
kill $lingering
wait $lingering 2>/dev/null || true
cluster_run 1 rm /dev/shm/left
equal 'after a kill of the command' "$(cluster_left)x" x
(cluster_run 1 sleep 100) &
until_true runs 'sleep 100'
cluster_kill 1
equal 'after a kill of the host' "$(cluster_left)x" x
equal 'the host is still one' "$(cluster_run 1 hostname)" node1

# A script that is killed leaves its cluster to the next one.
bash -c 'CLUSTER_ID=$1; . "$2"; cluster_up 1; cluster_run 0 sleep 100 & kill -9 $$' _ "$CLUSTER_ID-k" \
    "$(dirname "$0")/lib.sh" 2>/dev/null || true
equal 'left by a killed script' "$(ip netns list | grep -c "^$CLUSTER_ID-k-")" 2
cluster_sweep
equal 'after the sweep' "$(ip netns list | grep -c "^$CLUSTER_ID-k-" || true)" 0
equal 'the cluster of this script' "$(ip netns list | grep -c "^$CLUSTER_ID-")" 4
cluster_down
equal 'after cluster_down' "$(ip netns list | grep -c "^$CLUSTER_ID-" || true)" 0
finish
