#!/usr/bin/env bash
# predict_check.sh - predicted steps beside measured ones, on 2, 4 and 8 hosts with shaped links.
#
#   benchmarks/predict_check.sh [--quick] [--layers FILE] [--steps N] [--rates "1gbit 10gbit"] [--hosts "2 4 8"]
#
# Hosts are network namespaces of this machine (tests/cluster/lib.sh; root), their ranks sleep the times of resnet18-small's
# layers (or of FILE's) and exchange gradients as ddp_train does. Columns: the measured step; what the model of a step
# makes of sums that were measured on the same hosts; and of those that were measured on two hosts, by the formula of
# the ring (ddp_bench predict).
. "$(dirname "$0")/lib.sh"
. "$root_dir/tests/cluster/lib.sh"

layers= steps=20 rates="1gbit 10gbit" counts="2 4 8"
while [ $# -gt 0 ]; do
    case $1 in
        --quick) steps=3 rates=1gbit counts="2 4"; shift ;;
        --layers) layers=$2; shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        --rates) rates=$2; shift 2 ;;
        --hosts) counts=$2; shift 2 ;;
        *) echo "predict_check.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
cluster_can || exit 77
need_program ddp_bench
need_program ddp_train
work=$(mktemp -d)
trap 'cluster_down; rm -rf "$work"' EXIT

if [ -z "$layers" ]; then
    "$build_dir/ddp_train" --model resnet18-small --dataset synthetic --input-shape 3x32x32 --synthetic-train 64 \
        --synthetic-test 1 --batch-size 32 --max-steps 1 --eval-every 0 --threads 1 --bucket-cap-mb auto --quiet \
        --no-checkpoint-at-end --run-dir "$work/one" >"$work/one.log" 2>&1 || { cat "$work/one.log" >&2; exit 1; }
    layers=$work/one/layers.json
fi
sed 's/"update_per_byte": *[0-9.e+-]*/"update_per_byte": 0/' "$layers" >"$work/layers.json"

# first FILE KEY: the key's first value.
first() { tr ',{}' '\n' <"$1" | sed -n "s/^ *\"$2\": *//p" | head -n 1; }

machine_line
echo
echo "| link | hosts | buckets | step ms | predicted, sums measured here | error % | predicted, sums of 2 hosts | error % |"
echo "|---|--:|---|--:|--:|--:|--:|--:|"
for rate in $rates; do
    base=
    for hosts in $counts; do
        cluster_up "$hosts"
        cluster_shape "$rate"
        cluster_hostfile "$work/hosts" 1
        out=$work/$rate-$hosts
        cluster_run 0 timeout 300 mpirun --hostfile "$work/hosts" -np "$hosts" "$build_dir/ddp_bench" sleepstep \
            --layers "$work/layers.json" --steps "$steps" --allreduce ring --out "$out" >"$work/log" 2>&1 ||
            { cat "$work/log" >&2; exit 1; }
        cluster_down
        base=${base:-$out/sleepstep.json}
        "$build_dir/ddp_bench" predict --layers "$work/layers.json" --curve "$base" --algorithm ring --spread 0 \
            --ranks "$hosts" --out "$out" >/dev/null
        measured=$(first "$out/sleepstep.json" step) here=$(first "$out/sleepstep.json" predicted_step)
        two=$(first "$out/predict.json" step)
        awk -v link="$rate" -v n="$hosts" -v m="$measured" -v h="$here" -v t="$two" 'BEGIN {
            printf "| %s | %d | by size | %.1f | %.1f | %+.1f | %.1f | %+.1f |\n", link, n, m * 1e3, h * 1e3,
                (h / m - 1) * 100, t * 1e3, (t / m - 1) * 100 }'
        sed -n 's/^| *auto | *[0-9]* | *\([0-9.]*\) | *\([0-9.]*\) | *\([-+0-9.]*\) .*/\1 \2 \3/p' "$out/sleepstep.txt" |
            while read -r m h e; do
                echo "| $rate | $hosts | auto | $m | $h | $e | | |"
            done
    done
done
