#!/usr/bin/env bash
# Going on from a checkpoint: the bits of the undisturbed run on the same ranks, its curve on others;
# records without gaps or doubles; what may change and what may not; damaged checkpoints.
. "$(dirname "$0")/lib.sh"

# 10 steps an epoch; momentum and a moving average are state.
model=(--model lenet --dataset synthetic --synthetic-train 160 --synthetic-test 50 --batch-size 16
    --logical-ranks 4 --conv-algo direct --epochs 3 --momentum 0.9 --lr 0.01 --ema 0.9 --eval-every 2)

records() { # NAME KIND: how many
    grep -c "^{\"kind\": \?\"$2\"" "$work/$1/metrics.jsonl" || true
}
column() { # NAME KIND KEY
    sed -n "s/^{\"kind\": \\?\"$2\".*\"$3\": \\?\"\\?\\([^,}\"]*\\).*/\\1/p" "$work/$1/metrics.jsonl" | tr '\n' ' '
}
steps_of() { # NAME: their numbers
    sed -n 's/^{"kind":"step","epoch":[0-9]*,"step":\([0-9]*\),.*/\1/p' "$work/$1/metrics.jsonl" | tr '\n' ' '
}
# Files of the last checkpoint, with the state.
same_checkpoint() { # NAME REFERENCE STEP
    local file
    for file in model.safetensors optimizer.safetensors state.json MANIFEST.json; do
        equal "$1: $file" "$(cat "$work/$1"/checkpoints/step-*"$3/$file" | cksum)" \
            "$(cat "$work/$2"/checkpoints/step-*"$3/$file" | cksum)"
    done
}

# A run that is cut off by --max-steps in the middle of an epoch, or killed there.
train whole 2 "${model[@]}"
train cut 2 "${model[@]}" --max-steps 14
train cut 2 "${model[@]}" --resume auto
equal 'weights after a cut' "$(summary cut weights_xxh3)" "$(summary whole weights_xxh3)"
same_checkpoint cut whole 0000000030
same_curve cut whole 30 0
equal 'ledgers after a cut' "$(column cut epoch ledger)" "$(column whole epoch ledger)"
equal 'losses of epochs' "$(column cut epoch train_loss)" "$(column whole epoch train_loss)"
equal 'records after a cut' "$(records cut step) $(records cut epoch) $(records cut summary) $(records cut run)" \
    '30 3 1 2'
equal 'steps recorded' "$(steps_of cut)" "$(seq -s ' ' 30) "

# Statistics of norms for each shard, and dropout.
norms=(--model resnet18-small --input-shape 1x8x8 --dataset synthetic --synthetic-train 80 --synthetic-test 5
    --batch-size 16 --logical-ranks 4 --conv-algo direct --epochs 1 --momentum 0.9 --lr 0.002 --dropout 0.1)
train norms.whole 2 "${norms[@]}"
train norms 1 "${norms[@]}" --max-steps 2
train norms 2 "${norms[@]}" --resume auto
# Sums over four shards have the same order on one rank and on two.
equal 'weights with norms' "$(summary norms weights_xxh3)" "$(summary norms.whole weights_xxh3)"
same_checkpoint norms norms.whole 0000000005

# kill_in_the_middle NAME RANKS STEP ARGUMENTS...: the last rank dies in that step. (By itself: who kills it from
# outside may come when it has made as many steps as the other run has in all. Random times: kill_storm.)
kill_in_the_middle() {
    local name=$1 ranks=$2 step=$3
    shift 3
    mpirun -np "$ranks" "$program" "$@" --quiet --threads 1 --run-dir "$work/$name" \
        --inject "kill@$((ranks - 1)):$step" >"$work/out" 2>&1 || true
    equal "$name: status" "$(cat "$work/$name/status")" failed
}
kill_in_the_middle killed 2 14 "${model[@]}" --checkpoint-every 5 --epochs 400
train killed 2 "${model[@]}" --resume auto
equal 'weights after a kill' "$(summary killed weights_xxh3)" "$(summary whole weights_xxh3)"
same_curve killed whole 30 0
equal 'steps recorded after a kill' "$(steps_of killed)" "$(seq -s ' ' 30) "

# With --exact on another number of ranks, too.
exact=(--model lenet --dataset synthetic --synthetic-train 640 --synthetic-test 50 --batch-size 64
    --logical-ranks 8 --exact --momentum 0.9 --lr 0.01 --epochs 3)
train exact 1 "${exact[@]}"
kill_in_the_middle exact.killed 4 14 "${exact[@]}" --checkpoint-every 5 --epochs 400
for ranks in 2 8; do
    cp -r "$work/exact.killed" "$work/exact.$ranks"
    train "exact.$ranks" "$ranks" "${exact[@]}" --resume auto
    equal "--exact, killed at 4 ranks, $ranks ranks: weights" "$(summary "exact.$ranks" weights_xxh3)" \
        "$(summary exact weights_xxh3)"
    same_checkpoint "exact.$ranks" exact 0000000030
    same_curve "exact.$ranks" exact 30 0
done

# Other numbers of ranks, also one that the shards cannot be dealt to equally.
for ranks in loopback:1 3 loopback:4; do
    cp -r "$work/cut" "$work/moved"
    rm -r "$work/moved/checkpoints/step-0000000030"
    train moved "$ranks" "${model[@]}" --resume auto
    same_curve moved whole 30 1e-3
    equal "$ranks ranks: ledgers" "$(column moved epoch ledger)" "$(column whole epoch ledger)"
    rm -r "$work/moved"
done

# More ranks than shards: one shard for each rank then, with the norms' statistics of all.
cp -r "$work/cut" "$work/more"
rm -r "$work/more/checkpoints/step-0000000030"
train more loopback:5 "${model[@]}" --resume auto
same_curve more whole 30 1e-3
equal 'more ranks than shards: ledgers' "$(column more epoch ledger)" "$(column whole epoch ledger)"
rm -r "$work/norms/checkpoints/step-0000000005"
launch loopback:6 "${norms[@]}" --threads 1 --run-dir "$work/norms" --resume auto >"$work/out" 2>&1 ||
    fail "norms on more ranks: $(cat "$work/out")"
equal 'more ranks than shards, said' "$(grep -c '^logical shards: were 4, are 6 now' "$work/out")" 1
equal 'steps with norms on more ranks' "$(summary norms steps)" 5
refused 2 'with 5 ranks' loopback:5 "${exact[@]}" --run-dir "$work/exact.killed" --resume auto

# More epochs, another rate: said, and done. The stored batch wins over what is said per rank.
launch 2 "${model[@]}" --threads 1 --lr 0.02 --epochs 4 --run-dir "$work/cut" --resume auto >"$work/out" 2>&1 ||
    fail "more epochs: $(cat "$work/out")"
equal 'options that changed' "$(grep -c -e '^option --lr: was 0.01, is 0.02 now$' -e '^option --epochs: was 3, is 4 now$' \
    -e '^goes on after step 30 (epoch 4, step 0 of it)' "$work/out")" 3
equal 'steps of four epochs' "$(summary cut steps)" 40
per_rank=("${model[@]/--batch-size/--batch-per-rank}")
train other 1 "${per_rank[@]}" --batch-per-rank 5 --epochs 1 --resume "$work/whole/checkpoints/step-0000000030"
equal 'steps of a run that had no more to do' "$(summary other steps)" 30

# What cannot change, a directory in use, and nothing to go on from.
refused 2 '--batch-size: found 32, but the run that goes on has 16' loopback:2 "${model[@]}" --batch-size 32 \
    --run-dir "$work/cut" --resume auto
refused 2 '--logical-ranks: found 2, but the run that goes on has 4' loopback:2 "${model[@]}" --logical-ranks 2 \
    --run-dir "$work/cut" --resume auto
refused 2 '--seed: found 4, but the run' loopback:2 "${model[@]}" --seed 4 --run-dir "$work/cut" --resume auto
refused 2 '--model: found resnet18, but the run' loopback:1 "${model[@]}" --model resnet18 --run-dir "$work/cut" --resume auto
refused 2 'holds a run already' loopback:2 "${model[@]}" --run-dir "$work/cut"
refused 1 'nothing: is not there, expected auto' loopback:1 "${model[@]}" --run-dir "$work/new" --resume "$work/nothing"
mkdir "$work/empty"
refused 1 'has no complete checkpoint' loopback:1 "${model[@]}" --run-dir "$work/new" --resume "$work/empty"
train fresh 1 "${model[@]}" --resume auto --max-steps 1
equal 'steps of a fresh run' "$(summary fresh steps)" 1

# The newest is damaged, and the one before is taken; what a crash left is removed.
mkdir "$work/cut/checkpoints/step-0000000099.tmp-1-2"
printf x >>"$work/cut/checkpoints/step-0000000040/optimizer.safetensors"
launch 2 "${model[@]}" --threads 1 --epochs 4 --run-dir "$work/cut" --resume auto >"$work/out" 2>&1 ||
    fail "after damage: $(cat "$work/out")"
equal 'the damaged one is named' "$(grep -c 'step-0000000040 is skipped: .*optimizer.safetensors: has .* bytes, expected' "$work/out")" 1
equal 'the one before is taken' "$(grep -c '^goes on after step 30 ' "$work/out")" 1
equal 'what is left' "$(ls "$work/cut/checkpoints" | tr '\n' ' ')" 'step-0000000030 step-0000000040 step-0000000040.left-1 '

# Looking at checkpoints.
look() { # STATUS COMMAND...: its output is in $work/out
    local code=0 status=$1
    shift
    "$(dirname "$program")/ddp_ckpt" "$@" >"$work/out" 2>&1 || code=$?
    equal "ddp_ckpt $*" "$code" "$status"
}
look 0 verify "$work/cut" "$work/whole"
equal 'checkpoints that are good' "$(grep -c ': good, step ' "$work/out")" 4
look 0 show "$work/whole/checkpoints/step-0000000030"
equal 'what is shown' "$(grep -c -e '^  "step": 30,' -e '^  conv1.weight .*norm ' -e '^  momentum.conv1.weight ' \
    -e '^  ema.conv1.weight ' "$work/out")" 4
cp -r "$work/whole/checkpoints/step-0000000030" "$work/copy"
look 0 diff "$work/copy" "$work/whole/checkpoints/step-0000000030"
look 1 diff "$work/copy" "$work/whole/checkpoints/step-0000000020"
equal 'what differs' "$(grep -c -e '^state step: 30 and 20$' -e '^conv1.weight: .* values differ, by ' "$work/out")" 2
printf x | dd of="$work/copy/model.safetensors" bs=1 seek=5000 conv=notrunc status=none
look 1 diff "$work/copy/model.safetensors" "$work/whole/checkpoints/step-0000000030/model.safetensors"
equal 'one byte of a file' "$(grep -c ': 1 of .* values differ' "$work/out") $(wc -l <"$work/out")" '1 1'
look 1 verify "$work/copy" "$work/whole"
equal 'damage is named' "$(grep -c 'damaged: .*model.safetensors: has checksum' "$work/out")" 1
look 2 show "$work/copy"
look 2 verify "$work/nothing"
look 2 compare "$work/copy"
finish
