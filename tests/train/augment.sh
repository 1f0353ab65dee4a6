#!/usr/bin/env bash
# Augmentation gives every number of processes and workers the same curve; evaluation has its own
# transform; a target accuracy ends the run; label smoothing reaches the loss.
. "$(dirname "$0")/lib.sh"
lenet=(--max-steps 20 --eval-every 0 --conv-algo gemm --normalize 0.286/0.353)
synthetic=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-train 1920 --synthetic-test 300
    --batch-size 96 --lr 0.05 --momentum 0.9)

# differs NAME REFERENCE: what is switched on has an effect from the first step on.
differs() {
    if [ "$(losses "$1" | head -n 1)" != "$(losses "$2" | head -n 1)" ]; then pass; else
        fail "$1 has the first loss of $2"
    fi
}

train plain 1 "${lenet[@]}"
train images-1 1 "${lenet[@]}" --augment crop:3,flip,cutout:8 --workers 0
train images-2 2 "${lenet[@]}" --augment crop:3,flip,cutout:8 --workers 2
same_curve images-2 images-1 20 1e-5
differs images-1 plain
mixed=(--augment crop:3,flip,cutout:8 --mixup 0.4 --label-smoothing 0.1)
train mixed-1 1 "${lenet[@]}" "${mixed[@]}"
train mixed-3 3 "${lenet[@]}" "${mixed[@]}" --workers 2
same_curve mixed-3 mixed-1 20 1e-5
differs mixed-1 images-1

# Another size than the data set's, in training and in evaluation, from a data set without images to lend.
sized=(--input-shape 3x20x24 --augment rrc:12,flip,cutout:3 --eval-resize 15 --max-steps 20)
train sized-1 1 "${synthetic[@]}" "${sized[@]}"
train sized-2 2 "${synthetic[@]}" "${sized[@]}" --workers 2 --accumulate 2
same_curve sized-2 sized-1 20 1e-5
equal 'hits of one and two ranks' "$(summary sized-2 test_correct)" "$(summary sized-1 test_correct)"
train inferred 1 "${synthetic[@]}" --input-shape 3x20x24 --eval-crop 12 --max-steps 20
differs inferred sized-1

# The run ends after the first evaluation that reaches the target.
slow=("${synthetic[@]}" --lr 0.001 --epochs 7)
train whole 1 "${slow[@]}"
want=$(sed -n 's/^{"kind": *"epoch".*"test_accuracy": *\([0-9.]*\).*/\1/p' "$work/whole/metrics.jsonl" |
    awk '$1 >= 0.32 { print NR; exit }')
equal 'a target on the way' "$(awk "BEGIN { print ($want > 1 && $want < 7) }")" 1
train target 2 "${slow[@]}" --target-accuracy 0.32
equal 'epochs to the target' "$(summary target epochs)" "$want"
equal 'the target was reached' "$(awk "BEGIN { print ($(summary target test_accuracy) >= 0.32) }")" 1
equal 'the target is recorded' "$(awk "BEGIN { print $(summary target target_accuracy) == 0.32 }")" 1
equal 'a time to the target' "$(awk "BEGIN { print ($(summary target seconds_to_target) > 0) }")" 1
grep -q "target accuracy 0.32 reached after $want epochs" "$work/target.out" && pass ||
    fail "the target's line: $(cat "$work/target.out")"
train missed 1 "${synthetic[@]}" --epochs 1 --target-accuracy 1
equal 'no time to a missed target' "$(summary missed seconds_to_target)" null
grep -q 'target accuracy 1 not reached' "$work/missed.out" && pass || fail 'the missed target has no line'

# The loss is a straight line in the share that is smoothed.
for share in 0 0.1 0.2; do
    train "smooth-$share" 1 "${synthetic[@]}" --max-steps 1 --label-smoothing $share
done
equal 'label smoothing' "$(awk -v a="$(losses smooth-0)" -v b="$(losses smooth-0.1)" \
    -v c="$(losses smooth-0.2)" 'BEGIN { d = c - 2 * b + a; d = d < 0 ? -d : d
        print (a != b && d < 1e-5) }')" 1

refused 2 'option --augment: found "crop:x"' 1 --augment crop:x
refused 2 'option --eval-crop: found 20, expected 16 as with --augment rrc' 2 --augment rrc:16 --eval-crop 20
refused 2 'option --target-accuracy: found with --eval-only' 1 --target-accuracy 0.5 --eval-only \
    --init-weights "$work/none"
finish
