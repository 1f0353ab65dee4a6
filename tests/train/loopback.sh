#!/usr/bin/env bash
# Ranks as threads of one process: every number of ranks gives one rank's losses.
. "$(dirname "$0")/lib.sh"

common=(--dataset synthetic --synthetic-train 640 --synthetic-test 100 --batch-size 64 --epochs 1
    --max-steps 8 --conv-algo gemm)
train one loopback:1 "${common[@]}"
for ranks in 2 3 4; do
    train "lenet$ranks" "loopback:$ranks" "${common[@]}"
    same_curve "lenet$ranks" one 8 1e-5
done
equal 'log of rank 3' "$(test -s "$work/lenet4/rank-3.log" && echo there)" there

train accumulated loopback:2 "${common[@]}" --accumulate 3
same_curve accumulated one 8 1e-5
for strategy in sync naive; do
    train "$strategy" loopback:2 "${common[@]}" --strategy "$strategy"
    same_curve "$strategy" one 8 1e-5
done
finish
