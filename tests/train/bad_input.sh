#!/usr/bin/env bash
# Wrong options, data and directories: one cause from one rank, a clean end of all, nothing written.
. "$(dirname "$0")/lib.sh"
cd "$work"
small=(--dataset synthetic --synthetic-train 64 --synthetic-test 16 --batch-size 16 --max-steps 1
    --model mlp --mlp-widths 8 --quiet)

# What stands on the command line alone.
for ranks in 1 loopback:3; do
    refused 2 'whole number' $ranks --epochs ten
    refused 2 'expected one of' $ranks --strategy magic
    refused 2 'expected a momentum above 0' $ranks --nesterov
    refused 2 'beside --batch-size' $ranks --batch-size 8 --batch-per-rank 4
    refused 2 'from 0 to 1e+15' $ranks --warmup-steps 8000000000000000
    refused 2 'found "1x28"' $ranks --input-shape 1x28
    refused 2 '--init-weights' $ranks --eval-only
done
for ranks in 1 3 loopback:3; do
    refused 2 'nearest is --batch-size' $ranks --batch-sise 12
    refused 2 'expected one of lenet' $ranks --model lenett
    refused 2 'expected one of fashion-mnist' $ranks --dataset imagenet
    refused 1 'dataset-fashion-mnist' $ranks --data-dir "$work/nowhere"
    refused 1 'option --device cuda' $ranks --device cuda
    refused 1 'nowhere/w.safetensors' $ranks "${small[@]}" --save-weights nowhere/w.safetensors
    refused 1 'expected a file' $ranks "${small[@]}" --save-weights .
    refused 1 'missing.safetensors' $ranks "${small[@]}" --init-weights missing.safetensors \
        --run-dir "$work/loading"
    rm -rf "$work/loading"
done
for ranks in 3 loopback:3; do
    refused 2 'at least one sample for each rank' $ranks "${small[@]}" --batch-size 2
    refused 2 'no more ranks than samples' $ranks "${small[@]}" --synthetic-train 2
    refused 2 'expected a multiple of 3' $ranks "${small[@]}" --logical-ranks 4
    refused 2 'this many ranks: 1, 2, 4' $ranks "${small[@]}" --logical-ranks 4
done
refused 2 'found nccl with --device cpu' 2 --comm nccl --device cpu
refused 2 'found nccl with --share-device' 1 --comm nccl --share-device
refused 2 'expected one process' 2 --comm loopback
refused 2 'option --allreduce: found mpi' loopback:2 --allreduce mpi

# Ranks that were given different values.
code=0
mpirun -np 1 "$program" "${small[@]}" --lr 0.1 : -np 2 "$program" "${small[@]}" --lr 0.2 \
    >"$work/out" 2>"$work/err" || code=$?
equal 'exit status of different options' "$code" 1
equal 'cause of different options' "$(grep '^ddp_train: ' "$work/err" | grep -c 'lr=0.2.*lr=0.1')" 1

# A loss that is no number ends all ranks with one line, and a full disk rank 0's neighbours too.
wild=(--dataset synthetic --synthetic-train 640 --synthetic-test 64 --model mlp --mlp-widths 16
    --lr 1e6 --weight-decay 1e6 --batch-size 64 --quiet --threads 1)
for ranks in 3 loopback:3; do
    refused 1 'not finite' $ranks "${wild[@]}" --run-dir "$work/wild"
    equal 'status of a run that diverged' "$(cat "$work/wild/status")" failed
    rm -rf "$work/wild"
done
mkdir "$work/full"
ln -s /dev/full "$work/full/metrics.jsonl"
refused 1 'No space left' 3 "${small[@]}" --run-dir "$work/full" --resume auto

touch "$work/file"
for ranks in 1 4 loopback:2; do
    refused 1 "$work/file: a file has this name" $ranks "${small[@]}" --run-dir "$work/file/run"
done

# One value a channel: the run goes on, and says once which layers are affected.
mpirun -np 1 "$program" --dataset synthetic --input-shape 3x32x32 --synthetic-train 2 --synthetic-test 2 \
    --model resnet18 --batch-size 1 --epochs 1 --threads 1 --run-dir "$work/single" >"$work/out" 2>&1
equal 'warnings of single values' "$(grep -c 'layer layer4.1.bn2 (batchnorm): a shard has one value' "$work/out")" 1

# A damaged data set names the file.
mkdir "$work/data"
cp "${DDP_DATA_DIR:-/usr/share/datasets/fashion-mnist}"/* "$work/data"
for file in "$work"/data/train-labels*; do
    head -c 1000 "$file" >"$work/cut"
    mv "$work/cut" "$file"
done
refused 1 'train-labels' 3 --data-dir "$work/data" --max-steps 1 --quiet
equal 'run directories of refused runs' "$(ls -d "$work"/runs 2>/dev/null || echo none)" none
finish
