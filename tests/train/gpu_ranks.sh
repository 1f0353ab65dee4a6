#!/usr/bin/env bash
# Ranks on simulated GPUs: gradients through NCCL and through messages give the CPU's curve; who gets which
# GPU, what is refused, and that a broken rank ends all. LD_LIBRARY_PATH leads to the simulator.
. "$(dirname "$0")/lib.sh"
cd "$work"
small=(--dataset synthetic --synthetic-train 240 --synthetic-test 48 --batch-size 48 --max-steps 4
    --mlp-widths 64 --momentum 0.9)

curve() { # MODEL RANKS COMM
    train "$3-$1-$2" "$2" "${small[@]}" --model "$1" --device cuda --comm "$3"
    same_curve "$3-$1-$2" "cpu-$1" 4 1e-5
}
for model in mlp lenet; do train "cpu-$model" 1 "${small[@]}" --model $model --device cpu; done
for ranks in 1 2 3; do curve mlp $ranks nccl; done
for ranks in 2 4; do curve lenet $ranks nccl; done
curve lenet 3 mpi
train bf16 2 "${small[@]}" --model mlp --device cuda --comm nccl --grad-dtype bf16
same_curve bf16 cpu-mlp 4 1e-3

# gradients NAME: how they travelled.
gradients() { sed -n 's/.*"gradients": "\(.*\)",*/\1/p' "$work/$1/environment.json"; }
equal 'lane of --comm nccl' "$(gradients nccl-mlp-2)" nccl
equal 'lane of --comm mpi' "$(gradients mpi-lenet-3)" staged
equal 'lane on CPUs' "$(gradients cpu-mlp)" mpi
train auto 2 "${small[@]}" --model mlp --device cuda
equal 'lane of --comm auto' "$(gradients auto)" nccl

# gpus NAME: how many the ranks have.
gpus() { grep -o '"gpu_uuid": "[0-9a-f]*"' "$work/$1/environment.json" | sort -u | wc -l; }
equal 'GPUs of three ranks' "$(gpus nccl-mlp-3)" 3

# Several ranks on one GPU.
export CUSIM_DEVICES=1
refused 2 'have the same GPU' 2 "${small[@]}" --model mlp --device cuda
refused 2 'rank 0 on ' 2 "${small[@]}" --model mlp --device cuda --comm mpi
train shared 2 "${small[@]}" --model mlp --device cuda --share-device
same_curve shared cpu-mlp 4 1e-5
equal 'lane of --share-device' "$(gradients shared)" staged
equal 'GPUs with --share-device' "$(gpus shared)" 1
unset CUSIM_DEVICES

# One visible GPU for each rank, as --gpus-per-task=1 gives it.
one_each() {
    mpirun -np 1 -x CUDA_VISIBLE_DEVICES=2 "$program" "$@" : \
        -np 1 -x CUDA_VISIBLE_DEVICES=0 "$program" "$@"
}
if one_each "${small[@]}" --model mlp --device cuda --quiet --run-dir "$work/each" >"$work/out" 2>&1; then
    same_curve each cpu-mlp 4 1e-5
    equal 'GPUs of one each' "$(gpus each)" 2
    equal 'lane of one each' "$(gradients each)" nccl
else
    fail "one visible GPU each: $(cat "$work/out")"
fi

refused 2 'ranks compute on CPUs' 2 "${small[@]}" --comm nccl
CUDA_VISIBLE_DEVICES='' refused 1 'no GPU' 2 "${small[@]}" --device cuda

# Ranks that NCCL would be told different things.
code=0
mpirun -np 1 -x NCCL_ALGO=Ring "$program" "${small[@]}" --model mlp --device cuda : \
    -np 1 -x NCCL_ALGO=Tree "$program" "${small[@]}" --model mlp --device cuda >"$work/out" 2>"$work/err" ||
    code=$?
equal 'exit status of different variables' "$code" 1
equal 'cause of different variables' \
    "$(grep '^ddp_train: ' "$work/err" | grep -c 'NCCL_ALGO=Tree.*NCCL_ALGO=Ring')" 1

# What breaks on one rank ends all, with one cause.
export CUSIM_FAIL=ncclAsync@rank1:3
refused 1 'rank 1 on ' 3 "${small[@]}" --model lenet --device cuda
export CUSIM_FAIL=ncclAllReduce@rank2:3
refused 1 'ncclAllReduce' 3 "${small[@]}" --model lenet --device cuda --cuda-graph off
unset CUSIM_FAIL
finish
