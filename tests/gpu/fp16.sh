#!/usr/bin/env bash
# Whole runs in fp16 on simulated GPUs: beside fp32 on the CPU, and with a loss scale that is far too large,
# which costs the same steps whatever the ranks, and goes on where a checkpoint left it.
. "$(dirname "$0")/../train/lib.sh"
data=(--dataset synthetic --synthetic-train 640 --synthetic-test 12 --batch-size 48 --epochs 1)
lenet=(--model lenet --momentum 0.9)
half=(--device cuda --precision fp16)

# scales NAME: of the steps, one a line.
scales() { sed -n 's/^{"kind":"step",.*"loss_scale":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"; }

train cpu 1 --device cpu "${data[@]}" "${lenet[@]}" --max-steps 5
train half 2 "${half[@]}" "${data[@]}" "${lenet[@]}" --max-steps 5
same_curve half cpu 5 1e-4
equal 'skipped steps' "$(summary half skipped_steps)" 0
equal 'scales' "$(scales half | sort -u)" 65536
[ -z "$(scales cpu)" ] || fail "fp32 has a loss scale"
# A residual network's norms see f16 too; their rounding grows from step to step.
resnet=(--model resnet18-small --batch-size 2 --lr 0.01 --max-steps 2 --synthetic-test 1)
train norms-cpu 1 --device cpu "${data[@]}" "${resnet[@]}"
train norms 1 "${half[@]}" "${data[@]}" "${resnet[@]}" --loss-scale 256
same_curve norms norms-cpu 2 3e-3

# 2^30 is too much for these gradients, until it was halved often enough.
large=("${half[@]}" "${data[@]}" "${lenet[@]}" --loss-scale 1073741824)
train large 2 "${large[@]}" --max-steps 13
train alone 1 "${large[@]}" --max-steps 13
same_curve alone large 13 1e-4
scales large >"$work/scales"
equal 'scales of one rank' "$(scales alone | tr '\n' ' ')" "$(tr '\n' ' ' <"$work/scales")"
equal 'first scale' "$(head -n 1 "$work/scales")" 1.07374182e+09
skipped=$(summary large skipped_steps)
[ "$skipped" -ge 4 ] && [ "$skipped" -le 11 ] || fail "$skipped steps were skipped of 13"
equal 'scales that were tried' "$(sort -u "$work/scales" | wc -l)" "$((skipped + 1))"

# Stopped while it comes down.
train stopped 2 "${large[@]}" --max-steps 3 --checkpoint-every 3
train resumed 2 "${large[@]}" --max-steps 13 --resume "$work/stopped/checkpoints/step-0000000003"
equal 'scale after a resume' "$(scales resumed | head -n 1)" "$(sed -n 4p "$work/scales")"
equal 'loss after a resume' "$(losses resumed | tail -n 1)" "$(losses large | tail -n 1)"

refused 2 'where ranks compute on CPUs' 2 --precision fp16 "${data[@]}" "${lenet[@]}" --exact
finish
