#!/usr/bin/env bash
# auto_buckets.sh - buckets that are chosen by measuring: the same losses as with those by size, with shared memory
# and by messages; records of what was found; a resumed run; ranks with unequal shares.
. "$(dirname "$0")/lib.sh"
common=(--model resnet18-small --dataset synthetic --input-shape 1x8x8 --synthetic-train 256 --synthetic-test 64
    --batch-size 64 --epochs 1 --eval-every 0 --lr 0.002 --conv-algo gemm)
four=("${common[@]}" --max-steps 4 --no-checkpoint-at-end --checkpoint-epochs 0)

# records NAME: the run record has both cuts, and the run directory the layers' times.
records() {
    local key
    for key in buckets_by_size buckets_chosen; do
        if head -n 1 "$work/$1/metrics.jsonl" | grep -q "\"$key\":{\"predicted_exposed_ms\""; then
            pass
        else
            fail "$1: no $key in the run record"
        fi
    done
    if grep -q '"ready"' "$work/$1/layers.json"; then pass; else fail "$1: no times in layers.json"; fi
}

train size 4 "${four[@]}"
train shared 4 "${four[@]}" --bucket-cap-mb auto
same_curve shared size 4 1e-5
records shared
train messages 2 "${four[@]}" --bucket-cap-mb auto --no-shared-memory
records messages

# A run that stops, and goes on with buckets of its own.
train size2 2 "${four[@]}"
train halves 2 "${common[@]}" --max-steps 2 --bucket-cap-mb auto --no-shared-memory
launch 2 --quiet --threads 1 --run-dir "$work/halves" "${common[@]}" --max-steps 4 --bucket-cap-mb auto \
    --no-shared-memory --resume auto >"$work/resumed.out" 2>&1 ||
    fail "a resumed run ended with an error: $(cat "$work/resumed.out")"
same_curve messages size2 4 1e-5
same_curve halves size2 4 1e-5

train small loopback:2 --max-steps 2 --eval-every 0 --bucket-cap-mb auto --grad-dtype bf16 --clip-grad-norm 1 \
    --accumulate 2 --no-shared-memory --ema 0.9

# Unequal ranks make as many passes as each other, though a step of one takes 15 times as long.
train unequal 2 "${common[@]}" --batch-size 128 --rank-weights 1,15 --max-steps 1 --bucket-cap-mb auto
finish
