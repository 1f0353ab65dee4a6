#!/usr/bin/env bash
# Given weights have the same hits and the same loss at every number of ranks, to the last sample.
. "$(dirname "$0")/lib.sh"
model=(--model mlp --mlp-widths 128)

train made 2 "${model[@]}" --max-steps 60 --eval-every 0 --save-weights "$work/weights.safetensors"
for ranks in 1 2 3 5 8; do
    if launch $ranks "${model[@]}" --quiet --threads 1 --eval-only --run-dir "$work/eval$ranks" \
        --init-weights "$work/weights.safetensors" >"$work/out" 2>&1; then
        equal "$ranks ranks: hits" "$(summary "eval$ranks" test_correct)" \
            "$(summary made test_correct)"
        equal "$ranks ranks: loss" "$(summary "eval$ranks" test_loss)" "$(summary made test_loss)"
        equal "$ranks ranks: weights" "$(summary "eval$ranks" weights_xxh3)" \
            "$(summary made weights_xxh3)"
        equal "$ranks ranks: last lines" \
            "$(grep -c "^test accuracy 0\.[0-9]* ($(summary made test_correct) of 10000)$" "$work/out")" 1
    else
        fail "--eval-only at $ranks ranks: $(cat "$work/out")"
    fi
done

# Held-out samples are not trained on, and the test set is still evaluated.
train held 2 "${model[@]}" --val-split 0.1 --max-steps 20
equal 'training samples' "$(sed -n 's/.*"train": *\([0-9]*\),.*/\1/p' "$work/held/metrics.jsonl" |
    head -n 1)" 54000
equal 'test samples' "$(summary held test_samples)" 10000
equal 'validation accuracy' "$(summary held val_accuracy | grep -c '^0\.[0-9]')" 1
# Never: the same weights, and no word about a test.
train never 2 "${model[@]}" --max-steps 60 --eval-every -1
equal 'weights without an evaluation' "$(summary never weights_xxh3)" "$(summary made weights_xxh3)"
equal 'records of accuracy' "$(grep -c test_accuracy "$work/never/metrics.jsonl" || true)" 0
equal 'lines about accuracy' "$(grep -c accuracy "$work/never.out" || true)" 0
refused 2 'option --target-accuracy: found with --eval-every -1' 1 --eval-every -1 --target-accuracy 0.5
finish
