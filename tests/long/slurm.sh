#!/usr/bin/env bash
# slurm.sh - launch/slurm_train.sbatch at Slurm's own pace, some minutes: the warning before the end of the job's
# time, that end as the program knows it, the two minutes that a job waits when it is queued again; and the link of the
# host with the batch script cut for good. All runs end with the bits of undisturbed ones. For root.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/../cluster/lib.sh"
. "$(dirname "$0")/../cluster/slurm.sh"
slurm_can || exit 77
SLURM_TEST_NODE_TIMEOUT=20 slurm_up 2

last_step() { ls "$work/$1/checkpoints" | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1; }

# One job a node. The script's own warning comes 90 s before the end, and the other job has none to speak of.
slurm_plan warned
slurm_plan timed
warned=$(slurm_submit warned --nodes=1 --time=2)
timed=$(slurm_submit timed --nodes=1 --time=1 --signal=B:CONT@1)
start=$SECONDS
for name in warned timed; do
    job=${!name}
    slurm_training "$name"
    slurm_await "$job" 130 PENDING || fail "$name: $(cat "$work/$name.out")"
    echo "$name: queued again $((SECONDS - start)) s after the start"
    equal "$name: status" "$(cat "$work/$name/status")" stopped
    slurm_plan "$name" "max-steps = $(($(last_step "$name") + 20))"
done
equal 'warned by Slurm' "$(grep -c '^stopped after .*a signal asked for it' "$work/warned.out")" 1
equal 'timed by the program' "$(grep -c '^stopped after .*the time is up' "$work/timed.out")" 1
for name in warned timed; do
    slurm_await "${!name}" 200 COMPLETED || fail "$name: $(cat "$work/$name.out")"
    equal "$name: lives" "$(grep -c '^slurm_train: job .* life' "$work/$name.out")" 2
    slurm_as_undisturbed "$name"
done
echo "both have ended $((SECONDS - start)) s after the start"

# The host with the batch script can no longer be reached. Its ranks end, too, for want of the others.
slurm_plan cut 'comm-timeout = 5' 'checkpoint-every = 200'
job=$(slurm_submit cut --nodes=1-2 --time=10)
slurm_training cut 300
start=$SECONDS
cluster_cut 0
slurm_await "$job" 120 PENDING || fail "link cut: $(cat "$work/cut.out")"
echo "link cut: queued again after $((SECONDS - start)) s"
equal 'link cut: ranks left' "$(slurm_left | grep -c "process [0-9]*: $program " || true)" 0
slurm_plan cut "max-steps = $(($(last_step cut) + 20))"
sleep 2
slurm_run scontrol update "JobId=$job" StartTime=now
slurm_await "$job" 60 COMPLETED || fail "link cut: $(cat "$work/cut.out")"
equal 'link cut: the last life' "$(grep -c 'life [0-9]*: 2 ranks on node1, from step-' "$work/cut.out")" 1
slurm_as_undisturbed cut
finish
