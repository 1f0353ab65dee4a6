#!/usr/bin/env bash
# Every strategy and every allreduce algorithm gives the same curve, and so do shards in sequence.
. "$(dirname "$0")/lib.sh"
common=(--model mlp --mlp-widths 256,128 --dataset synthetic --synthetic-train 2560
    --synthetic-test 256 --batch-size 128 --epochs 1 --momentum 0.9 --lr 0.05 --eval-every 0
    --first-bucket-mb 0.05 --bucket-cap-mb 0.3)
steps=20

train one 1 "${common[@]}"
for strategy in ddp sync naive; do
    train "strategy-$strategy" 3 "${common[@]}" --strategy "$strategy"
    same_curve "strategy-$strategy" one $steps 1e-5
done
for algorithm in shm mpi root ring tree rhd hier; do
    train "algorithm-$algorithm" 3 "${common[@]}" --allreduce "$algorithm"
    same_curve "algorithm-$algorithm" one $steps 1e-5
done
for strategy in ddp naive; do
    train "separate-$strategy" 4 "${common[@]}" --no-shared-memory --strategy "$strategy"
    same_curve "separate-$strategy" one $steps 1e-5
done
train accumulated 2 "${common[@]}" --accumulate 3
same_curve accumulated one $steps 1e-5
train logical 3 "${common[@]}" --logical-ranks 6
same_curve logical one $steps 1e-5
train checked 3 "${common[@]}" --check-replicas 5
same_curve checked one $steps 1e-5
finish
