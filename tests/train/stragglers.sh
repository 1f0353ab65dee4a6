#!/usr/bin/env bash
# A rank that is late in every step is named, while it is so and at the end of the epoch, and records have it.
. "$(dirname "$0")/lib.sh"
model=(--dataset synthetic --synthetic-train 1152 --synthetic-test 64 --model mlp --mlp-widths 64 --epochs 2
    --batch-size 48 --eval-every 0 --threads 1)
late=
for step in $(seq 3 18); do late+=${late:+,}delay@1:$step:0.25; done

# 24 steps an epoch; in the second one nobody is late on purpose. The warning needs ten late steps on end: there are
# some more, all so late that no other rank is as late by chance.
mpirun -np 3 "$program" "${model[@]}" --run-dir "$work/run" --inject "$late" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
equal 'warnings' "$(grep -c 'rank 1 on .* is slow: .* it is behind in: between steps' "$work/out")" 1
grep -q '^slowest: rank 1 on .* ms a step of its own, .* (between steps), in [0-9]* of 24 steps' "$work/out" && pass ||
    fail "$(cat "$work/out")"
record=$(grep -m 1 '"kind": *"epoch"' "$work/run/metrics.jsonl")
grep -qE '"slowest": *\{"rank": *1, *"host": *"[^"]*", *"part": *"between steps", *"steps": *(1[0-9]|2[0-4])\}' <<<"$record" && pass ||
    fail "$record"
own=$(sed 's/.*"own_ms": *\[\([^]]*\)\].*/\1/' <<<"$record")
equal 'ranks' "$(tr ',' '\n' <<<"$own" | wc -l)" 3
awk -F, '{ exit !($2 > $1 + 80 && $2 > $3 + 80) }' <<<"$own" && pass || fail "own times: $own"

# Alone, nobody is slower than the others.
mpirun -np 1 "$program" "${model[@]}" --run-dir "$work/alone" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
equal 'alone' "$(grep -c 'slowest\|is slow:' "$work/out" "$work/alone/metrics.jsonl" | sed 's/.*://' | sort -u)" 0
finish
