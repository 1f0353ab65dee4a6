# shellcheck shell=bash
# slurm.sh - a real Slurm over the hosts of lib.sh: munged, slurmctld and a slurmd on each host, without systemd.
# Sourced behind lib.sh. All files lie in the cluster's folder; /run and /etc are left alone; cluster_down ends it all.
#
#   slurm_can             0 if the kernel lets us and Slurm is installed; else says on stderr why not
#   slurm_up N [CPUS]     cluster_up, with node0 to node<N-1> as Slurm's nodes of CPUS processors (8); one host more,
#                         node<N>, is where the controller runs and where users log in
#   slurm_run CMD...      runs a command on the login host: sbatch, squeue
#   slurm_field ID NAME   prints a value of "scontrol show job": JobState
#   slurm_await ID SECONDS STATE...    until the job is in one of these states; 1 and a message: it is not in time
#   slurm_start_again ID  a job that is queued again need not wait its two minutes
#   slurm_nodes SECONDS STATE          until all nodes are in that state: idle
#   slurm_daemon I        starts a host's slurmd, again where it is dead
#   slurm_left            cluster_left without Slurm's own daemons
#
# SLURM_TEST_KILL_WAIT (30) and SLURM_TEST_NODE_TIMEOUT (60): the seconds between TERM and KILL, and those after which
# a node that does not answer is lost.

slurm_can() {
    local tool
    cluster_can || return 1
    PATH=$PATH:/usr/sbin
    for tool in slurmctld slurmd sbatch srun munged mungekey; do
        command -v "$tool" >/dev/null || { echo "no Slurm here: no program $tool" >&2; return 1; }
    done
    mountpoint -q /sys/fs/cgroup || { echo "no Slurm here: slurmd wants a mounted /sys/fs/cgroup" >&2; return 1; }
}

slurm_run() { cluster_run "$slurm_count" "$@"; }

# Each node has a host name and a TmpFS of its own: else the PMIx servers of two nodes take each other's files.
slurm_write_conf() { # CPUS
    cat >"$SLURM_CONF" <<END
ClusterName=$CLUSTER_ID
SlurmctldHost=node$slurm_count($(cluster_address "$slurm_count"))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm_dir/munge.socket
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/spool.%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/slurmd.%n.pid
SlurmctldLogFile=$slurm_dir/log/slurmctld
SlurmdLogFile=$slurm_dir/log/slurmd.%n
TmpFS=$slurm_dir/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
InactiveLimit=0
KillWait=${SLURM_TEST_KILL_WAIT:-30}
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=${SLURM_TEST_NODE_TIMEOUT:-60}
SlurmdParameters=config_overrides
NodeName=node[0-$((slurm_count - 1))] CPUs=$1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
END
}

slurm_daemon() { cluster_run "$1" slurmd -N "node$1"; }

slurm_up() {
    local i
    slurm_count=$1
    cluster_up $((slurm_count + 1)) || return 1
    # munged wants folders that others cannot write to.
    slurm_dir=$cluster_dir/slurm
    mkdir -m 755 "$slurm_dir"
    mkdir "$slurm_dir/state" "$slurm_dir/log"
    export SLURM_CONF=$slurm_dir/slurm.conf
    slurm_write_conf "${2:-8}"
    mungekey --create --keyfile="$slurm_dir/munge.key"
    slurm_run munged --socket="$slurm_dir/munge.socket" --key-file="$slurm_dir/munge.key" \
        --pid-file="$slurm_dir/munged.pid" --log-file="$slurm_dir/log/munged" --seed-file="$slurm_dir/munge.seed"
    slurm_run slurmctld -c
    for ((i = 0; i < slurm_count; i++)); do
        mkdir "$slurm_dir/tmp.node$i"
        slurm_daemon "$i"
    done
    slurm_nodes 120 idle && return 0
    tail -n 20 "$slurm_dir"/log/*
    return 1
}

slurm_nodes() {
    local until=$((SECONDS + $1))
    while [ $SECONDS -le $until ]; do
        [ "$(slurm_run sinfo -h -o %T 2>/dev/null | sort -u)" != "$2" ] || return 0
        sleep 0.1
    done
    echo "not all nodes are $2: $(slurm_run sinfo -h -N -o '%N %T' | tr '\n' ';')"
    return 1
}

slurm_field() { slurm_run scontrol --oneliner show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }

slurm_await() {
    local id=$1 until=$((SECONDS + $2)) state
    shift 2
    while [ $SECONDS -le $until ]; do
        state=$(slurm_field "$id" JobState 2>/dev/null || true)
        case " $* " in *" $state "*) return 0 ;; esac
        sleep 0.2
    done
    echo "job $id is $state, expected $*"
    return 1
}

# slurmd refuses what was allocated in the second in which it ended the life before, or earlier.
slurm_start_again() {
    for _ in $(seq 300); do
        [ -n "$(slurm_left | grep slurmstepd)$(slurm_run squeue -h -t completing)" ] || break
        sleep 0.1
    done
    sleep 2
    slurm_run scontrol update "JobId=$1" StartTime=now
}

slurm_left() {
    cluster_left | grep -vE 'process [0-9]+: (slurmd|slurmctld|munged|: slurmscriptd) ' || true
}

# What the tests share. The model's steps take a millisecond or so; what a life is to do stands in $work/NAME.ini, so
# that it can be another one after the job was queued again.
slurm_model=(--model mlp --mlp-widths 64 --dataset synthetic --synthetic-train 640 --synthetic-test 64 --exact
    --logical-ranks 4 --batch-size 32 --momentum 0.9 --checkpoint-epochs 0 --eval-every 0 --quiet --threads 1)

# slurm_plan NAME LINE...: what the next life of that run does.
slurm_plan() {
    local name=$1
    shift
    printf '%s\n' 'epochs = 100000' "$@" >"$work/$name.ini"
}

# slurm_submit NAME OPTION...: sends slurm_train.sbatch with these options of sbatch; prints the job's number.
slurm_submit() {
    local name=$1
    shift
    slurm_run env RUN_DIR="$work/$name" RANKS_PER_NODE=2 sbatch --parsable --exclusive --output="$work/$name.out" "$@" \
        "$(dirname "${BASH_SOURCE[0]}")/../../launch/slurm_train.sbatch" "${slurm_model[@]}" --config "$work/$name.ini"
}

# slurm_training NAME [STEPS]: until the run has made so many steps more than its last checkpoint holds.
slurm_training() {
    local file=$work/$1/metrics.jsonl steps last
    local until=$((SECONDS + 120))
    while [ $SECONDS -lt $until ]; do
        last=$(ls "$work/$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1 || true)
        steps=$(grep -c '"kind":"step"' "$file" 2>/dev/null || true)
        [ "$(cat "$work/$1/status" 2>/dev/null)" = running ] && [ "${steps:-0}" -gt $((${last:-0} + ${2:-10})) ] &&
            return 0
        sleep 0.05
    done
    fail "$1: makes no steps: $(cat "$work/$1.out")"
}

# slurm_queued_again ID NAME: the job has left with status 3 and waits.
slurm_queued_again() {
    slurm_await "$1" 120 PENDING || fail "$2: is not queued again: $(cat "$work/$2.out")"
    equal "$2: status" "$(cat "$work/$2/status")" stopped
    [ "$(cat "$work/$2/status")" = stopped ] || cat "$work/$2.out"
    equal "$2: checkpoint" "$(ls "$work/$2/checkpoints" | tail -n 1)" \
        "$(printf 'step-%010d' "$(summary "$2" steps)")"
}

# slurm_nothing_left NAME: no process of a job on any host; Slurm takes a moment to end a step's own.
slurm_nothing_left() {
    local left
    for _ in $(seq 300); do
        left=$(slurm_left)
        [ -n "$left" ] || break
        sleep 0.1
    done
    equal "$1: what is left" "${left}x" x
}

# slurm_ended ID NAME STATE SECONDS: the last of its jobs has ended so.
slurm_ended() {
    slurm_await "$1" "$4" "$3" && pass || fail "$2: $(cat "$work/$2.out")"
    slurm_nothing_left "$2"
}

# slurm_as_undisturbed NAME: the run's weights are those of one rank that made all the steps at once.
slurm_as_undisturbed() {
    local steps
    steps=$(summary "$1" steps)
    equal "$1: status" "$(cat "$work/$1/status")" trained
    train "$1.whole" 1 "${slurm_model[@]}" --epochs 100000 --max-steps "$steps"
    equal "$1: weights" "$(summary "$1" weights_xxh3)" "$(summary "$1.whole" weights_xxh3)"
    same_curve "$1" "$1.whole" "$steps" 0
}
