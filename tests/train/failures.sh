#!/usr/bin/env bash
# A rank that is killed or stopped ends all within the deadline, with one cause and a non-zero status.
. "$(dirname "$0")/lib.sh"

# pid_of NAME RANK: from environment.json.
pid_of() {
    { tr -d ' \n' <"$work/$1/environment.json"; echo; } | sed -n "s/.*{\"rank\":$2,[^}]*\"pid\":\([0-9]*\).*/\1/p"
}

# disturb SIGNAL RANKS RANK LIMIT ARGUMENTS...: sends the signal to a rank of a run that is training,
# and expects the end of all within LIMIT seconds.
disturb() {
    local signal=$1 ranks=$2 rank=$3 limit=$4 name code=0 start seconds pids causes
    shift 4
    name="$signal-$ranks-$rank-$RANDOM"
    mpirun -np "$ranks" "$program" --dataset synthetic --synthetic-train 4096 --synthetic-test 256 \
        --model mlp --mlp-widths 128 --epochs 100000 --batch-size 128 --eval-every 0 --quiet \
        --threads 1 --run-dir "$work/$name" "$@" >"$work/out" 2>"$work/err" &
    local job=$!
    reach "$name" 21 || { kill -9 $job 2>/dev/null || true; return 0; }
    pids=$(for r in $(seq 0 $((ranks - 1))); do pid_of "$name" "$r"; done)
    if [ "$(echo "$pids" | wc -w)" -ne "$ranks" ]; then
        fail "$name: no process ids in environment.json: $(cat "$work/err")"
        kill -9 $job 2>/dev/null || true
        return 0
    fi
    start=$(date +%s%N)
    kill -s "$signal" "$(pid_of "$name" "$rank")"
    for _ in $(seq $((limit * 20))); do
        kill -0 $job 2>/dev/null || break
        sleep 0.05
    done
    if kill -0 $job 2>/dev/null; then
        fail "$name: still there after $limit s: $(cat "$work/err")"
        kill -9 $job $pids 2>/dev/null || true
        wait $job 2>/dev/null || true
        return 0
    fi
    wait $job || code=$?
    seconds=$(awk "BEGIN { print ($(date +%s%N) - $start) / 1e9 }")
    causes=$(grep -c '^ddp_train: ' "$work/err" || true)
    echo "$name: ended after $seconds s: $(grep '^ddp_train: ' "$work/err" || true)"
    if [ $code -eq 0 ]; then fail "$name: exit status 0"; else pass; fi
    if [ "$causes" -eq 1 ]; then pass; else fail "$name: $causes causes: $(cat "$work/err")"; fi
    if grep '^ddp_train: ' "$work/err" | grep -q "rank $rank"; then
        pass
    else
        fail "$name: the cause does not name rank $rank"
    fi
    for pid in $pids; do
        if gone "$pid"; then pass; else fail "$name: process $pid is left"; fi
    done
    equal "$name: status" "$(cat "$work/$name/status" 2>/dev/null | grep -v trained)" failed
}

# One rank gets too little memory: all end, and the cause names it.
limited=("$program" --dataset synthetic --synthetic-train 256 --synthetic-test 16 --model mlp
    --mlp-widths 4096,4096 --max-steps 2 --threads 1 --quiet --run-dir "$work/limited")
code=0
mpirun -np 1 "${limited[@]}" : -np 1 bash -c 'ulimit -v 700000; exec "$@"' _ "${limited[@]}" \
    >"$work/out" 2>"$work/err" || code=$?
equal 'exit status without memory' "$code" 1
equal 'causes without memory' "$(grep -c '^ddp_train: .*rank 1 .*memory' "$work/err")" 1
equal 'lines of causes without memory' "$(grep -c '^ddp_train: ' "$work/err")" 1

# It takes a second or two, and the deadline. A busy machine may take longer; a run that hangs does so for good.
limit=40
for ranks in 2 4; do
    disturb KILL $ranks 1 $limit
    disturb STOP $ranks 1 $limit --comm-timeout 4
done
disturb KILL 3 0 $limit
disturb STOP 4 2 $limit --comm-timeout 4 --allreduce ring
disturb STOP 3 0 $limit --comm-timeout 4
# Nodes that talk by messages and TCP only; rank 0 is where the connections meet.
disturb KILL 3 1 $limit --no-shared-memory
disturb KILL 4 0 $limit --no-shared-memory
disturb STOP 3 2 $limit --comm-timeout 4 --no-shared-memory
finish
