#!/usr/bin/env bash
# Numbers that are not finite: never applied, named by rank, layer and samples, kept in a file that one rank
# computes again.
. "$(dirname "$0")/lib.sh"
model=(--dataset synthetic --synthetic-train 160 --synthetic-test 16 --batch-size 32 --epochs 2 --threads 1 --quiet
    --eval-every 0)
lenet=("${model[@]}" --model lenet --lr 1e6 --weight-decay 1e6)
resnet=("${model[@]}" --model resnet18-small --input-shape 1x8x8 --dropout 0.1 --mixup 0.3)

# replays NAME FILE TEXT...: the file lies in the run directory and gives these lines again.
replays() {
    local name=$1 file=$2
    shift 2
    "$program" --config "$work/$name/config.ini" --replay "$work/$name/$file" >"$work/out" 2>&1 ||
        fail "$name: replay: $(cat "$work/out")"
    for text in "$@"; do
        equal "$name: replay: $text" "$(grep -c -- "$text" "$work/out")" 1
    done
}

# The second step starts from parameters that are huge, but finite.
first='loss or gradients of rank 0 are not finite.*rank 0, shard 0: first the output of layer fc2 (160 of 160 values), samples '
for ranks in 2 loopback:2; do
    name=huge.$ranks
    refused 1 'step 2 (epoch 1): loss or gradients of rank 0' "$ranks" "${lenet[@]}" --run-dir "$work/$name"
    equal "$ranks: cause" "$(grep -c "$first" "$work/err")" 1
    equal "$ranks: files" "$(ls "$work/$name" | grep nonfinite)" nonfinite-step-2-rank-0.safetensors
    replays "$name" nonfinite-step-2-rank-0.safetensors 'step 2 (epoch 1), rank 0, shard 0' \
        '^conv1  *output .* 0 of 216320$' '^replay: first the output of layer fc2: 160 of 160 values'
done

# Inputs, of images that are mixed; norms and dropout on the way. The rank at fault alone is named.
refused 1 'first the inputs (' loopback:2 "${resnet[@]}" --normalize 0/1e-45 --run-dir "$work/inputs"
replays inputs nonfinite-step-1-rank-0.safetensors '^replay: first the inputs: '
refused 1 'first the output of layer stem_bn (' 2 "${resnet[@]}" --normalize 0/4e-39 --run-dir "$work/outputs"
replays outputs nonfinite-step-1-rank-0.safetensors '^replay: first the output of layer stem_bn: '

# With skip the first one is traced, and the run goes on with the step behind it.
train skipped 2 "${lenet[@]}" --on-nonfinite skip --max-steps 7
equal 'skip: steps' "$(summary skipped steps) $(summary skipped skipped_steps)" '7 6'
equal 'skip: traced' "$(grep -c 'skipped, 1 so far.*first the output of layer fc2' "$work/skipped.out")" 1
equal 'skip: files' "$(ls "$work/skipped" | grep -c nonfinite)" 1

# What a replay cannot do.
file=$work/huge.2/nonfinite-step-2-rank-0.safetensors
refused 2 'found 2 ranks, expected one' 2 --config "$work/huge.2/config.ini" --replay "$file"
refused 1 'has no parameter' 1 --replay "$file" --model mlp
cp "$work/skipped/config.ini" "$work/no.safetensors"
refused 1 'no.safetensors' 1 --replay "$work/no.safetensors"
finish
