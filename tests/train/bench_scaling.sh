#!/usr/bin/env bash
# bench_scaling.sh - ddp_bench scaling: its parts add up, and what goes wrong is told.
. "$(dirname "$0")/bench_lib.sh"

bad 'option --ranks: found "1,x"' scaling --ranks 1,x
bad 'option --batch-size: found 10, expected a multiple of 4' scaling --ranks 4 --batch-size 10 --mode strong
bad 'option --datasets: found "a,,b"' scaling --datasets a,,b
bad '--base' scaling --base some
bad '--repeats' scaling --repeats 0

model='--model mlp --mlp-widths 32 --synthetic-train 4096'
timeout 250 "$bench" scaling --ranks 1,2 --mode both --batch-per-rank 16 --batch-size 32 --train "$model" --steps 4 \
    --warmup 1 --repeats 1 --curve-time 0.001 --work-dir "$work/runs" --out "$work/out" --gnuplot no-such-gnuplot \
    >"$work/said" 2>"$work/err" || fail "scaling: $(cat "$work/said" "$work/err")"
result=$work/out/scaling.json
json "$result" "[(c['mode'], c['ranks'], c['batch_per_rank']) for c in d['cases']] ==
    [('weak', 1, 16), ('weak', 2, 16), ('strong', 1, 32), ('strong', 2, 16)]"
json "$result" "all(abs(sum(c['loss'].values()) - c['lost']) < 1e-9 and len(c['loss']) == 7 for c in d['cases'])"
json "$result" "all(near(c['efficiency'], 1 - c['lost']) for c in d['cases'])"
json "$result" "all(near(c['efficiency'] * c['run_s']['wall'],
    c['base_s']['wall'] if c['mode'] == 'weak' else c['full_s']['wall'] / c['ranks']) for c in d['cases'])"
json "$result" "all(near(c['images_per_s'] * c['run_s']['wall'], c['batch_per_rank'] * c['ranks']) for c in d['cases'])"
json "$result" "all(c['run_s']['steps'] == 4 and c['base_s']['samples'] == c['batch_per_rank'] for c in d['cases'])"
json "$result" "all(c['efficiency_min'] <= c['efficiency_max'] for c in d['cases'])"
json "$result" "all(c['ceiling'] == 1 and 'curve' not in c for c in d['cases'] if c['mode'] == 'weak' and c['ranks'] == 1)"
json "$result" "all(c['ceiling'] < 1 and len(c['curve']['points']) > 5 and c['curve']['ranks'] == 2
    for c in d['cases'] if c['mode'] == 'weak' and c['ranks'] == 2)"
json "$result" "all(c['loss']['batch'] == 0 for c in d['cases'] if c['mode'] == 'weak')"
cmp -s "$work/said" "$work/out/scaling.txt" && pass || fail "the text is not what was printed"
# Bars that lie on each other must hide those below.
grep -qx 'set style fill solid 1' "$work/out/scaling-loss.gp" && pass || fail "bars of scaling-loss.gp can be seen through"
grep -q 'no-such-gnuplot is not here' "$work/said" && pass || fail "nothing said about gnuplot"
equal 'directories of runs that are left' "$(find "$work/runs" -mindepth 1 -type d | wc -l)" 0

# Within a scheduler's job of two tasks, which a rank that trains alone must not take itself for one of.
SLURM_NTASKS=2 SLURM_PROCID=0 timeout 150 "$bench" scaling --ranks 2 --train "$model" --steps 2 --warmup 1 --repeats 1 --base alone \
    --curve-time 0.001 --work-dir "$work/runs" >"$work/said" 2>"$work/err" || fail "in a job: $(cat "$work/err")"
grep -qE '^\| synthetic \| +weak \| +2 ' "$work/said" && pass || fail "in a job: $(cat "$work/said")"

# A launcher that makes no world, and a run that fails.
printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$work/launcher"
chmod +x "$work/launcher"
code=0
timeout 150 "$bench" scaling --ranks 2 --train "$model" --steps 2 --warmup 1 --repeats 1 --launcher "$work/launcher" \
    --curve-time 0.001 --work-dir "$work/runs" >"$work/out.txt" 2>"$work/err" || code=$?
equal 'exit status without a world' "$code" 2
grep -q 'made a world of 1 ranks, expected 2' "$work/err" && pass || fail "without a world: $(cat "$work/err")"
code=0
timeout 150 "$bench" scaling --ranks 1 --train '--model no-such-model' --steps 2 --work-dir "$work/runs" \
    >"$work/out.txt" 2>"$work/err" || code=$?
equal 'exit status of a failed run' "$code" 1
grep -q 'no-such-model.* ended with status 2:' "$work/err" && grep -q '^ddp_train: .*no-such-model' "$work/err" && pass ||
    fail "a failed run: $(cat "$work/err")"
finish
