#!/usr/bin/env bash
# launch/run_restarts.sh over two hosts: a run whose rank on the other host stops answering is cleaned up there and goes
# on from its last checkpoint; hosts that do not answer do not keep it.
. "$(dirname "$0")/runs.sh"
restarts=$(dirname "$launcher")/run_restarts.sh
model=(--dataset synthetic --synthetic-train 480 --synthetic-test 48 --model mlp --mlp-widths 64 --epochs 4
    --batch-size 48 --quiet --threads 1 --checkpoint-every 4 --momentum 0.9 --lr 0.01 --comm-timeout 4)
hosts_up 2 1
train whole 2 "${model[@]}"

# The first launch has a process on the other host that outlives it, and a file. (The process is found from here, too:
# hosts see each other's processes. The file is not.)
cat >"$work/launch" <<'END'
#!/usr/bin/env bash
echo "$*" >>"$WORK/launches"
if [ "$(wc -l <"$WORK/launches")" -eq 1 ]; then
    "$AGENT" node1 "sleep 300 >/dev/null 2>&1 </dev/null &"
    "$AGENT" node1 "touch -d '1 minute ago' /dev/shm/vader_segment.node1.0.left"
    exec "$LAUNCHER" --hostfile "$WORK/hosts" --subnet 10.77.0.0/24 --grace 3 "$@" --inject kill@1:13
fi
exec "$LAUNCHER" --hostfile "$WORK/hosts" --subnet 10.77.0.0/24 --grace 3 "$@"
END
chmod +x "$work/launch"
export WORK=$work LAUNCHER=$launcher
AGENT=$(dirname "$launcher")/agent.sh
export AGENT
code=0
(cluster_run 0 timeout 120 bash "$restarts" --max-restarts 2 --pause 0 --hostfile "$work/hosts" -- "$work/launch" \
    "$program" "${model[@]}" --run-dir "$work/broken") >"$work/out" 2>&1 || code=$?
equal 'exit status' "$code" 0
equal 'launches' "$(wc -l <"$work/launches")" 2
equal 'weights' "$(summary broken weights_xxh3)" "$(summary whole weights_xxh3)"
equal 'page of the failure' "$(grep -c 'rank 1 .* on node1' "$work/broken/failure-1/summary.txt" | sed 's/[1-9]/some/')" some
for what in 'kills processes that are left' 'node1: removes /dev/shm/vader_segment.node1.0.left'; do
    if grep -q "run_restarts.sh: $what" "$work/out"; then pass; else fail "no \"$what\": $(cat "$work/out")"; fi
done
nothing_left broken

# Another host is not there at all: said, and the last status comes through.
echo 'node7 slots=1' >>"$work/hosts"
code=0
(cluster_run 0 timeout 60 bash "$restarts" --max-restarts 0 --hostfile "$work/hosts" -- bash -c 'exit 7') \
    >"$work/out" 2>&1 || code=$?
equal 'exit status without a host' "$code" 7
if grep -q 'node7: does not answer' "$work/out"; then pass; else fail "no word of node7: $(cat "$work/out")"; fi
finish
