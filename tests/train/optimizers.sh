#!/usr/bin/env bash
# Update rules, skipped steps, averages and frozen parameters in whole runs.
. "$(dirname "$0")/lib.sh"
common=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-train 1280 --synthetic-test 300
    --batch-size 128 --epochs 1 --eval-every 0 --first-bucket-mb 0.02 --bucket-cap-mb 0.1)
steps=10

for rule in "adamw" "lars --momentum 0.9 --lr 1 --trust 0.02" "lamb --eps 1e-3 --lr 0.01"; do
    name=${rule%% *}
    train "$name-1" 1 "${common[@]}" --optimizer $rule --clip-grad-norm 0.5 --lr-schedule cosine --warmup-steps 3
    train "$name-3" 3 "${common[@]}" --optimizer $rule --clip-grad-norm 0.5 --lr-schedule cosine --warmup-steps 3
    same_curve "$name-3" "$name-1" $steps 1e-5
done

# The first update makes weights that overflow: every later step is not finite.
refused 1 "not finite" 2 "${common[@]}" --lr 1e6 --weight-decay 1e6 --max-steps 9 --quiet --run-dir "$work/stopped"
train skipped 2 "${common[@]}" --lr 1e6 --weight-decay 1e6 --max-steps 9 --on-nonfinite skip
skipped=$(summary skipped skipped_steps)
[ "${skipped:-0}" -ge 1 ] && pass || fail "skipped steps: found \"$skipped\", expected 1 or more"
equal "steps with skipped ones" "$(summary skipped steps)" 9

# What is saved is what was evaluated: the average.
train averaged 2 "${common[@]}" --ema 0.8 --save-weights "$work/averaged.safetensors"
launch 1 "${common[@]}" --quiet --run-dir "$work/again" --eval-only --init-weights "$work/averaged.safetensors" \
    >/dev/null
equal "loss of the saved average" "$(summary again test_loss)" "$(summary averaged test_loss)"
train plain 2 "${common[@]}"
same_curve averaged plain $steps 1e-6
[ "$(summary plain test_loss)" != "$(summary averaged test_loss)" ] && pass || fail "the average is the last weights"

# All but the last layer frozen: saved as they were drawn.
train frozen 2 "${common[@]}" --freeze 'fc1.*' --weight-decay 0.1 --save-weights "$work/frozen.safetensors"
train drawn 2 "${common[@]}" --lr 0 --save-weights "$work/drawn.safetensors"
# Two files of the same layout differ in the last layer's 64 * 10 + 10 numbers at most.
differ=$({ cmp -l "$work/frozen.safetensors" "$work/drawn.safetensors" || true; } | wc -l)
[ "$differ" -gt 0 ] && [ "$differ" -le 2600 ] && pass || fail "frozen weights: $differ bytes differ"
refused 2 "no parameter's name" 2 "${common[@]}" --freeze nobody --run-dir "$work/refused"
finish
