#!/bin/sh
# watch.sh - runs a launcher's process and ends it if it stays behind after the ranks it has started.
#
#   sh watch.sh GRACE COMMAND
#
# Where the link to a host is cut, ranks end by themselves, on both sides of it, but mpirun, and its
# counterpart on the other host, wait for each other for a quarter of an hour. This looks once a second at the
# processes below COMMAND (a text for the shell). If ranks were among them and none has been for GRACE
# seconds, all are killed, and the exit status is 1; else it is COMMAND's. Signals are passed on to the
# launcher. DDP_WATCH_PARENT: end when that process does. POSIX's shell and /proc are all that is needed:
# agent.sh sends this text to other hosts, on which it need not be installed.
# shellcheck disable=SC2046,SC2064 # lists of numbers; names of signals
grace=$1
command=$2

# tree PID...: all processes below them.
tree() {
    for tree_pid in "$@"; do
        set -- $(cat /proc/"$tree_pid"/task/*/children 2>/dev/null)
        [ $# -eq 0 ] || { echo "$@"; tree "$@"; }
    done
}

# True if a rank of Open MPI or MPICH is below this shell.
has_ranks() {
    for pid in $(tree $$); do
        if grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=' /proc/"$pid"/environ 2>/dev/null; then return 0; fi
    done
    return 1
}

# pass_on SIGNAL: to the launcher itself, which may be behind a shell.
pass_on() {
    told=1 pid=$job
    while :; do
        case $(cat /proc/"$pid"/comm 2>/dev/null) in sh | bash | dash) ;; *) break ;; esac
        set -- "$1" $(cat /proc/"$pid"/task/*/children 2>/dev/null)
        [ $# -eq 2 ] || break
        pid=$2
    done
    kill -s "$1" "$pid" 2>/dev/null
}

end_all() {
    trap '' TERM
    kill -s TERM "$job" $(tree "$job")
    sleep 2
    kill -s KILL $(tree "$job") "$job"
    exit 99
}

look() {
    seen=0 idle=0
    while sleep 1 3>&-; do
        if [ -n "$DDP_WATCH_PARENT" ] && ! kill -0 "$DDP_WATCH_PARENT"; then
            end_all
        elif has_ranks; then
            seen=1 idle=0
        elif [ $seen -eq 1 ] && idle=$((idle + 1)) && [ $idle -ge "$grace" ]; then
            echo "$(uname -n): $(cat /proc/"$job"/comm) was still there $idle s after the last rank here: ended" >&3
            end_all
        fi
    done
}

sh -c "$command" &
job=$!
exec 3>&2
look >/dev/null 2>&1 &
looker=$!
for name in HUP INT TERM USR1 USR2; do trap "pass_on $name" $name; done
told=1
while [ -n "$told" ]; do # a signal ends the wait
    told=
    wait $job 2>/dev/null # without a word on what has ended it
    code=$?
done
kill $looker 2>/dev/null
wait $looker 2>/dev/null
[ $? -ne 99 ] || code=1
exit $code
