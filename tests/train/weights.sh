#!/usr/bin/env bash
# Files of weights with running statistics: what is saved evaluates as it did, on every number of ranks;
# a part of a file starts another head; ranks that read different files are found out.
. "$(dirname "$0")/lib.sh"
model=(--model resnet18-small --dataset synthetic --input-shape 1x8x8 --synthetic-train 96
    --synthetic-test 600 --batch-size 24 --conv-algo direct --eval-every 0)

train made 2 "${model[@]}" --max-steps 4 --lr 0.02 --save-weights "$work/made.weights"
for ranks in 1 2 loopback:3; do
    if launch $ranks "${model[@]}" --quiet --threads 1 --eval-only --run-dir "$work/eval$ranks" \
        --init-weights "$work/made.weights" --dump-logits "$work/logits$ranks" >"$work/out" 2>&1; then
        equal "$ranks ranks: loss" "$(summary "eval$ranks" test_loss)" "$(summary made test_loss)"
        equal "$ranks ranks: logits" "$(cksum <"$work/logits$ranks")" "$(cksum <"$work/logits1")"
    else
        fail "--eval-only at $ranks ranks: $(cat "$work/out")"
    fi
done
# 600 x 10 logits and 600 labels, behind a header.
bytes=$(stat -c %s "$work/logits1")
equal 'size of the logits' "$((bytes > 600 * 48 && bytes < 600 * 48 + 400))" 1

# The counters go on from the file.
train further 1 "${model[@]}" --max-steps 3 --lr 0.02 --init-weights "$work/made.weights" \
    --save-weights "$work/further.weights"
counter() { # the first eight bytes of the data are the first counter
    od -An -td8 -j $((8 + $(od -An -td8 -N8 "$1"))) -N8 "$1" | tr -d ' '
}
equal 'batches counted' "$(counter "$work/made.weights") $(counter "$work/further.weights")" '4 7'

# Another number of classes.
refused 1 'of another shape: fc.weight (10x512, not 3x512), fc.bias (10, not 3)' 2 "${model[@]}" \
    --classes 3 --quiet --max-steps 1 --init-weights "$work/made.weights" --run-dir "$work/refused"
train tuned 2 "${model[@]}" --classes 3 --max-steps 1 --init-weights "$work/made.weights" --init-partial
equal 'what a part leaves' "$(grep -c 'left as drawn what is of another shape: fc.weight (10x512, not 3x512), fc.bias (10, not 3)$' \
    "$work/tuned/rank-0.log")" 1

# The same path, another file.
mkdir "$work/a" "$work/b"
cp "$work/made.weights" "$work/a/w"
cp "$work/further.weights" "$work/b/w"
code=0
given=(-np 1 --wdir "$work/a" "$program" "${model[@]}" --quiet --max-steps 1 --init-weights w
    --run-dir "$work/differ")
mpirun "${given[@]}" : "${given[@]/"$work/a"/"$work/b"}" >"$work/out" 2>"$work/err" || code=$?
equal 'exit status of different files' "$code" 1
equal 'cause of different files' "$(grep '^ddp_train: ' "$work/err" |
    grep -c 'initial weights.*running_statistics=.*running_statistics=')" 1
finish
