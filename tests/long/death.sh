#!/usr/bin/env bash
# death.sh [--launcher mpirun|srun] [RUNS] [LIMIT] [WORLDS] - from the death of a rank to the end of the job: RUNS
# runs on each number of ranks ("2 4 8" unless given), with shared memory and without, of which a random rank is killed
# at a random time in training. Each must end with one cause that names the rank, and within LIMIT seconds; prints
# median and maximum. With srun (of a real Slurm, for root) the ranks are on two hosts made of network namespaces.
. "$(dirname "$0")/../train/lib.sh"
launcher=mpirun
if [ "${1:-}" = --launcher ]; then
    launcher=$2
    shift 2
fi
case $launcher in
    mpirun) ;;
    srun)
        . "$(dirname "$0")/../cluster/lib.sh"
        . "$(dirname "$0")/../cluster/slurm.sh"
        slurm_can || exit 77
        slurm_up 2
        ;;
    *) echo "death.sh: --launcher: found $launcher, expected mpirun or srun" >&2; exit 2 ;;
esac
runs=${1:-20}
limit=${2:-5}
worlds=${3:-2 4 8}
RANDOM=11

pid_of() { # DIR RANK
    { tr -d ' \n' <"$1/environment.json"; echo; } | sed -n "s/.*{\"rank\":$2,[^}]*\"pid\":\([0-9]*\).*/\1/p"
}

# start WORLD COMMAND...: takes the place of a subshell. The options of srun are those of launch/slurm_train.sbatch.
start() {
    local world=$1
    shift
    [ "$launcher" = srun ] || exec mpirun -np "$world" "$@"
    SLURM_PMIX_FENCE=ring slurm_run srun --quiet --mpi=pmix --kill-on-bad-exit=1 --nodes=2 "--ntasks=$world" \
        "--ntasks-per-node=$((world / 2))" "$@"
}

# one WORLD OPTIONS...: appends the time of one run to $work/times.
one() {
    local world=$1 victim=$((RANDOM % $1)) dir code=0 start end job pid
    shift
    dir=$(mktemp -d -p "$work")
    start "$world" "$program" --dataset synthetic --synthetic-train 4096 --synthetic-test 64 --model mlp \
        --mlp-widths 128 --epochs 100000 --batch-size 128 --eval-every 0 --quiet --threads 1 --checkpoint-epochs 0 \
        --run-dir "$dir/run" "$@" >"$dir/out" 2>"$dir/err" &
    job=$!
    reach "$(basename "$dir")/run" 11 || { kill -9 "$job" 2>/dev/null || true; return 0; }
    sleep "0.$((RANDOM % 90 + 10))"
    pid=$(pid_of "$dir/run" "$victim")
    if [ -z "$pid" ]; then
        fail "$world ranks: no process ids in environment.json: $(cat "$dir/err")"
        kill -9 "$job" 2>/dev/null || true
        return 0
    fi
    start=$EPOCHREALTIME
    kill -9 "$pid"
    wait "$job" || code=$?
    end=$EPOCHREALTIME
    awk -v a="$start" -v b="$end" 'BEGIN { print b - a }' >>"$work/times"
    [ "$code" -ne 0 ] && pass || fail "$world ranks: exit status 0"
    if [ "$(grep '^ddp_train: ' "$dir/err" | grep -c "rank $victim (pid $pid)")" -eq 1 ] &&
        [ "$(grep -c '^ddp_train: ' "$dir/err")" -eq 1 ]; then
        pass
    else
        fail "$world ranks, $*: rank $victim was killed: $(grep '^ddp_train: ' "$dir/err" || cat "$dir/err")"
    fi
    rm -rf "$dir"
    [ "$launcher" = mpirun ] || slurm_nothing_left "$world ranks"
}

for world in $worlds; do
    for option in --shared-memory --no-shared-memory; do
        : >"$work/times"
        for _ in $(seq "$runs"); do one "$world" "$option"; done
        sort -n "$work/times" | awk -v world="$world" -v launcher="$launcher" -v option="$option" -v limit="$limit" '
            { t[NR] = $1 }
            END { if (NR == 0) exit 1
                  median = NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2
                  printf "%d ranks by %s, %s: %d runs, ", world, launcher, option, NR
                  printf "median %.2f s, at most %.2f s\n", median, t[NR]
                  exit t[NR] > limit }' && pass || fail "$world ranks, $option: longer than $limit s"
    done
done
finish
