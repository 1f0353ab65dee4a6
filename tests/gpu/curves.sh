#!/usr/bin/env bash
# curves.sh - training curves on GPUs beside the CPU's, for the self-check.
#
#   DDP_TRAIN=PROGRAM tests/gpu/curves.sh [--gpus N] [--without-mpi] [--quick]
#
# One rank; with MPI also one for each of N GPUs over NCCL, and two that share a GPU. LD_LIBRARY_PATH may lead to the
# simulator. --quick: lenet only.
. "$(dirname "$0")/../train/lib.sh"
gpus=1 mpi=1 quick=
while [ $# -gt 0 ]; do
    case $1 in
        --gpus) gpus=$2; shift 2 ;;
        --without-mpi) mpi=; shift ;;
        --quick) quick=1; shift ;;
        *) echo "curves.sh: unknown argument $1; see the head of the script" >&2; exit 2 ;;
    esac
done
data=(--dataset synthetic --synthetic-train 640 --synthetic-test 60 --batch-size 48 --max-steps 5 --epochs 1)

# One rank needs no mpirun, which may not be there.
launch() {
    local ranks=$1
    shift
    if [ "$ranks" = 1 ]; then "$program" "$@"; else mpirun -np "$ranks" "$program" "$@"; fi
}

# on_cpu NAME ARGUMENTS..., then on_gpu NAME REFERENCE STEPS TOLERANCE RANKS ARGUMENTS...
on_cpu() {
    local name=$1
    shift
    train "$name" 1 --device cpu "${data[@]}" "$@"
}
on_gpu() {
    local name=$1 reference=$2 steps=$3 tolerance=$4 ranks=$5
    shift 5
    train "$name" "$ranks" --device cuda "${data[@]}" "$@"
    same_curve "$name" "$reference" "$steps" "$tolerance"
}

lenet=(--model lenet --momentum 0.9)
on_cpu lenet "${lenet[@]}"
# Sums in another order: some 1e-7 in a step.
on_gpu lenet-gpu lenet 5 1e-5 1 "${lenet[@]}"
if [ -n "$mpi" ] && [ "$gpus" -gt 1 ]; then
    on_gpu lenet-nccl lenet 5 1e-5 "$((gpus < 8 ? gpus : 8))" "${lenet[@]}" --comm nccl
fi
[ -z "$quick" ] || { finish; exit; }

mlp=(--model mlp --mlp-widths 64 --optimizer adamw --label-smoothing 0.1 --clip-grad-norm 0.5)
on_cpu mlp "${mlp[@]}"
on_gpu mlp-gpu mlp 5 1e-5 1 "${mlp[@]}"
on_gpu lenet-tuned lenet 5 1e-5 1 "${lenet[@]}" --tune-kernels
# Eleven bits of an operand instead of 24.
on_gpu lenet-tf32 lenet 5 3e-3 1 "${lenet[@]}" --tf32
on_cpu bf16 "${lenet[@]}" --precision bf16 --emulate
on_gpu bf16-gpu bf16 5 1e-3 1 "${lenet[@]}" --precision bf16
# Norms over eight samples amplify rounding from step to step.
resnet=(--model resnet18-small --batch-size 8 --lr 0.01 --max-steps 2 --synthetic-test 4)
on_cpu resnet "${resnet[@]}"
on_gpu resnet-gpu resnet 2 1e-3 1 "${resnet[@]}"
if [ -n "$mpi" ]; then
    on_gpu lenet-shared lenet 5 1e-5 2 "${lenet[@]}" --share-device --comm mpi
fi
finish
