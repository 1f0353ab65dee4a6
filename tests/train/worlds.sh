#!/usr/bin/env bash
# worlds.sh MODEL - 50 steps on Fashion-MNIST: every number of processes gives one process's losses.
. "$(dirname "$0")/lib.sh"
model=$1
common=(--model "$model" --mlp-widths 512,256 --max-steps 50 --eval-every 0 --conv-algo gemm)

train one 1 "${common[@]}"
for ranks in 2 3 4 5 8; do
    train "ranks$ranks" $ranks "${common[@]}"
    same_curve "ranks$ranks" one 50 1e-5
    # The losses of a run that does not learn would be the same as well.
    equal "$ranks ranks: samples evaluated" "$(summary "ranks$ranks" test_samples)" 10000
done
if [ "$model" = mlp ]; then
    first=$(losses one | head -n 1) last=$(losses one | tail -n 1)
    equal 'mlp has learned' "$(awk "BEGIN { print ($last < 0.6 * $first) }")" 1
fi
finish
