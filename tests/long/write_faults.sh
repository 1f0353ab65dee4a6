#!/usr/bin/env bash
# write_faults.sh [STRIDE] - every STRIDE-th step of writing a checkpoint (creation, write, reservation,
# sync, rename) fails for want of room, fails as a broken disk does, or is where the program is killed.
# Each time the checkpoint before must be whole, and a run that goes on must end with the bits of the
# undisturbed one. Needs a compiler; ends with 77 without one.
. "$(dirname "$0")/../train/lib.sh"
stride=${1:-1}
command -v cc >/dev/null || exit 77
cc -shared -fPIC -O1 -D_GNU_SOURCE -o "$work/faults.so" "$(dirname "$0")/write_faults.c" -ldl

options=(--model lenet --dataset synthetic --synthetic-train 160 --synthetic-test 16 --batch-size 16
    --logical-ranks 2 --exact --momentum 0.9 --lr 0.01 --ema 0.9 --checkpoint-every 2 --keep 2)
checkpoint=$(dirname "$program")/ddp_ckpt

train whole loopback:2 "${options[@]}" --max-steps 8
train before loopback:2 "${options[@]}" --max-steps 4

declare -A struck=()
for error in 28 5 0; do # ENOSPC, EIO, and a kill
    struck[$error]=0
    for ((step = 0; ; step += stride)); do
        rm -rf "${work:?}/faulty" "$work/mark"
        cp -r "$work/before" "$work/faulty"
        # The shell would tell of each kill.
        { LD_PRELOAD=$work/faults.so FAULT_AT=$step FAULT_ERROR=$error FAULT_MARK=$work/mark "$program" \
            --comm loopback --loopback-ranks 2 "${options[@]}" --quiet --threads 1 --run-dir "$work/faulty" \
            --resume auto --max-steps 6 >"$work/out" 2>&1 || true; } 2>/dev/null
        [ -e "$work/mark" ] || break
        struck[$error]=$((struck[$error] + 1))
        if "$checkpoint" verify "$work/faulty/checkpoints/step-0000000004" >"$work/out" 2>&1; then
            pass
        else
            fail "errno $error at step $step: the checkpoint before: $(cat "$work/out")"
        fi
        train faulty loopback:2 "${options[@]}" --resume auto --max-steps 8
        equal "errno $error at step $step: weights" "$(summary faulty weights_xxh3)" "$(summary whole weights_xxh3)"
        equal "errno $error at step $step: steps" "$(losses faulty | cksum)" "$(losses whole | cksum)"
    done
done
echo "steps that failed: ${struck[28]} for want of room, ${struck[5]} by a broken disk, ${struck[0]} by a kill"
[ "${struck[28]}" -gt 0 ] && [ "${struck[5]}" -gt 0 ] && [ "${struck[0]}" -gt 0 ] || fail 'no step was reached'
finish
