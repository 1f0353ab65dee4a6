#!/usr/bin/env bash
# A run directory has one run: a second one at the same time is refused, and leaves nothing behind; going
# back to an older checkpoint does not leave a newer one to be found; damage does not start a run anew.
. "$(dirname "$0")/lib.sh"
model=(--model mlp --mlp-widths 8 --dataset synthetic --synthetic-train 80 --synthetic-test 20
    --batch-size 16 --conv-algo direct --quiet --threads 1)

# Two at once. The second waits a moment for the first to be gone.
"$program" --comm loopback --loopback-ranks 2 "${model[@]}" --epochs 1000000 --run-dir "$work/shared" \
    >"$work/shared.out" 2>&1 &
first=$!
reach shared 1
refused 1 'another run is at work in' loopback:1 "${model[@]}" --epochs 1 --run-dir "$work/shared" --resume auto
equal 'status of the first' "$(cat "$work/shared/status")" running
kill -9 "$first"
wait "$first" || true
train shared loopback:2 "${model[@]}" --resume auto --max-steps 3

# Back to step 5 of 15, on to 7, and on from there.
train back loopback:1 "${model[@]}" --epochs 3 --keep 5
train back loopback:1 "${model[@]}" --lr 0.01 --max-steps 7 --resume "$work/back/checkpoints/step-0000000005"
equal 'what is left' "$(ls "$work/back/checkpoints" | tr '\n' ' ')" \
    'step-0000000005 step-0000000007 step-0000000010.left-1 step-0000000015.left-1 '
train back loopback:1 "${model[@]}" --lr 0.01 --max-steps 9 --resume auto
equal 'steps recorded' "$(sed -n 's/^{"kind":"step","epoch":[0-9]*,"step":\([0-9]*\),.*/\1/p' \
    "$work/back/metrics.jsonl" | tr '\n' ' ')" "$(seq -s ' ' 9) "

# All damaged: the records stay.
for checkpoint in "$work"/back/checkpoints/step-??????????; do
    echo >>"$checkpoint/model.safetensors"
done
cksum <"$work/back/metrics.jsonl" >"$work/before"
refused 1 'has checkpoints, but none to go on from' loopback:1 "${model[@]}" --run-dir "$work/back" --resume auto
equal 'records after damage' "$(cksum <"$work/back/metrics.jsonl")" "$(cat "$work/before")"

# A directory whose name is that of a way to resume.
cd "$work"
train none loopback:1 "${model[@]}" --max-steps 1
refused 2 'holds a run already' loopback:1 "${model[@]}" --run-dir none --resume none
finish
