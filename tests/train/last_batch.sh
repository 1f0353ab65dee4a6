#!/usr/bin/env bash
# An epoch's incomplete last batch counts in full: uneven shards, and fewer samples than ranks.
. "$(dirname "$0")/lib.sh"
common=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-test 300 --epochs 2)

# 1000 = 3 * 300 + 100: four steps an epoch; 100 samples over 3 ranks are 34, 33 and 33.
train uneven1 1 "${common[@]}" --synthetic-train 1000 --batch-size 300
for ranks in 2 3; do
    train "uneven$ranks" $ranks "${common[@]}" --synthetic-train 1000 --batch-size 300
    same_curve "uneven$ranks" uneven1 8 1e-5
done
samples=$(sed -n 's/^{"kind":"step",.*"samples":\([0-9]*\).*/\1/p' "$work/uneven3/metrics.jsonl" |
    tr '\n' ' ')
equal 'samples of the steps' "$samples" '300 300 300 100 300 300 300 100 '

# 1001 = 10 * 100 + 1: three of four ranks have nothing to do in the last step.
train single1 1 "${common[@]}" --synthetic-train 1001 --batch-size 100
train single4 4 "${common[@]}" --synthetic-train 1001 --batch-size 100
same_curve single4 single1 22 1e-5

train dropped 4 "${common[@]}" --synthetic-train 1001 --batch-size 100 --drop-last
equal 'steps with --drop-last' "$(summary dropped steps)" 20

# Real data, seven uneven steps: 60000 = 6 * 9001 + 5994.
real=(--model mlp --mlp-widths 64 --batch-size 9001 --epochs 1 --eval-every 0)
train real1 1 "${real[@]}"
train real4 4 "${real[@]}"
same_curve real4 real1 7 1e-5
finish
