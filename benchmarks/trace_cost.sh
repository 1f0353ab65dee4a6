#!/usr/bin/env bash
# trace_cost.sh - what keeping spans costs: pairs of runs with and without, one after the other, in both orders; the
# ratio of their median steps.
#
#   benchmarks/trace_cost.sh [PAIRS [STEPS [RANKS [ddp_train's options...]]]]       10 400 2 and lenet unless given
. "$(dirname "$0")/lib.sh"
pairs=${1:-10} steps=${2:-400} ranks=${3:-2}
shift $(($# < 3 ? $# : 3))
model=("$@")
[ $# -gt 0 ] || model=(--model lenet --dataset synthetic --synthetic-train 102400 --batch-size 256)
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# rate PAIR spans|no-spans: images/s of the median step.
rate() {
    mpirun -np "$ranks" "$build_dir/ddp_train" "${model[@]}" --synthetic-test 256 --conv-algo direct --epochs 1000 \
        --max-steps "$steps" --checkpoint-epochs 0 --no-checkpoint-at-end --quiet --run-dir "$work/$1.$2" "--$2" \
        >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    summary_field "$work/$1.$2/metrics.jsonl" images_per_s
}
for ((i = 1; i <= pairs; i++)); do
    if ((i % 2)); then with=$(rate "$i" spans) without=$(rate "$i" no-spans)
    else without=$(rate "$i" no-spans) with=$(rate "$i" spans); fi
    awk -v a="$with" -v b="$without" 'BEGIN { printf "%.5f\n", b / a }' | tee -a "$work/ratios" |
        sed "s|^|pair $i: $with images/s with spans, $without without; step time ratio |"
done
awk -v m="$(median <"$work/ratios")" '{ if (NR == 1 || $1 < lo) lo = $1; if ($1 > hi) hi = $1 }
    END { printf "%d pairs, %s: a step with spans takes %.2f %% more (median; pairs from %.2f to %.2f)\n",
        NR, "'"$ranks ranks of ${model[1]}, $steps steps"'", (m - 1) * 100, (lo - 1) * 100, (hi - 1) * 100 }' "$work/ratios"
