#!/usr/bin/env bash
# Being asked to stop: all ranks save after the same step and leave with status 3, and the run goes on as
# if nothing had been. Signals to every rank or to one, a time limit, the end of a Slurm job.
. "$(dirname "$0")/lib.sh"
model=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-train 640 --synthetic-test 50
    --batch-size 16 --epochs 100000 --momentum 0.9 --lr 0.01 --checkpoint-epochs 0 --quiet --threads 1)

# stopped NAME CODE: it has ended so, and its checkpoint is that of its last step.
stopped() {
    local steps
    equal "$1: exit status" "$2" 3
    equal "$1: status" "$(cat "$work/$1/status")" stopped
    steps=$(summary "$1" steps)
    equal "$1: records" "$(grep -c '"kind":"step"' "$work/$1/metrics.jsonl")" "$steps"
    equal "$1: checkpoint" "$(ls "$work/$1/checkpoints")" "$(printf 'step-%010d' "$steps")"
}
# goes_on NAME: some more steps, as a run without the stop makes them.
goes_on() {
    local steps=$(($(summary "$1" steps) + 7))
    train "$1" 2 "${model[@]}" --resume auto --max-steps "$steps"
    train "$1.whole" 2 "${model[@]}" --max-steps "$steps"
    equal "$1: weights" "$(summary "$1" weights_xxh3)" "$(summary "$1.whole" weights_xxh3)"
    same_curve "$1" "$1.whole" "$steps" 0
}

# mpirun hands USR1 on to all ranks.
code=0
mpirun -np 2 "$program" "${model[@]}" --run-dir "$work/usr1" >"$work/usr1.out" 2>&1 &
reach usr1 6
kill -USR1 "$!"
wait "$!" || code=$?
stopped usr1 "$code"
goes_on usr1

# One rank alone is told.
for signal in TERM INT; do
    code=0
    mpirun -np 2 "$program" "${model[@]}" --run-dir "$work/$signal" >"$work/$signal.out" 2>&1 &
    reach "$signal" 6
    kill "-$signal" "$(pgrep -P "$!" -x ddp_train | tail -n 1)"
    wait "$!" || code=$?
    stopped "$signal" "$code"
done

# Threads of one process; a second signal is not waited for.
code=0
"$program" --comm loopback --loopback-ranks 2 "${model[@]}" --run-dir "$work/threads" >"$work/threads.out" 2>&1 &
reach threads 6
kill -TERM "$!"
wait "$!" || code=$?
stopped threads "$code"
code=0
"$program" "${model[@]}" --run-dir "$work/twice" >"$work/twice.out" 2>&1 &
reach twice 6
kill -STOP "$!"
kill -TERM "$!"
kill -USR1 "$!"
kill -CONT "$!"
wait "$!" || code=$?
# Both wait when it goes on; whichever comes second ends it.
[ "$code" -gt 128 ] && pass || fail "a second signal: exit status $code"

# The time is up before the limit, with room for the save.
code=0
limit=8
launch 2 "${model[@]}" --time-limit ${limit}s --run-dir "$work/limit" >"$work/limit.out" 2>&1 || code=$?
stopped limit "$code"
# Of the limit, the start takes a part as well; the last save may take longer than thought.
awk -v s="$(summary limit seconds)" -v limit=$limit 'BEGIN { exit !(s > 0.2 && s < 2 * limit) }' && pass ||
    fail "the time limit was not kept: $(summary limit seconds) s"
grep -q 'stopped after step .*: the time is up' "$work/limit.out" && pass || fail "$(cat "$work/limit.out")"
goes_on limit
code=0
SLURM_JOB_END_TIME=$(($(date +%s) + 8)) "$program" "${model[@]}" --run-dir "$work/slurm" >"$work/slurm.out" 2>&1 ||
    code=$?
stopped slurm "$code"
finish
