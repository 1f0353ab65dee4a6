#!/usr/bin/env bash
# config.ini gives the same run again; where a value comes from; questions that need no ranks.
. "$(dirname "$0")/lib.sh"

train first 2 --model mlp --mlp-widths 64,32 --dataset synthetic --synthetic-train 500 \
    --synthetic-test 100 --batch-per-rank 25 --lr 0.1 --momentum 0.9 --nesterov --seed 7 --epochs 1 \
    --lr-scale linear --normalize 0.5/0.25
rm -f "$work/again.out"
train again 2 --config "$work/first/config.ini"
same_curve again first 10 0
equal 'the same weights' "$(summary again weights_xxh3)" "$(summary first weights_xxh3)"
equal 'effective rate' "$(sed -n 's/^{"kind":"step",.*"lr":\([^,]*\),.*/\1/p' \
    "$work/first/metrics.jsonl" | head -n 1)" "$(awk 'BEGIN { printf "%.9g", 0.1 * 50 / 256 }')"
train other 2 --config "$work/first/config.ini" --seed 8
if [ "$(summary other weights_xxh3)" = "$(summary first weights_xxh3)" ]; then
    fail 'another seed gives the same weights'
else
    pass
fi

printf 'epochs = 3\nlr = 0.5\nseed = 4\n' >"$work/some.ini"
DDP_TRAIN_LR=0.25 DDP_TRAIN_SEED=5 "$program" --config "$work/some.ini" --seed 6 --print-config \
    >"$work/printed"
equal 'from the file' "$(grep -c '^epochs = 3 .*some.ini' "$work/printed")" 1
equal 'from a variable' "$(grep -c '^lr = 0.25 .*DDP_TRAIN_LR' "$work/printed")" 1
equal 'from the command line' "$(grep -c '^seed = 6 .*command line' "$work/printed")" 1
equal 'a default' "$(grep -c '^batch-size = 256 .*default' "$work/printed")" 1
equal '--version' "$("$program" --version | grep -c '^ddp_train [0-9]')" 1
equal '--help' "$("$program" --help | grep -c -- '--batch-size=')" 1
equal '--help of three ranks' "$(mpirun -np 3 "$program" --help | grep -c -- '--batch-size=')" 1
finish
