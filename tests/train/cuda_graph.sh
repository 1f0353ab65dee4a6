#!/usr/bin/env bash
# Steps that are replayed from graphs give the bits of steps that are not; what cannot be replayed says why.
# LD_LIBRARY_PATH leads to the simulator and to the module that is built for it.
. "$(dirname "$0")/lib.sh"
# Two epochs of two full batches and one of half the size: each size is captured, and then replayed.
common=(--device cuda --dataset synthetic --synthetic-train 80 --synthetic-test 8 --batch-size 32 --epochs 2)
sgd=(--model lenet --momentum 0.9 --nesterov --weight-decay 0.001 --lr-schedule cosine --warmup-steps 2
    --first-bucket-mb 0.01 --bucket-cap-mb 0.1)
adam=(--model mlp --mlp-widths 64 --optimizer adamw --weight-decay 0.1 --ema 0.9
    --param-group 'fc1*:lr=0.01,wd=0.3' --strategy sync --grad-dtype bf16 --precision bf16 --mixup 0.3)
drops=(--model resnet18-small --input-shape 3x16x16 --dropout 0.3 --batch-size 4 --synthetic-train 10
    --synthetic-test 4 --lr 0.01)

# alike NAME RANKS ARGUMENTS...: with graphs and without.
alike() {
    local name=$1 ranks=$2 choice
    shift 2
    for choice in off on; do
        train "$name-$ranks-$choice" "$ranks" "${common[@]}" "$@" --cuda-graph "$choice" \
            --save-weights "$work/$name-$ranks-$choice.safetensors"
    done
    same_curve "$name-$ranks-on" "$name-$ranks-off" 6 0
    equal "weights of $name on $ranks" "$(summary "$name-$ranks-on" weights_xxh3)" \
        "$(summary "$name-$ranks-off" weights_xxh3)"
}
for ranks in 1 2; do
    alike sgd $ranks "${sgd[@]}"
    alike adam $ranks "${adam[@]}" --accumulate 3
    alike drops $ranks "${drops[@]}"
done

# replays EXPECTED ARGUMENTS...: of the run's six steps so many are launched as graphs; one more would fail.
replays() {
    local expected=$1
    shift
    export CUSIM_FAIL=cudaGraphLaunch@$((expected + 1))
    train "replays-$expected" 1 "${common[@]}" "${sgd[@]}" "$@"
    [ "$expected" -gt 0 ] || { unset CUSIM_FAIL; return 0; }
    export CUSIM_FAIL=cudaGraphLaunch@$expected
    refused 1 cudaGraphLaunch 1 --quiet --run-dir "$work/fails-$expected" "${common[@]}" "${sgd[@]}" "$@"
    unset CUSIM_FAIL
}
replays 4
replays 0 --cuda-graph off

# Where the host has a say within a step: auto does without, on is refused.
without() {
    local text=$1
    shift
    number=$((${number:-0} + 1))
    train "no-graph-$number" 2 "${common[@]}" --model mlp --mlp-widths 16 --max-steps 3 "$@"
    refused 2 "$text" 2 --quiet --run-dir "$work/refused-$number" "${common[@]}" --model mlp --mlp-widths 16 \
        --cuda-graph on "$@"
}
without 'by way of the host' --comm mpi
without '--clip-grad-norm' --clip-grad-norm 1
without '--strategy' --strategy naive
refused 2 'no graphs' 1 --quiet --run-dir "$work/cpu" --dataset synthetic --model mlp --device cpu --cuda-graph on

# A capture that fails on one rank: all go on without, or end.
export CUSIM_FAIL=cudaGraphInstantiate@rank1:1
train lost 2 "${common[@]}" "${sgd[@]}"
same_curve lost sgd-2-off 6 0
refused 1 cudaGraphInstantiate 2 --quiet --run-dir "$work/lost-on" "${common[@]}" "${sgd[@]}" --cuda-graph on
finish
