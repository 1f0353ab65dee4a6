#!/usr/bin/env bash
# buckets.sh - training with buckets by size beside --bucket-cap-mb auto, on two hosts with shaped links.
#
#   benchmarks/buckets.sh [--quick] [--rates "1gbit 10gbit"] [--steps N] [--rounds N] [ddp_train options...]
#
# Hosts are network namespaces of this machine (tests/cluster/lib.sh; root), one rank with one thread each; resnet18-small,
# batch 32, unless given. Rounds alternate. Columns are medians over steps and rounds, of the slowest rank.
. "$(dirname "$0")/lib.sh"
. "$root_dir/tests/cluster/lib.sh"

rates="1gbit 10gbit" steps=30 rounds=3 more=()
while [ $# -gt 0 ]; do
    case $1 in
        --quick) rates=1gbit steps=4 rounds=1; shift ;;
        --rates) rates=$2; shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        *) more+=("$1"); shift ;;
    esac
done
cluster_can || exit 77
need_program ddp_train
work=$(mktemp -d)
trap 'cluster_down; rm -rf "$work"' EXIT

# values FILE KEY: of every step but the first two.
values() {
    grep '"kind": *"step"' "$1" | tail -n +3 | sed 's/.*"ms": *{//' | tr ',{}' '\n' | sed -n "s/^ *\"$2\": *//p"
}

machine_line
echo
echo "| link | buckets | step ms | comm ms | comm exposed ms | backward ms |"
echo "|---|---|--:|--:|--:|--:|"
for rate in $rates; do
    cluster_up 2
    cluster_shape "$rate"
    cluster_hostfile "$work/hosts" 1
    for round in $(seq "$rounds"); do
        for cap in 25 auto; do
            dir=$work/$rate-$cap-$round
            cluster_run 0 timeout 600 mpirun --hostfile "$work/hosts" -np 2 "$build_dir/ddp_train" \
                --model resnet18-small --dataset synthetic --input-shape 3x32x32 --synthetic-train 1024 \
                --synthetic-test 1 --batch-size 32 --epochs 1000 --max-steps "$steps" --eval-every 0 --threads 1 \
                --no-checkpoint-at-end --checkpoint-epochs 0 --bucket-cap-mb "$cap" --run-dir "$dir" \
                ${more[@]+"${more[@]}"} >"$dir.log" 2>&1 || { cat "$dir.log" >&2; exit 1; }
            for key in step comm comm_exposed backward; do
                values "$dir/metrics.jsonl" "$key" >>"$work/$rate-$cap-$key"
            done
        done
    done
    for cap in 25 auto; do
        printf '| %s | %s |' "$rate" "$cap"
        for key in step comm comm_exposed backward; do printf ' %.2f |' "$(median <"$work/$rate-$cap-$key")"; done
        echo
    done
    grep -h -A2 '^gradient buckets: [0-9]*, of' "$work/$rate-auto-1.log" | sed 's/^/    /' >>"$work/chosen"
    cluster_down
done
echo
echo "What auto printed in the first rounds:"
echo
cat "$work/chosen"
