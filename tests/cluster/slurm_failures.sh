#!/usr/bin/env bash
# Failures of launch/slurm_train.sbatch's jobs: a rank is killed, a node lost, options are wrong, a job cannot be
# queued again. What can go on does, to the bits of an undisturbed run; the rest ends with its cause, once.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/slurm.sh"
slurm_can || exit 77
slurm_up 2

pid_of() { # NAME RANK
    { tr -d ' \n' <"$work/$1/environment.json"; echo; } | sed -n "s/.*{\"rank\":$2,[^}]*\"pid\":\([0-9]*\).*/\1/p"
}
causes() { grep -c '^ddp_train: ' "$work/$1.out" || true; }

# One rank dies, and the job is not to be tried again.
for LAUNCHER in srun mpirun; do
    export LAUNCHER RESTARTS=0
    name=killed.$LAUNCHER
    slurm_plan "$name"
    job=$(slurm_submit "$name" --nodes=2 --time=10)
    slurm_training "$name"
    pid=$(pid_of "$name" 3)
    kill -9 "$pid"
    slurm_ended "$job" "$name" FAILED 120
    equal "$name: status" "$(cat "$work/$name/status")" failed
    equal "$name: the cause names the rank" "$(grep -c "^ddp_train: .*rank 3 (pid $pid) on node1 died" "$work/$name.out")" 1
    equal "$name: causes" "$(causes "$name")" 1
done
export LAUNCHER=srun RESTARTS=3

# Wrong options, and a kind of start that Slurm has not: no second life.
slurm_plan wrong 'no-such-option = 1'
job=$(slurm_submit wrong --nodes=2 --time=10)
slurm_ended "$job" wrong FAILED 120
equal 'wrong options: exit status' "$(slurm_field "$job" ExitCode)" 2:0
equal 'wrong options: the cause' "$(grep -c '^ddp_train: .*no-such-option' "$work/wrong.out") $(causes wrong)" '1 1'
job=$(MPI_TYPE=pmix_v99 slurm_submit wrong --nodes=2 --time=10)
slurm_ended "$job" wrong FAILED 120
equal 'no such kind of start' "$(grep -c 'srun has no --mpi=pmix_v99 here: .*pmix.*LAUNCHER=mpirun' "$work/wrong.out")" 1

# A job that may not be queued again hands over to another one.
slurm_plan handed
job=$(slurm_submit handed --nodes=2 --time=10 --no-requeue)
slurm_training handed
slurm_plan handed "max-steps = 1"
slurm_run scancel --signal=USR1 --batch "$job"
slurm_await "$job" 120 COMPLETED && pass || fail "handed: $(cat "$work/handed.out")"
next=$(sed -n 's/^slurm_train: cannot be queued again: job \([0-9]*\) goes on instead$/\1/p' "$work/handed.out")
slurm_ended "${next:-0}" handed COMPLETED 120
equal 'handed over: goes on from the checkpoint' "$(grep -c "job $next, life 1: 4 ranks .* from step-" "$work/handed.out")" 1
slurm_as_undisturbed handed

# A node is lost with all that runs on it; the job goes on on the other.
slurm_plan lost
job=$(slurm_submit lost --nodes=1-2 --time=10)
slurm_training lost
slurm_run scancel --signal=USR1 --batch "$job"
slurm_queued_again "$job" lost
slurm_start_again "$job"
slurm_training lost
cluster_kill 1
for _ in $(seq 900); do
    [ "$(cat "$work/lost/status")" = running ] || break
    sleep 0.1
done
# Said instead of waited for: how soon Slurm finds it is not the matter here.
slurm_run scontrol update NodeName=node1 State=DOWN Reason=lost
slurm_await "$job" 150 PENDING || fail "node lost: $(cat "$work/lost.out")"
equal 'node lost: status' "$(cat "$work/lost/status")" failed
equal 'node lost: causes' "$(causes lost)" 1
slurm_plan lost "max-steps = $(($(ls "$work/lost/checkpoints" | sed -n 's/^step-0*//p' | tail -n 1) + 20))"
slurm_start_again "$job"
slurm_await "$job" 150 COMPLETED || fail "node lost: $(cat "$work/lost.out")"
equal 'node lost: the last life' "$(grep -c 'life [0-9]*: 2 ranks on node0, from step-' "$work/lost.out")" 1
slurm_as_undisturbed lost
equal 'node lost: other jobs' "$(slurm_run squeue -h)x" x
slurm_daemon 1
slurm_run scontrol update NodeName=node1 State=RESUME 2>/dev/null || true # It may have done so itself.
slurm_nodes 120 idle && pass || fail 'the node does not come back'
finish
