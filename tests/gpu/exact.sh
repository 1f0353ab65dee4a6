#!/usr/bin/env bash
# exact.sh - --exact on simulated GPUs: every number of ranks that divides the logical ranks gives the same
# bits, in losses, norms, accuracy and weights, over NCCL and through host memory; and what the CPU
# computes, nearly.
. "$(dirname "$0")/../train/lib.sh"
small=(--dataset synthetic --synthetic-train 96 --synthetic-test 20 --batch-size 28 --max-steps 3 --exact)
mlp=(--model mlp --mlp-widths 32 "${small[@]}" --batch-size 44)

norms() {
    sed -n 's/^{"kind":"step",.*"grad_norm":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"
}

# same NAME REFERENCE: equal to the last digit.
same() {
    local key
    for key in weights_xxh3 test_accuracy test_loss; do
        equal "$1 against $2: $key" "$(summary "$1" $key)" "$(summary "$2" $key)"
    done
    equal "$1 against $2: losses" "$(losses "$1" | cksum)" "$(losses "$2" | cksum)"
    equal "$1 against $2: norms" "$(norms "$1" | cksum)" "$(norms "$2" | cksum)"
}

# near NAME REFERENCE: the norms of gradients and with them the sums over blocks, but for rounding.
near() {
    equal "$1 near $2" "$(paste <(norms "$1") <(norms "$2") |
        awk '{ d = $1 - $2; if ($2 > 0 && d * d < 1e-8 * $2 * $2) n++ } END { print n }')" 3
}

# worlds NAME "RANKS..." ARGUMENTS...: one outcome on all these worlds, and nearly that of CPUs.
worlds() {
    local name=$1 worlds=$2 ranks first=
    shift 2
    for ranks in $worlds; do
        train "$name-$ranks" "$ranks" --device cuda "$@"
        [ -z "$first" ] || same "$name-$ranks" "$first"
        first=${first:-$name-$ranks}
    done
    train "$name-cpu" 1 --device cpu "$@"
    near "$first" "$name-cpu"
}

# Shards of different sizes, momentum; norms of gradients from the updates.
worlds lenet "1 2 4" --model lenet "${small[@]}" --logical-ranks 8 --momentum 0.9
train staged 2 --device cuda --comm mpi --model lenet "${small[@]}" --logical-ranks 8 --momentum 0.9
same staged lenet-1
# The same runs whose work comes late, in any stream.
CUSIM_DELAY_US=200 CUSIM_SEED=7 train late 2 --device cuda --model lenet "${small[@]}" --logical-ranks 8 \
    --momentum 0.9
same late lenet-1
# Norms that are measured first, of all parameters and of each, in one round and in two.
worlds adamw "4 1" "${mlp[@]}" --logical-ranks 8 --optimizer adamw --clip-grad-norm 0.1
worlds lamb "1 2" "${mlp[@]}" --logical-ranks 8 --optimizer lamb --clip-grad-norm 0.1 --ema 0.8
# Several partial sums of a rank, which NCCL's lane keeps in order, and the other cannot.
worlds six "1 2 3" "${mlp[@]}" --logical-ranks 6 --precision bf16
refused 1 'expected --comm nccl' 2 --device cuda --comm mpi "${mlp[@]}" --logical-ranks 6 --run-dir "$work/refused"
# Statistics and dropout of each shard.
resnet=(--model resnet18-small --input-shape 3x8x8 "${small[@]}" --batch-size 8 --synthetic-test 4
    --max-steps 2 --logical-ranks 4 --dropout 0.2)
train resnet-1 1 --device cuda "${resnet[@]}"
train resnet-4 4 --device cuda "${resnet[@]}"
same resnet-4 resnet-1
# A run that goes on with another number of GPUs is the same run.
train half 4 --device cuda "${mlp[@]}" --logical-ranks 8 --optimizer adamw --clip-grad-norm 0.1 --max-steps 1
train half 2 --device cuda "${mlp[@]}" --logical-ranks 8 --optimizer adamw --clip-grad-norm 0.1 --resume auto
same half adamw-1
# Every rank alone, beside the others.
launch 2 --quiet --run-dir "$work/alone" --device cuda "${mlp[@]}" --logical-ranks 8 --clip-grad-norm 0.1 \
    --verify-world 2 >"$work/out" 2>&1 || cat "$work/out"
equal 'a world of one' "$(grep -c 'verify-world: PASS: 2 steps on 2 ranks' "$work/out")" 1
finish
