#!/usr/bin/env bash
# launch/slurm_scaling.sbatch on a real Slurm: worlds of one rank up to all nodes' ranks, each on as many nodes as it
# fills. A short ddp_bench scaling stands for the whole report.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/slurm.sh"
slurm_can || exit 77
slurm_up 2
cat >"$work/report" <<END
#!/bin/bash
exec "$(dirname "$program")/ddp_bench" scaling --base alone --steps 3 --warmup 1 --repeats 1 --curve-time 0.01 \\
    --train '--model mlp --mlp-widths 32' --work-dir "$work" "\$@"
END
chmod +x "$work/report"

job=$(REPORT=$work/report slurm_run sbatch --parsable --nodes=2 --ntasks-per-node=2 --time=10 \
    --output="$work/job.out" "$(dirname "$0")/../../launch/slurm_scaling.sbatch" --out "$work/report.d")
slurm_ended "$job" job COMPLETED 150
equal 'worlds' "$(grep -c 'job [0-9]*: 1,2,4 ranks on node\[0-1\] by srun' "$work/job.out")" 1
equal 'ranks and hosts' "$(tr -d ' \n' <"$work/report.d/scaling.json" | grep -o '"ranks":[0-9]*,"hosts":[0-9]*' |
    tr -cd '0-9,\n' | uniq | tr '\n' ' ')" '1,1 2,1 4,2 '
finish
