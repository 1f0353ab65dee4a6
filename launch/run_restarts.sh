#!/usr/bin/env bash
# run_restarts.sh - runs a training again from its last checkpoint when it fails, without a scheduler.
#
#   ./launch/run_restarts.sh [--max-restarts N] [--pause SECONDS] [--hostfile FILE] [--] COMMAND...
#   ./launch/run_restarts.sh --max-restarts 5 -- mpirun -np 4 build/ddp_train --run-dir runs/a --epochs 30
#
# The command gets --resume auto unless it says --resume itself, and needs --run-dir. Restarted is what fails:
# not a run that has ended (0), whose options are wrong (2), or that was stopped and wants to go on later (3);
# these statuses are handed on, and so is the last one when there are no restarts left. TERM, INT (Ctrl-C), HUP and
# USR1 ask the ranks to save and to leave with 3, and end the restarts; the second one ends the run, too. USR2 is
# passed on. Before a restart, processes
# of the run that are left are killed, and segments of shared memory that Open MPI has left are removed where no
# process uses them any more: on this host, and on those of --hostfile, which is the command's own unless said,
# through ssh (DDP_RSH: another one). Hosts that do not answer are left alone: ranks end by themselves there, and
# so do launchers (agent.sh).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/hosts.sh"
. "$here/job.sh"

max=3
pause=1
hostfile=''
refuse() {
    say "$@"
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
        --max-restarts=* | --pause=* | --hostfile=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --max-restarts | --pause | --hostfile) [ $# -gt 1 ] || refuse "$1: a value is missing" ;;
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        -*) refuse "found \"$1\", expected --max-restarts, --pause, --hostfile, --help or a command" ;;
        *) break ;;
    esac
    case $1 in
        --max-restarts) max=$2 ;;
        --pause) pause=$2 ;;
        *) hostfile=$2 ;;
    esac
    shift 2
done
[[ $max =~ ^[0-9]{1,9}$ ]] || refuse "--max-restarts: found \"$max\", expected a number"
[[ $pause =~ ^[0-9]{1,9}(\.[0-9]+)?$ ]] || refuse "--pause: found \"$pause\", expected seconds"
[ $# -gt 0 ] || refuse 'found no command, expected mpirun ... ddp_train ...'

command=("$@")
case " $* " in
    *' --resume '* | *' --resume='*) ;;
    *) command+=(--resume auto) ;;
esac

# The command's list of hosts.
for i in "${!command[@]}"; do
    case ${command[i]} in
        --hostfile | -hostfile | --machinefile | -machinefile) : "${hostfile:=${command[i + 1]:-}}" ;;
        --hostfile=* | --machinefile=*) : "${hostfile:=${command[i]#*=}}" ;;
    esac
done
hosts=()
[ -z "$hostfile" ] || read_hosts "$hostfile" || exit 2

# What marks the run's processes: they inherit it, and agent.sh takes it to other hosts.
DDP_RESTARTS_ID="$$-$(date +%s%N)"
export DDP_RESTARTS_ID
if [ ${#hosts[@]} -gt 0 ]; then
    agent_dir=''
    trap 'rm -rf "$agent_dir"' EXIT
    [ -z "${OMPI_MCA_plm_rsh_agent:-}" ] || export DDP_RSH=${DDP_RSH:-$OMPI_MCA_plm_rsh_agent}
    find_agent
    export OMPI_MCA_plm_rsh_agent=$agent PRTE_MCA_plm_ssh_agent=$agent
    export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$agent
fi

# What is done on each host, in its own shell; says what it found. The script itself was there before the mark. A
# segment that is just being made is not mapped yet.
clean_host="id=DDP_RESTARTS_ID=$DDP_RESTARTS_ID"'
pids=
for dir in /proc/[0-9]*; do
    if grep -zqxF "$id" "$dir/environ" 2>/dev/null; then pids="$pids ${dir#/proc/}"; fi
done
if [ -n "$pids" ]; then
    echo "kills processes that are left:$pids"
    kill -9 $pids 2>/dev/null
    sleep 0.2
fi
find /dev/shm -maxdepth 1 -name "vader_segment.$(uname -n).*" -user "$(id -u)" -mmin +0.05 | while read -r file; do
    if ! grep -qsF "$file" /proc/[0-9]*/maps; then
        echo "removes $file"
        rm -f "$file"
    fi
done'

clean_up() {
    local host line
    # What looks must not be among what it finds.
    env -u DDP_RESTARTS_ID sh -c "$clean_host" | while IFS= read -r line; do say "$line"; done
    for host in "${hosts[@]}"; do
        is_here "$host" && continue
        {
            env -u DDP_RESTARTS_ID bash -c '. "$1" && on_host "$2" "$3"' _ "$here/hosts.sh" "$host" "$clean_host" 2>&1 || echo "does not answer: nothing is cleaned up there"
        } | while IFS= read -r line; do say "$host: $line"; done &
    done
    wait
}

catch_signals

restarts=0
while :; do
    # Without an end to a launcher that stays: that is for the command to say.
    run_job 1000000000 "${command[@]}"
    case $code in
        0 | 2 | 3) exit "$code" ;;
        126 | 127) say "the command cannot be run: no restart"; exit "$code" ;;
    esac
    clean_up
    if [ -z "$stopping" ] && [ "$restarts" -lt "$max" ]; then
        restarts=$((restarts + 1))
        say "the run ended with status $code; restart $restarts of $max"
        # A signal ends this wait.
        sleep "$pause" &
        wait $! || true
    elif [ -z "$stopping" ]; then
        say "the run ended with status $code, after $restarts restarts: no more"
        exit "$code"
    fi
    if [ -n "$stopping" ]; then
        say "was asked to stop ($stopping); the run ended with status $code"
        exit "$code"
    fi
done
