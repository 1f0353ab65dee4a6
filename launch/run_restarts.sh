#!/usr/bin/env bash
# run_restarts.sh - runs a training again from its last checkpoint when it fails, without a scheduler.
#
#   ./launch/run_restarts.sh [--max-restarts N] [--pause SECONDS] [--] COMMAND...
#   ./launch/run_restarts.sh --max-restarts 5 -- mpirun -np 4 build/ddp_train --run-dir runs/a --epochs 30
#
# The command gets --resume auto unless it says --resume itself, and needs --run-dir. Restarted is what fails:
# not a run that has ended (0), whose options are wrong (2), or that was stopped and wants to go on later (3);
# these statuses are handed on, and so is the last one when there are no restarts left. TERM, INT and USR1 are
# passed on to the command, which saves and leaves with 3, and end the restarts. Before a restart, processes
# of the run that are left on this host are killed, and segments of shared memory that Open MPI has left are
# removed where no process uses them any more.
set -euo pipefail

max=3
pause=1
while [ $# -gt 0 ]; do
    case $1 in
        --max-restarts) max=${2:?--max-restarts needs a number}; shift 2 ;;
        --max-restarts=*) max=${1#--max-restarts=}; shift ;;
        --pause) pause=${2:?--pause needs seconds}; shift 2 ;;
        --pause=*) pause=${1#--pause=}; shift ;;
        --) shift; break ;;
        --*) echo "run_restarts.sh: found \"$1\", expected --max-restarts, --pause or a command" >&2; exit 2 ;;
        *) break ;;
    esac
done
case $max in
    '' | *[!0-9]*) echo "run_restarts.sh: --max-restarts: found \"$max\", expected a number" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || { echo "run_restarts.sh: found no command, expected mpirun ... ddp_train ..." >&2; exit 2; }

command=("$@")
case " $* " in
    *' --resume '* | *' --resume='*) ;;
    *) command+=(--resume auto) ;;
esac

# What marks the run's processes: they inherit it.
export DDP_RESTARTS_ID="$$-$(date +%s%N)"

say() { echo "run_restarts.sh: $*" >&2; }

# Processes of this run on this host. The script itself was there before the mark.
left_over() {
    local dir
    for dir in /proc/[0-9]*; do
        if grep -zqxF "DDP_RESTARTS_ID=$DDP_RESTARTS_ID" "$dir/environ" 2>/dev/null; then
            echo "${dir#/proc/}"
        fi
    done
}

clean_up() {
    local pids file
    pids=$(left_over)
    if [ -n "$pids" ]; then
        say "kills processes that are left: $(echo $pids)"
        kill -9 $pids 2>/dev/null || true
        sleep 0.2
    fi
    # Another job's that is just being made is not mapped yet.
    for file in $(find /dev/shm -maxdepth 1 -name "vader_segment.$(hostname).*" -user "$(id -u)" -mmin +0.05); do
        if ! grep -qsF "$file" /proc/[0-9]*/maps; then
            say "removes $file"
            rm -f "$file"
        fi
    done
}

stopping=
job=
pass_on() {
    stopping=$1
    [ -z "$job" ] || kill "-$1" "$job" 2>/dev/null || true
}
for signal in TERM INT USR1; do trap "pass_on $signal" "$signal"; done

restarts=0
while :; do
    code=0
    "${command[@]}" &
    job=$!
    # A signal ends wait before the job has ended.
    wait "$job" || code=$?
    while kill -0 "$job" 2>/dev/null; do
        code=0
        wait "$job" || code=$?
    done
    job=
    case $code in 0 | 2 | 3) exit "$code" ;; esac
    clean_up
    if [ -n "$stopping" ]; then
        say "was asked to stop ($stopping); the run ended with status $code"
        exit "$code"
    fi
    if [ "$restarts" -ge "$max" ]; then
        say "the run ended with status $code, after $restarts restarts: no more"
        exit "$code"
    fi
    restarts=$((restarts + 1))
    say "the run ended with status $code; restart $restarts of $max"
    sleep "$pause" || true
done
