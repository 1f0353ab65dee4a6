#!/usr/bin/env bash
# exact.sh - --exact: every number of processes that divides the logical ranks gives the same bits, in
# losses, accuracy and weights, over shared memory and over messages.
. "$(dirname "$0")/lib.sh"

# same NAME REFERENCE: the runs' losses, evaluations and weights are equal to the last digit.
same() {
    local key
    for key in weights_xxh3 test_accuracy test_loss test_samples; do
        equal "$1 against $2: $key" "$(summary "$1" $key)" "$(summary "$2" $key)"
    done
    equal "$1 against $2: losses" "$(losses "$1" | cksum)" "$(losses "$2" | cksum)"
}

lenet=(--model lenet --exact --logical-ranks 8 --batch-size 64 --max-steps 100)
train one 1 "${lenet[@]}"
for ranks in 2 4 8; do
    train "ranks$ranks" $ranks "${lenet[@]}"
    same "ranks$ranks" one
done
equal 'steps of the runs' "$(losses one | wc -l)" 100

# A run that goes on with another number of processes is the same run.
train half 4 "${lenet[@]:0:7}" --max-steps 50
train half 8 "${lenet[@]}" --resume auto
same half one
refused 1 '1 threads for an operation, found 2' 1 "${lenet[@]}" --resume "$work/half" --threads 2 \
    --run-dir "$work/other"

short=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-train 480 --synthetic-test 300 --exact
    --batch-size 48 --max-steps 15 --momentum 0.9)
train six 1 "${short[@]}" --logical-ranks 6
train six_by_two 2 "${short[@]}" --logical-ranks 6
train six_by_three 3 "${short[@]}" --logical-ranks 6 --no-shared-memory
same six_by_two six
same six_by_three six
train eight 1 "${short[@]}" --logical-ranks 8 --clip-grad-norm 0.1
for algo in auto tree rhd; do
    train "eight_$algo" 4 "${short[@]}" --logical-ranks 8 --clip-grad-norm 0.1 --no-shared-memory \
        --allreduce "$algo"
    same "eight_$algo" eight
done

resnet=(--model resnet18-small --dataset synthetic --input-shape 3x16x16 --synthetic-train 64
    --synthetic-test 16 --batch-size 16 --max-steps 3 --exact --logical-ranks 4 --dropout 0.2)
train resnet 1 "${resnet[@]}"
train resnet_four loopback:4 "${resnet[@]}"
same resnet_four resnet

# proves TEXT RANKS ARGUMENTS...: a self-test that must pass and say so.
proves() {
    local text=$1 ranks=$2 dir=$work/proof$checks
    shift 2
    if launch "$ranks" --quiet --threads 1 --run-dir "$dir" "$@" >"$work/out" 2>&1; then
        equal "$*" "$(grep -c "$text" "$work/out")" 1
        equal "$*: status" "$(cat "$dir/status")" verified
    else
        fail "$*: $(cat "$work/out")"
    fi
}
proves 'verify-world: PASS: 3 steps on 4 ranks' 4 "${lenet[@]}" --verify-world 3
proves 'verify-world: PASS: 2 steps on 3 ranks' loopback:3 "${short[@]}" --logical-ranks 6 --verify-world 2
proves 'verify-resume: PASS: 8 steps, and a restart after 4' 2 "${lenet[@]:0:3}" --momentum 0.9 --ema 0.9 \
    --logical-ranks 4 --batch-size 64 --verify-resume 4
proves 'verify-resume: PASS: 6 steps' loopback:2 "${resnet[@]:0:6}" --synthetic-train 32 --synthetic-test 16 \
    --batch-size 16 --epochs 3 --dropout 0.2 --optimizer adamw --verify-resume 3
proves 'verify-grad: PASS: 4 parameters' 1 --model mlp --mlp-widths 64 --verify-grad

refused 2 "at most half of the run's 3 steps" loopback:4 "${resnet[@]}" --verify-resume 2 --run-dir "$work/long"
refused 2 'this many ranks: 1, 2, 4, 8' 3 "${lenet[@]}"
finish
