#!/usr/bin/env bash
# exact_models.sh [MODEL...] - --exact over all models, precisions and convolutions: 1, 2, 4 and 8 processes of 8
# logical ranks, and 1, 2 and 3 of 6 and of 12, end with the same bits in every loss, the evaluation, the weights and the tensors of
# a checkpoint.
. "$(dirname "$0")/../train/lib.sh"
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(lenet mlp resnet18-small resnet18 resnet34 resnet50 resnet101)
rows=()

# A few steps: what differs, differs in the first ones.
options=(--dataset synthetic --synthetic-train 96 --synthetic-test 24 --batch-size 24 --max-steps 3 --momentum 0.9 --lr 0.01
    --augment flip --label-smoothing 0.1 --exact --checkpoint-epochs 0 --keep 1 --no-tensorboard)

# The checkpoint's tensors: both files, which have nothing of the world in them.
tensors() { cat "$work/$1"/checkpoints/step-*/{model,optimizer}.safetensors | cksum; }

same() { # NAME REFERENCE
    local key
    for key in weights_xxh3 test_accuracy test_loss; do
        equal "$1 against $2: $key" "$(summary "$1" $key)" "$(summary "$2" $key)"
    done
    equal "$1 against $2: losses" "$(losses "$1" | cksum)" "$(losses "$2" | cksum)"
    equal "$1 against $2: tensors" "$(tensors "$1")" "$(tensors "$2")"
}

# family NAME K "WORLDS" ARGUMENTS...
family() {
    local name=$1 shards=$2 worlds=$3 first= before=$failures ranks
    shift 3
    for ranks in $worlds; do
        train "$name-$ranks" "$ranks" "${options[@]}" --logical-ranks "$shards" "$@"
        [ -z "$first" ] && first=$name-$ranks || same "$name-$ranks" "$first"
    done
    rows+=("| $* | $shards | $worlds | $(summary "$first" weights_xxh3) | $([ $failures -eq $before ] && echo equal || echo DIFFERENT) |")
    echo "${rows[-1]}"
    rm -rf "${work:?}/$name"-*
}

shape_of() { case $1 in lenet) echo 1x28x28 ;; mlp) echo 1x12x12 ;; resnet18-small) echo 3x16x16 ;; *) echo 3x32x32 ;; esac; }

echo "| run | K | processes | weights | |"
echo "|---|---|---|---|---|"
for model in "${models[@]}"; do
    common=(--model "$model" --input-shape "$(shape_of "$model")")
    [ "$model" != mlp ] || common+=(--mlp-widths 96,96)
    family "$model" 8 '1 2 4 8' "${common[@]}"
    case $model in
        resnet50 | resnet101) continue ;; # of the blocks and operations that the smaller ones have
    esac
    family "$model-bf16" 8 '1 2 4 8' "${common[@]}" --precision bf16
    family "$model-6" 6 '1 2 3' "${common[@]}"
    family "$model-12" 12 '1 2 3' "${common[@]}"
    case $model in
        lenet | resnet18-small)
            for algo in direct gemm winograd batch; do
                family "$model-$algo" 8 '1 2 4 8' "${common[@]}" --conv-algo "$algo"
            done ;;
    esac
done
family resnet50-bf16 8 '1 4' --model resnet50 --input-shape 3x32x32 --precision bf16
finish
