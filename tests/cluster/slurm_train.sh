#!/usr/bin/env bash
# launch/slurm_train.sbatch on a real Slurm: jobs that are asked to stop, or whose time is up, save, wait in the queue
# and go on, on another number of nodes too, to the bits of a run that nothing has disturbed; under srun and mpirun.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/slurm.sh"
slurm_can || exit 77
slurm_up 2

# steps_from NAME COUNT: a plan that ends that many steps after the last checkpoint.
steps_from() { slurm_plan "$1" "max-steps = $(($(summary "$1" steps) + $2))"; }
lives() { grep -c "^slurm_train: job .* life" "$work/$1.out"; }

# The first life ends by USR1, which the batch script gets as before the end of its time.
slurm_plan srun
job=$(slurm_submit srun --nodes=1-2 --time=10)
slurm_training srun
equal 'ranks at first' "$(grep -c 'life 1: 4 ranks on node\[0-1\]' "$work/srun.out")" 1
end=$(date -d "$(slurm_run squeue -h -j "$job" -o %e)" +%s)
equal "the job's end is known" "$(grep -c "SLURM_JOB_END_TIME.*$end" "$work/srun/environment.json")" 1
slurm_run scancel --signal=USR1 --batch "$job"
slurm_queued_again "$job" srun
# The second has one node, and a limit of its own.
slurm_run scontrol update NodeName=node1 State=DRAIN Reason=test
slurm_plan srun 'time-limit = 8s'
slurm_start_again "$job"
slurm_await "$job" 120 RUNNING
slurm_queued_again "$job" srun
equal 'ranks on one node' "$(grep -c 'life 2: 2 ranks on node0,* from step-' "$work/srun.out")" 1
# The third has both again, and comes to the end.
slurm_run scontrol update NodeName=node1 State=RESUME
steps_from srun 20
slurm_start_again "$job"
slurm_ended "$job" srun COMPLETED 120
equal 'lives' "$(lives srun)" 3
slurm_as_undisturbed srun

# The same by mpirun inside of the job.
export LAUNCHER=mpirun
slurm_plan mpirun
job=$(slurm_submit mpirun --nodes=2 --time=10)
slurm_training mpirun
slurm_run scancel --signal=USR1 --batch "$job"
slurm_queued_again "$job" mpirun
steps_from mpirun 20
slurm_start_again "$job"
slurm_ended "$job" mpirun COMPLETED 120
slurm_as_undisturbed mpirun
export LAUNCHER=srun

# A job that is cancelled saves, too, and is not queued again.
slurm_plan cancelled
job=$(slurm_submit cancelled --nodes=2 --time=10)
slurm_training cancelled
slurm_run scancel "$job"
slurm_ended "$job" cancelled CANCELLED 120
equal 'cancelled: status' "$(cat "$work/cancelled/status")" stopped
equal 'cancelled: checkpoint' "$(ls "$work/cancelled/checkpoints")" \
    "$(printf 'step-%010d' "$(summary cancelled steps)")"
equal 'cancelled: lives' "$(lives cancelled)" 1
finish
