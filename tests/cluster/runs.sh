# shellcheck shell=bash
# runs.sh - trainings over several hosts, through launch/mpirun.sh. Sourced by the tests here.
. "$(dirname "${BASH_SOURCE[0]}")/../train/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cluster_can || exit 77
launcher=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../launch" && pwd)/mpirun.sh
subnet=10.77.0.0/24

# hosts_up N SLOTS: also the hosts' file.
hosts_up() {
    cluster_up "$1"
    cluster_bait
    cluster_hostfile "$work/hosts" "$2"
    DDP_RSH=$(cluster_agent)
    export DDP_RSH
}

# start NAME RANKS ARGUMENTS...: a run from host 0, in the run directory $work/NAME. In a subshell it takes its place.
start() {
    local name=$1 ranks=$2
    shift 2
    cluster_run 0 timeout 250 "$launcher" --hostfile "$work/hosts" --subnet "$subnet" --grace 3 -np "$ranks" \
        "$program" --quiet --threads 1 --run-dir "$work/$name" "$@"
}

# over_hosts NAME RANKS ARGUMENTS...: a run that must succeed.
over_hosts() {
    if ! (start "$@") >"$work/$1.out" 2>&1; then
        fail "$1 ($2 ranks) ended with an error: $(tail -n 20 "$work/$1.out")"
    elif [ "$(cat "$work/$1/status")" != trained ]; then
        fail "$1: status is not \"trained\""
    fi
    nothing_left "$1"
}

# nothing_left NAME: no process on any host, nor file in its /dev/shm. A watch's last nap takes a second.
nothing_left() {
    local left
    for _ in $(seq 200); do
        left=$(cluster_left)
        [ -n "$left" ] || break
        sleep 0.1
    done
    if [ -z "$left" ]; then pass; else fail "$1: left on hosts: $left"; fi
}

# pid_of NAME RANK: from environment.json.
pid_of() {
    { tr -d ' \n' <"$work/$1/environment.json"; echo; } | sed -n "s/.*{\"rank\":$2,[^}]*\"pid\":\([0-9]*\).*/\1/p"
}
