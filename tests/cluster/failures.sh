#!/usr/bin/env bash
# failures.sh CASE - what becomes of a run over hosts when a link, a host or a rank fails: it goes on, or it ends on
# every host within the promised time, with one cause that names who is missing.
. "$(dirname "$0")/runs.sh"
mlp=(--dataset synthetic --synthetic-train 4096 --synthetic-test 64 --model mlp --mlp-widths 64 --batch-size 128
    --epochs 100000 --eval-every 0 --checkpoint-every 0 --comm-timeout 4)

# broken NAME LIMIT PATTERN COMMAND...: does this to a run of 2 ranks a host that is at work, which then ends within
# LIMIT seconds. The cause matches PATTERN.
broken() {
    local name=$1 limit=$2 pattern=$3 code=0 start causes
    shift 3
    (start "$name" $((cluster_count * 2)) "${mlp[@]}") >"$work/out" 2>"$work/err" &
    job=$!
    reach "$name" 20 || return 0
    start=$SECONDS
    "$@"
    while kill -0 $job 2>/dev/null && [ $((SECONDS - start)) -lt "$limit" ]; do sleep 0.1; done
    if kill -0 $job 2>/dev/null; then
        fail "$name: still there after $limit s: $(cat "$work/err"; cluster_left)"
        for i in $(cluster_hosts); do cluster_kill "$i"; done
    fi
    wait $job || code=$?
    echo "$name: ended after $((SECONDS - start)) s with status $code: $(grep '^ddp_train: ' "$work/err" || true)"
    if [ $code -ne 0 ]; then pass; else fail "$name: exit status 0"; fi
    causes=$(grep -c '^ddp_train: ' "$work/err" || true)
    if [ "$causes" -eq 1 ]; then pass; else fail "$name: $causes causes: $(cat "$work/err")"; fi
    if grep '^ddp_train: ' "$work/err" | grep -qE "$pattern"; then pass; else fail "$name: no \"$pattern\" in the cause"; fi
    equal "$name: status" "$(cat "$work/$name/status")" failed
    nothing_left "$name"
}

signal() { kill -s "$1" "$(pid_of "$2" "$3")"; }

# A machine that is off has no /dev/shm any more.
kill_host() {
    cluster_kill "$1"
    cluster_run "$1" find /dev/shm -mindepth 1 -delete
}

# Slow enough to be in the middle of a step: 0.5 MB of gradients at 2.5 MB/s.
cut_short() {
    local small=(--dataset synthetic --synthetic-train 2560 --synthetic-test 64 --batch-size 64 --max-steps 40 --exact
        --logical-ranks 4 --conv-algo direct)
    hosts_up 2 1
    train one 1 "${small[@]}"
    cluster_shape 20mbit
    (start cut 2 "${small[@]}") >"$work/out" 2>"$work/err" &
    job=$!
    reach cut 6 || return 0
    cluster_cut 1
    local before during code=0
    before=$(steps cut)
    sleep 8
    during=$(steps cut)
    cluster_join 1
    wait $job || code=$?
    equal 'exit status' "$code" 0
    # What has crossed the link before may still be recorded.
    if [ "$during" -lt 40 ] && [ "$during" -le $((before + 2)) ]; then pass; else fail "without a link: from step $before to $during"; fi
    equal 'weights' "$(summary cut weights_xxh3)" "$(summary one weights_xxh3)"
    equal 'losses' "$(losses cut | cksum)" "$(losses one | cksum)"
    nothing_left cut
}

case ${1:?the case} in
    link_cut_short) cut_short ;;
    link_cut_for_good)
        hosts_up 3 2
        broken cut 90 'rank 0 on node0: rank 2 on node1 .*nothing heard for .*rank 3 on node1' cluster_cut 1
        cluster_join 1
        # Where mpirun and rank 0 are: the others' ranks and launchers are alone.
        broken alone 90 'rank 0 on node0: no other host is heard.*rank 2 on node1.*nothing heard for' cluster_cut 0
        ;;
    host_killed)
        hosts_up 3 2
        broken killed 90 'rank [45] .*on node2 (died|is gone)' kill_host 2
        ;;
    rank_killed)
        hosts_up 2 2
        broken killed 90 'rank 3 .*on node1 died' signal KILL killed 3
        broken stopped 90 'rank 2 on node1 is a stopped process|rank 2 on node1 has not entered' signal STOP stopped 2
        ;;
    *) echo "unknown case $1" >&2; exit 2 ;;
esac
finish
