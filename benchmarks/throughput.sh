#!/usr/bin/env bash
# throughput.sh - images/s of lenet and mlp at 1 and 2 ranks, one thread each, beside PyTorch DDP.
#
#   benchmarks/throughput.sh [--peer SCRIPT] [--python PROGRAM] [--rounds N] [--steps N]
#
# SCRIPT is a PyTorch data-parallel script with the interface of torch_ddp.py (--task, --nproc, --threads, --malloc,
# --steps; one JSON object with rate_median on standard output). Without it only our own column is printed. Ours and
# the peer's runs take turns, round by round; the table shows medians over the rounds of each run's median
# step rate, and the median of the ratios within a round.
. "$(dirname "$0")/lib.sh"

peer= python=python3 rounds=3 steps=60
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        *) echo "throughput.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ours() { # MODEL RANKS
    rm -rf "$work/run"
    mpirun -np "$2" "$build_dir/ddp_train" --model "$1" --batch-size 256 --threads 1 --quiet \
        --max-steps "$steps" --eval-every 0 --run-dir "$work/run" >"$work/out" 2>&1 ||
        { cat "$work/out" >&2; exit 1; }
    summary_field "$work/run/metrics.jsonl" images_per_s
}

theirs() { # MODEL RANKS MALLOC
    "$python" "$peer" --task "$1" --nproc "$2" --threads 1 --malloc "$3" --batch 256 --steps 20 \
        2>"$work/err" | json_field rate_median
}

for round in $(seq "$rounds"); do
    for model in lenet mlp; do
        for ranks in 1 2; do
            rate=$(ours $model $ranks)
            echo "$rate" >>"$work/ours-$model-$ranks"
            [ -n "$peer" ] || continue
            for malloc in tuned default; do
                other=$(theirs $model $ranks $malloc)
                echo "$other" >>"$work/$malloc-$model-$ranks"
                awk "BEGIN { print $rate / $other }" >>"$work/ratio-$malloc-$model-$ranks"
            done
        done
    done
done

echo "$(machine_line); batch 256, 1 thread a rank, median of $rounds rounds"
[ -z "$peer" ] || "$python" -c 'import torch; print("PyTorch", torch.__version__)'
echo
echo "| model | ranks | ddp_train images/s | PyTorch DDP, allocator tuned | ratio | PyTorch DDP, untuned | ratio |"
echo "|---|---|---|---|---|---|---|"
for model in lenet mlp; do
    for ranks in 1 2; do
        printf '| %s | %s | %.0f |' $model $ranks "$(median <"$work/ours-$model-$ranks")"
        for malloc in tuned default; do
            if [ -n "$peer" ]; then
                printf ' %.0f | %.2f |' "$(median <"$work/$malloc-$model-$ranks")" \
                    "$(median <"$work/ratio-$malloc-$model-$ranks")"
            else
                printf ' - | - |'
            fi
        done
        echo
    done
done
