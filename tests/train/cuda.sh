#!/usr/bin/env bash
# Whole runs on simulated GPUs beside the same on the CPU, and runs that a GPU's failure ends.
# LD_LIBRARY_PATH leads to the simulator and to the module that is built for it.
. "$(dirname "$0")/lib.sh"
common=(--dataset synthetic --synthetic-train 640 --synthetic-test 60 --batch-size 48 --max-steps 5 --epochs 1)
mlp=(--model mlp --mlp-widths 64 --clip-grad-norm 0.5)
lenet=(--model lenet --momentum 0.9)

# both NAME RANKS STEPS TOLERANCE ARGUMENTS...: one curve on GPUs and on the CPU.
both() {
    local name=$1 ranks=$2 steps=$3 tolerance=$4
    shift 4
    train "$name-cpu" "$ranks" --device cpu "${common[@]}" "$@"
    train "$name-gpu" "$ranks" --device cuda "${common[@]}" "$@"
    same_curve "$name-gpu" "$name-cpu" "$steps" "$tolerance"
}

# Sums in another order: some 1e-7 in a step.
both lenet 1 5 1e-5 "${lenet[@]}" --tune-kernels
train lenet-nccl 3 --device cuda "${common[@]}" "${lenet[@]}"
same_curve lenet-nccl lenet-cpu 5 1e-5
train lenet-auto 2 --device cuda "${common[@]}" "${lenet[@]}" --bucket-cap-mb auto
same_curve lenet-auto lenet-cpu 5 1e-5
train lenet-mpi 2 --device cuda --comm mpi "${common[@]}" "${lenet[@]}" --accumulate 2
same_curve lenet-mpi lenet-cpu 5 1e-5
both bf16 2 5 1e-4 "${lenet[@]}" --precision bf16 --emulate
both adamw 2 5 1e-5 "${mlp[@]}" --optimizer adamw --ema 0.8 --label-smoothing 0.1
both lars 1 5 1e-5 "${mlp[@]}" --optimizer lars --momentum 0.9 --lr 1 --trust 0.02 --strategy sync
# Norms over eight samples amplify rounding from step to step.
both resnet 2 2 1e-3 --model resnet18-small --sync-bn --batch-size 8 --lr 0.01 --max-steps 2 --synthetic-test 4

# Work that comes late, in any stream: what is not waited for is not right.
CUSIM_DELAY_US=300 CUSIM_SEED=4 train late 2 --device cuda "${common[@]}" "${lenet[@]}"
same_curve late lenet-cpu 5 1e-5

# A timeline shows what the stream did, and when, beside what the host gave it; replayed steps too.
for graph in on:graph off:stream; do
    train "trace-$graph" 2 --device cuda "${common[@]}" "${lenet[@]}" --cuda-graph "${graph%:*}" --max-steps 9 \
        --trace-steps 4 --first-bucket-mb 0.05 --bucket-cap-mb 0.1
    if [ -n "${DDP_CHECK_TRACE:-}" ]; then
        text=$("$DDP_CHECK_TRACE" "$work/trace-$graph/trace.json" 2 4 0 any 0 "${graph#*:}" 2>&1) && pass ||
            fail "trace-$graph: $text"
    fi
done

# What was saved from a GPU is what it computes with.
train saved 2 --device cuda "${common[@]}" "${lenet[@]}" --save-weights "$work/saved.safetensors"
launch 1 --device cuda "${common[@]}" --model lenet --quiet --run-dir "$work/again" --eval-only \
    --init-weights "$work/saved.safetensors" >/dev/null
equal "test loss of the saved weights" "$(summary again test_loss)" "$(summary saved test_loss)"

# breaks WHAT TEXT: the run ends, and says why. In graphs there would not be as many calls.
breaks() {
    export CUSIM_FAIL=$1
    refused 1 "$2" 2 --device cuda "${common[@]}" "${lenet[@]}" --cuda-graph off --quiet \
        --run-dir "$work/broken-$1"
    unset CUSIM_FAIL
}
breaks cudaMalloc@rank1:9 "are not to be had on GPU 1"
breaks cudnnConvolutionBackwardFilter@rank0:4 cudnnConvolutionBackwardFilter
breaks kernel@rank1:60 "illegal memory access"
breaks cudaGetDeviceCount "option --device cuda"
finish
