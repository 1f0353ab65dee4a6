#!/usr/bin/env bash
# Weights go from here to PyTorch and back: strict loading, and the same logits on both sides. Skipped
# where no Python has torch; unit.weights_torch then still reads files that PyTorch wrote.
. "$(dirname "$0")/lib.sh"
scripts=$(cd "$(dirname "$0")/../torch" && pwd)
export PYTHONDONTWRITEBYTECODE=1 SYNTHETIC='5 24 7 3x64x64'
data=(--model resnet18 --dataset synthetic --seed 5 --synthetic-test 24 --classes 7
    --input-shape 3x64x64 --conv-algo direct)
steps=(--synthetic-train 96 --batch-size 24 --lr 0.02 --eval-every 0)

python=
for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import torch, numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || { echo "skipped: no Python with torch and numpy"; exit 77; }

in_torch() {
    if "$python" "$scripts/check_weights.py" "$@" >"$work/torch" 2>&1; then
        cat "$work/torch"
        pass
    else
        fail "check_weights.py: $(tail -n 5 "$work/torch")"
    fi
}

# dump NAME RANKS: logits of $work/NAME.weights on the test set, in $work/NAME.logits.
dump() {
    launch "$2" "${data[@]}" --quiet --threads 1 --eval-only --init-weights "$work/$1.weights" \
        --dump-logits "$work/$1.logits" --run-dir "$work/$1.eval" >"$work/out" 2>&1 ||
        fail "--eval-only on $1: $(cat "$work/out")"
}

# Trained here.
train ours 2 "${data[@]}" "${steps[@]}" --max-steps 4 --save-weights "$work/ours.weights"
dump ours 2
# Made there, evaluated here, and trained on here from one batch that is counted already.
in_torch make resnet18 "$work/theirs.weights" "$work/theirs.wanted"
dump theirs 1
train further 2 "${data[@]}" "${steps[@]}" --max-steps 3 --init-weights "$work/theirs.weights" \
    --save-weights "$work/further.weights"
dump further loopback:2
in_torch load resnet18 "$work/ours.weights" "$work/ours.logits" 4 + \
    same "$work/theirs.logits" "$work/theirs.wanted" + \
    load resnet18 "$work/further.weights" "$work/further.logits" 4
finish
