#!/usr/bin/env bash
# bench_overlap.sh - ddp_bench overlap: times of buckets that fit together, with overlap and without, and from a file.
. "$(dirname "$0")/bench_lib.sh"

bad '--ranks' overlap --ranks 1
bad '--steps' overlap --steps 0
code=0
"$bench" overlap --trace "$work/no-such.json" >"$work/said" 2>"$work/err" || code=$?
equal 'exit status without the file' "$code" 1
grep -q 'no-such.json' "$work/err" && pass || fail "without the file: $(cat "$work/err")"

# The ring's communication goes on while the ranks compute. Parameters: 784 x 256 + 256 + 256 x 10 + 10,
# each padded a little.
model='--model mlp --mlp-widths 256 --batch-per-rank 64 --synthetic-train 4096 --first-bucket-mb 0.01 --bucket-cap-mb 0.5'
timeout 250 "$bench" overlap --train "$model --allreduce ring" --steps 8 --warmup 2 --work-dir "$work/logs of runs" \
    --out "$work/out" --gnuplot no-such-gnuplot >"$work/said" 2>"$work/err" || fail "overlap: $(cat "$work/said" "$work/err")"
result=$work/out/overlap.json
json "$result" "d['ranks'] == 2 and d['steps'] == 8 and d['sync']['steps'] == 8"
json "$result" "0 <= sum(b['bytes'] for b in d['buckets']) - 4 * (784 * 256 + 256 + 256 * 10 + 10) < 256"
json "$result" "[b['bytes'] for b in d['buckets']] == [b['bytes'] for b in d['sync']['buckets']] and len(d['buckets']) > 1"
json "$result" "all(b['ready_s'] <= b['start_s'] <= b['end_s'] for b in d['buckets'])"
json "$result" "all(0 <= b['hidden_s'] <= b['took_s'] for b in d['buckets'])"
json "$result" "all(b['hidden_s'] == 0 for b in d['sync']['buckets'])"
# A rank that the communication thread put off the processor may not have waited at all. (Exact times: unit.bench_overlap.)
json "$result" "all(0 <= d['exposed_s'] <= d['exposed_mean_s'] < d['step_s'] and d['comm_s'] > 0 for d in (d, d['sync']))"
json "$result" "all(near(d['allowed_s'], max(0, d['comm_s'] - d['backward_s']) + d['comm_s'] / 10) for d in (d, d['sync']))"
json "$result" "all(d['hidden'] == (d['exposed_s'] <= d['allowed_s']) for d in (d, d['sync']))"
cmp -s "$work/said" "$work/out/overlap.txt" && pass || fail "the text is not what was printed"
[ -s "$work/out/overlap.gp" ] && pass || fail "no script"
equal 'directories of runs that are left' "$(find "$work/logs of runs" -mindepth 1 -type d | wc -l)" 0

# A run's own file says the same.
train traced 2 $model --dataset synthetic --max-steps 6 --trace-steps 3 --eval-every -1
"$bench" overlap --trace "$work/traced/trace.json" --out "$work/file" >"$work/said" 2>"$work/err" || fail "$(cat "$work/err")"
json "$work/file/overlap.json" "d['ranks'] == 2 and d['steps'] == 3 and 'sync' not in d and len(d['buckets']) > 1"

# Nothing is measured for a folder that takes no files, or where a run would go among somebody's.
mkdir -p "$work/mine/ddp"
: >"$work/mine/ddp/file"
code=0
"$bench" overlap --train "$model" --work-dir "$work/mine" >"$work/said" 2>"$work/err" || code=$?
equal 'exit status with files of others' "$code" 1
[ -f "$work/mine/ddp/file" ] && grep -q 'mine/ddp is for a run, and there already' "$work/err" && pass ||
    fail "files of others: $(cat "$work/err")"
code=0
"$bench" overlap --train "$model" --work-dir "$work/unused" --out /proc/no-such >"$work/said" 2>"$work/err" || code=$?
equal 'exit status without --out' "$code" 1
[ ! -e "$work/unused" ] && grep -q '/proc/no-such' "$work/err" && pass || fail "without --out: $(cat "$work/err")"

printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$work/launcher"
chmod +x "$work/launcher"
code=0
"$bench" overlap --train "$model" --steps 2 --launcher "$work/launcher" --work-dir "$work/runs" >"$work/said" \
    2>"$work/err" || code=$?
equal 'exit status without a world' "$code" 2
grep -q 'made a world of 1 ranks, expected 2' "$work/err" && pass || fail "without a world: $(cat "$work/err")"
finish
