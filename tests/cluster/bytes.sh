#!/usr/bin/env bash
# What the hosts' interfaces count during training: gradients cross a link no more often than they must, whatever the
# number of ranks on a host. Two runs of different length are compared, so that start-up and evaluation drop out.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/lib.sh"
cluster_can || exit 77

few=4 many=24
cluster_up 2
cluster_hostfile "$work/hosts" 4
# Else a counter sees long stretches of a stream as one packet with one header; a network sees frames.
for host in 0 1; do
    ip -n "$(cluster_net $host)" link set eth0 gso_max_size 1500 gso_max_segs 1 2>/dev/null ||
        echo "host $host: headers are not counted for every frame"
done

# count NAME RANKS STEPS OPTION...: trains, and puts the bytes that host 0 and host 1 have sent into sent0 and sent1.
count() {
    local name=$1 ranks=$2 steps=$3 before0 before1
    shift 3
    read -r before0 _ <<<"$(cluster_bytes 0)"
    read -r before1 _ <<<"$(cluster_bytes 1)"
    if ! cluster_run 0 timeout 200 mpirun --hostfile "$work/hosts" --map-by "ppr:$((ranks / 2)):node" -np "$ranks" \
        "$program" --quiet --threads 1 --model mlp --mlp-widths 256,256 --dataset synthetic --batch-size 16 \
        --max-steps "$steps" --run-dir "$work/$name" "$@" >"$work/$name.out" 2>&1; then
        fail "$name ended with an error:"
        cat "$work/$name.out"
        finish
    fi
    read -r sent0 _ <<<"$(cluster_bytes 0)"
    read -r sent1 _ <<<"$(cluster_bytes 1)"
    sent0=$((sent0 - before0)) sent1=$((sent1 - before1))
}

# ratio NAME RANKS OPTION...: found is what the busier host sends for a step's gradients, over the least possible; two
# hosts must each send one half of the sum's parts and one half of its results.
ratio() {
    local name=$1 ranks=$2 base0 base1 gradients
    shift 2
    count "$name-few" "$ranks" $few "$@"
    base0=$sent0 base1=$sent1
    count "$name-many" "$ranks" $many "$@"
    gradients=$((4 * $(head -n 1 "$work/$name-few/metrics.jsonl" | grep -o '"parameters": *[0-9]*' | grep -o '[0-9]*$')))
    [ "$gradients" -ge 1048576 ] || fail "gradients of $gradients bytes are too few to tell"
    found=$(awk -v a=$((sent0 - base0)) -v b=$((sent1 - base1)) -v least=$(((many - few) * gradients)) \
        'BEGIN { printf "%.3f\n", (a > b ? a : b) / least }')
}

# near: found is the least possible, but for headers.
near() { awk -v r="$found" 'BEGIN { exit !(r > 0.99 && r <= 1.08) }'; }

for ranks in 4 8; do
    ratio "two-levels$ranks" $ranks --allreduce hier
    echo "2 hosts of $((ranks / 2)) ranks: $found of the least possible bytes"
    if near; then pass; else fail "2 hosts, $ranks ranks: $found"; fi
done
# What is chosen where nothing is said goes by a trial at the start, which ends sooner on a busy machine: then one run has
# sent less than the other for another reason.
for try in 1 2 3 4 5; do
    ratio "auto-$try" 4
    echo "2 hosts of 2 ranks, by the program's own choice: $found of the least possible bytes"
    ! near || break
done
if near; then pass; else fail "the program's own choice: $found"; fi
# The ranks of a host one by one need more; else this test could not see a difference.
ratio ring 4 --allreduce ring
echo "2 hosts of 2 ranks, each for itself: $found of the least possible bytes"
if awk -v r="$found" 'BEGIN { exit !(r > 1.3) }'; then pass; else fail "a ring of 4 ranks: $found"; fi
equal 'what is left' "$(cluster_left)x" x
finish
