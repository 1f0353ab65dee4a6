#!/usr/bin/env bash
# launch/run_restarts.sh: a run that fails twice ends with the bits of one that does not; what is restarted,
# what is not, and what is cleaned away.
. "$(dirname "$0")/lib.sh"
script=$(dirname "$0")/../../launch/run_restarts.sh
model=(--dataset synthetic --synthetic-train 480 --synthetic-test 48 --model mlp --mlp-widths 64 --epochs 4
    --batch-size 48 --quiet --threads 1 --checkpoint-every 4 --momentum 0.9 --lr 0.01)

# A launch that counts its runs, the first two of which fail.
cat >"$work/launch" <<'EOF'
#!/usr/bin/env bash
echo "$*" >>"$WORK/launches"
case $(wc -l <"$WORK/launches") in
    1) exec mpirun -np 3 "$PROGRAM" "$@" --inject kill@1:13 ;;
    2) exec mpirun -np 3 "$PROGRAM" "$@" --inject exit@2:30 ;;
    *) exec mpirun -np 3 "$PROGRAM" "$@" ;;
esac
EOF
chmod +x "$work/launch"
export WORK=$work PROGRAM=$program

train whole 3 "${model[@]}"
code=0
bash "$script" --max-restarts 2 --pause 0 -- "$work/launch" "${model[@]}" --run-dir "$work/broken" \
    >"$work/out" 2>&1 || code=$?
equal 'exit status' "$code" 0
equal 'launches' "$(wc -l <"$work/launches")" 3
equal 'resumes' "$(grep -c -- '--resume auto$' "$work/launches")" 3
equal 'weights' "$(summary broken weights_xxh3)" "$(summary whole weights_xxh3)"
equal 'steps' "$(grep -c '"kind":"step"' "$work/broken/metrics.jsonl")" 40
equal 'status' "$(cat "$work/broken/status")" trained
equal 'pages of failures' "$(cd "$work/broken" && grep -l 'rank [12] .* died' failure*/summary.txt | tr '\n' ' ')" \
    'failure-1/summary.txt failure-2/summary.txt '
grep -q 'restart 2 of 2' "$work/out" && pass || fail "$(cat "$work/out")"

# restarted STATUS LAUNCHES MAX COMMAND: with that exit status and number of launches.
restarted() {
    local want=$1 launches=$2 max=$3 code=0
    : >"$work/count"
    bash "$script" --max-restarts "$max" --pause 0 -- bash -c "echo >>'$work/count'; $4" >"$work/out" 2>&1 || code=$?
    equal "status of: $4" "$code" "$want"
    equal "launches of: $4" "$(wc -l <"$work/count")" "$launches"
}
restarted 0 1 2 'exit 0'
restarted 2 1 2 'exit 2'
restarted 3 1 2 'exit 3'
restarted 1 3 2 'exit 1'
restarted 137 2 1 'kill -9 $$'
restarted 127 1 2 'exec /no/such/program'
# What is left of a run does not live on.
restarted 1 2 1 "sleep 300 >/dev/null 2>&1 & echo \$! >'$work/left'; exit 1"
gone "$(cat "$work/left")" && pass || fail 'a process is left'
# refuses TEXT ARGUMENTS...: with status 2.
refuses() {
    local text=$1 code=0
    shift
    bash "$script" "$@" >"$work/out" 2>&1 || code=$?
    equal "$*" "$code $(grep -cF -- "$text" "$work/out")" '2 1'
}
refuses '--max-restarts: found "x", expected' --max-restarts x -- true
refuses '--max-restarts: found "99999999999999999999", expected' --max-restarts=99999999999999999999 -- true
refuses '--max-restarts: a value is missing' --max-restarts
refuses '--pause: found "soon", expected' --pause soon -- true
refuses 'found "-x", expected' -x -- true
refuses 'found no command' --max-restarts 1

# Told between two runs: there is no other one.
: >"$work/count"
bash "$script" --pause 60 -- bash -c "echo >>'$work/count'; exit 7" >"$work/out" 2>&1 &
job=$!
for _ in $(seq 1000); do
    grep -q 'restart 1 of 3' "$work/out" && break
    sleep 0.05
done
kill -TERM $job
code=0
wait $job || code=$?
equal 'told between two runs' "$code $(wc -l <"$work/count")" '7 1'

# A signal reaches the run, which is not restarted. (A background process has INT ignored otherwise.)
for signal in USR1 INT; do
    env --default-signal=INT bash "$script" --max-restarts 2 --pause 0 -- mpirun -np 2 "$program" "${model[@]}" \
        --epochs 100000 --run-dir "$work/told-$signal" >"$work/out" 2>&1 &
    job=$!
    reach "told-$signal" 6 || true
    kill -s $signal "$job"
    code=0
    wait "$job" || code=$?
    equal "exit status on $signal" "$code" 3
    equal "status on $signal" "$(cat "$work/told-$signal/status")" stopped
done
finish
