#!/usr/bin/env bash
# Timelines: strict in form, whole in sense, clocks together; at the end, by USR2, after a slow step; and
# what happens where none can be written.
. "$(dirname "$0")/lib.sh"
check=${DDP_CHECK_TRACE:?the path of check_trace}
# Several buckets.
model=(--model lenet --dataset synthetic --synthetic-train 6400 --synthetic-test 50 --batch-size 32
    --conv-algo direct --first-bucket-mb 0.05 --bucket-cap-mb 0.1 --workers 1)

# good NAME FILE RANKS STEPS BYTES overlap|none|any CLOCK_US
good() {
    local name=$1 file=$2 text
    shift 2
    if text=$("$check" "$work/$name/$file" "$@" 2>&1); then pass; else fail "$name: $file: $text"; fi
}

bytes=0
for strategy in naive:none ddp:overlap sync:none; do
    train "${strategy%:*}" 4 "${model[@]}" --strategy "${strategy%:*}" --max-steps 30 --trace-steps 5
    good "${strategy%:*}" trace.json 4 5 "$bytes" "${strategy#*:}" 0
    # Everything is in one piece with naive; buckets are as much.
    bytes=$(sed -n 's/.*"cat":"bucket".*"bytes":\([0-9]*\).*/\1/p' "$work/naive/trace.json" | sed -n 1p)
done
# Layers by their names, a loader, and the snapshot and file of a checkpoint.
for text in '"name":"conv2","cat":"layer backward"' '"name":"loss"' '"name":"loader"' '"cat":"load"' \
    '"cat":"checkpoint"' '"cat":"checkpoint write"' '"cat":"wait"' '"cat":"evaluation"' \
    '"name":"rank 3 on '; do
    if grep -qF "$text" "$work/ddp/trace.json"; then pass; else fail "ddp: no $text"; fi
done
equal 'steps shown' "$(grep -c '"cat":"step"' "$work/ddp/trace.json")" 20
equal 'files' "$(cd "$work/ddp" && echo trace*)" trace.json

# More steps than there were, and several shards of a rank.
train all 2 "${model[@]}" --max-steps 3 --trace-steps 1000 --accumulate 2
good all trace.json 2 3 0 any 0
train threads loopback:4 "${model[@]}" --max-steps 8 --trace-steps 4
good threads trace.json 4 4 0 overlap 0
train clipped 2 "${model[@]}" --max-steps 8 --trace-steps 4 --clip-grad-norm 1
good clipped trace.json 2 4 0 any 0

# Ranks without shared memory, whose clocks are hours apart.
if unshare -T --monotonic 5000 true 2>/dev/null; then
    if mpirun -np 3 bash -c 'exec unshare -T --monotonic $((5000 * OMPI_COMM_WORLD_RANK)) "$@"' - \
        "$program" "${model[@]}" --run-dir "$work/clocks" --no-shared-memory --max-steps 30 --trace-steps 5 \
        >"$work/clocks.out" 2>&1; then
        good clocks trace.json 3 5 0 any 2000 # messages of a busy machine tell no better
    else
        fail "clocks: $(cat "$work/clocks.out")"
    fi
else
    echo "clocks that differ: not tried, the kernel has no time namespaces for us"
fi

# USR2 to all processes, and then to one of them; the run goes on.
wait_for() { # so many files
    for ((i = 0; i < 1200; i++)); do
        [ "$(compgen -G "$work/usr2/trace-step-*.json" | wc -l)" -lt "$1" ] || return 0
        sleep 0.05
    done
    fail "$1 timelines do not come"
}
mpirun -np 2 "$program" "${model[@]}" --epochs 100000 --run-dir "$work/usr2" >"$work/usr2.out" 2>&1 &
run=$!
reach usr2 40
kill -USR2 "$run"
wait_for 1
first=$(cd "$work/usr2" && echo trace-step-*.json)
good usr2 "$first" 2 20 0 overlap 0
sleep 1.5
equal 'files of one request' "$(cd "$work/usr2" && echo trace-step-*.json)" "$first"
kill -USR2 "$(pgrep -P "$run" -f "$work/usr2" | tail -1)"
wait_for 2
kill -USR1 "$run"
code=0
wait "$run" || code=$?
equal 'exit status after USR2' "$code" 3
rm -f "$work/usr2/$first"
good usr2 "$(cd "$work/usr2" && echo trace-step-*.json)" 2 20 0 overlap 0

# A rank that comes late makes the step slow for both; the next control word tells. A busy machine may add
# slow steps of its own.
train slow 2 "${model[@]}" --max-steps 60 --trace-slow 100 --trace-steps 2 --inject delay@1:40:8
good slow trace-step-41.json 2 2 0 overlap 0
good slow trace.json 2 2 0 overlap 0
grep -q 'step 40 took more than 100 times' "$work/slow/rank-0.log" && pass || fail 'slow: not told'
[ "$(compgen -G "$work/slow/trace-step-*" | wc -l)" -le 3 ] && pass || fail 'slow: too many files'

# Steps that are hardly slow are many; three files are enough.
train often 2 "${model[@]}" --max-steps 60 --trace-slow 1.001 --trace-steps 1
equal 'files of many slow steps' "$(compgen -G "$work/often/trace-step-*" | wc -l)" 3

# What cannot be written is a warning.
mkdir -p "$work/blocked/trace.json.tmp"
train blocked 2 "${model[@]}" --max-steps 5 --trace-steps 5
grep -q 'no timeline' "$work/blocked.out" && pass || fail "blocked: no warning: $(cat "$work/blocked.out")"
train without 2 "${model[@]}" --max-steps 5 --no-spans
equal 'files without spans' "$(cd "$work/without" && echo trace*)" 'trace*'
for arguments in '--no-spans --trace-steps 5' '--no-spans --trace-slow 3' '--trace-slow 0.5' '--trace-steps -1'; do
    code=0
    "$program" "${model[@]}" $arguments --run-dir "$work/refused" >"$work/out" 2>&1 || code=$?
    equal "$arguments: status" "$code" 2
    grep -q "option --trace-.*found.*expected" "$work/out" && pass || fail "$arguments: $(cat "$work/out")"
done
finish
