#!/usr/bin/env bash
# Ranks with unequal shares of a batch give the curve of equal shares, and the run says who has what.
. "$(dirname "$0")/lib.sh"
common=(--model mlp --mlp-widths 256,128 --dataset synthetic --synthetic-train 1290
    --synthetic-test 256 --batch-size 128 --epochs 1 --momentum 0.9 --lr 0.05 --eval-every 0)
steps=11

# record NAME KEY: an array of the run record.
record() {
    sed -n "s/^{\"kind\": *\"run\",.*\"$2\": *\(\[[^]]*\]\).*/\1/p" "$work/$1/metrics.jsonl"
}

train four 1 "${common[@]}" --logical-ranks 4
train given 2 "${common[@]}" --rank-weights 3,1
same_curve given four $steps 1e-5
equal 'shards for 3,1' "$(record given rank_shards)" '[3,1]'
train middle loopback:3 "${common[@]}" --rank-weights 1,2,1
same_curve middle four $steps 1e-5
equal 'shards for 1,2,1' "$(record middle rank_shards)" '[1,2,1]'
train five 2 "${common[@]}" --rank-weights 3,1 --logical-ranks 5
equal 'five shards for 3,1' "$(record five rank_shards)" '[4,1]'

# The same number of shards whatever is measured, so the same curve.
train eight 1 "${common[@]}" --logical-ranks 8
train measured 2 "${common[@]}" --rank-weights auto
same_curve measured eight $steps 1e-5
equal 'sum of measured shards' "$(($(record measured rank_shards | tr -d '[]' | tr , +)))" 8
equal 'times of a shard' "$(record measured shard_ms | tr -cd , | wc -c)" 1
# What a shard needs beside samples: norms, numbers for dropout.
train resnet 2 --model resnet18-small --dropout 0.1 --dataset synthetic --synthetic-train 8 \
    --synthetic-test 2 --batch-size 8 --epochs 1 --rank-weights auto
equal 'times of a shard with dropout' "$(record resnet shard_ms | tr -cd , | wc -c)" 1

# What is said on the console, and what is refused.
launch 2 "${common[@]}" --max-steps 1 --rank-weights 5,1 --logical-ranks 3 --run-dir "$work/said" \
    >"$work/said.out" 2>&1 || fail "the run with weights 5,1 ended with an error"
equal 'shares on the console' "$(grep -c '^shards of the ranks: 2, 1 (for weights 5, 1)' "$work/said.out")" 1
equal 'a note on the difference' "$(grep -c '^note: .* 100% of a rank' "$work/said.out")" 1
refused 2 'weight 0 for rank 1' 2 "${common[@]}" --rank-weights 1,0
refused 2 '3 weights with 2 ranks' 2 "${common[@]}" --rank-weights 1,2,3
refused 2 'expected a multiple of 2' 2 "${common[@]}" --logical-ranks 5
refused 2 'a last batch of 1 samples on 2 ranks' 2 --model resnet18-small --dataset synthetic \
    --synthetic-train 65 --batch-size 64 --sync-bn
finish
