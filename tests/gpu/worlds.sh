#!/usr/bin/env bash
# worlds.sh mlp|lenet - training by 1, 2, 3, 4 and 8 ranks with a simulated GPU each: losses and
# norms of gradients are those of one CPU, and so they are with messages in place of NCCL.
. "$(dirname "$0")/../train/lib.sh"
cd "$work"
model=${1:?which model}

# norms NAME: of the steps' gradients, one a line.
norms() {
    sed -n 's/^{"kind":"step",.*"grad_norm":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"
}

# same_norms NAME REFERENCE TOLERANCE
same_norms() {
    if paste <(norms "$1") <(norms "$2") | awk -v tolerance="$3" '
        { d = $1 - $2; if (d < 0) d = -d
          if (NF != 2 || !(d <= tolerance * $2)) { print "step " NR ": " $0; bad = 1 } }
        END { exit bad || NR == 0 }' >"$work/diff"; then
        pass
    else
        fail "norms of $1 differ from $2: $(head -n 3 "$work/diff" | tr '\n' ';')"
    fi
}

# worlds STEPS ARGUMENTS...
worlds() {
    local steps=$1 ranks
    shift
    train cpu 1 --device cpu "$@"
    for ranks in 1 2 3 4 8; do
        train "gpus$ranks" $ranks --device cuda "$@"
        same_curve "gpus$ranks" cpu "$steps" 1e-5
        same_norms "gpus$ranks" cpu 1e-4
    done
    train staged 3 --device cuda --comm mpi "$@"
    same_curve staged cpu "$steps" 1e-5
    same_norms staged cpu 1e-4
}

case $model in
    mlp) # Fashion-MNIST
        worlds 20 --model mlp --mlp-widths 128,64 --max-steps 20 --eval-every 0 --batch-size 120 \
            --momentum 0.9 --lr 0.05
        first=$(losses gpus8 | head -n 1) last=$(losses gpus8 | tail -n 1)
        equal 'mlp has learned' "$(awk "BEGIN { print ($last < 0.8 * $first) }")" 1
        ;;
    lenet)
        worlds 10 --model lenet --dataset synthetic --synthetic-train 600 --synthetic-test 100 \
            --batch-size 60 --epochs 1 --eval-every 0 --momentum 0.9 --lr 0.05
        ;;
    *) fail "unknown model $model" ;;
esac
finish
