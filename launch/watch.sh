#!/bin/sh
# watch.sh - runs a launcher's process and ends it if it stays behind after the ranks it has started.
#
#   sh watch.sh GRACE COMMAND
#
# Where the link to a host is cut, ranks end by themselves, on both sides of it, but mpirun, and its
# counterpart on the other host, wait for each other for a quarter of an hour. This looks once a second at the
# processes below COMMAND (a text for the shell). If ranks were among them and none has been for GRACE
# seconds, all are killed, and the exit status is 1; else it is COMMAND's. Signals are passed on to the
# launcher; USR1 and USR2 wait until the ranks are ready for them, 10 s at most. DDP_WATCH_PARENT: end when that
# process does. POSIX's shell and /proc are all that is needed: agent.sh sends this text to other hosts, on which it
# need not be installed.
# shellcheck disable=SC2046,SC2064,SC2317 # lists of numbers; names of signals; what traps call
grace=$1
command=$2
parent=$DDP_WATCH_PARENT
unset DDP_WATCH_PARENT
began=$(date +%s)

# tree PID...: all processes below them.
tree() {
    for tree_pid in "$@"; do
        set -- $(cat /proc/"$tree_pid"/task/*/children 2>/dev/null)
        [ $# -eq 0 ] || { echo "$@"; tree "$@"; }
    done
}

# is_rank PID: of Open MPI or MPICH.
is_rank() { grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=' /proc/"$1"/environ 2>/dev/null; }

# True if a rank is below this shell.
has_ranks() {
    for pid in $(tree $$); do
        if is_rank "$pid"; then return 0; fi
    done
    return 1
}

# True if all ranks here catch USR1; where there are none, if there has been time for starting them elsewhere.
are_ready() {
    found=
    for pid in $(tree $$); do
        is_rank "$pid" || continue
        grep -q '^SigCgt:.*[2367abef]..$' /proc/"$pid"/status 2>/dev/null || return 1
        found=1
    done
    [ -n "$found" ] || [ $(($(date +%s) - began)) -ge 10 ]
}

# Prints the launcher itself, which may be behind a shell.
launcher() {
    pid=$job
    while :; do
        case $(cat /proc/"$pid"/comm 2>/dev/null) in sh | bash | dash) ;; *) break ;; esac
        set -- $(cat /proc/"$pid"/task/*/children 2>/dev/null)
        [ $# -eq 1 ] || break
        pid=$1
    done
    echo "$pid"
}

forward() { kill -s "$1" $(launcher) 2>/dev/null; }

# A rank that does not catch it yet would die of it, and those that are not there yet would never hear of it.
forward_later() {
    tries=0
    until are_ready || [ $((tries += 1)) -gt 50 ] || ! kill -0 "$job"; do sleep 0.2; done
    forward "$1"
}

pass_on() {
    told=1
    if [ -z "$job" ]; then
        pending=$1
        return
    fi
    case $1 in
        USR*)
            forward_later "$1" >/dev/null 2>&1 &
            helpers="$helpers $!"
            ;;
        *) forward "$1" ;;
    esac
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
        if ! kill -0 $$ || { [ -n "$parent" ] && ! kill -0 "$parent"; }; then
            end_all
        elif ! kill -0 "$job"; then # and the signal that ends this came before it could
            exit 0
        elif has_ranks; then
            seen=1 idle=0
        elif [ $seen -eq 1 ] && idle=$((idle + 1)) && [ $idle -ge "$grace" ]; then
            echo "$(uname -n): $(cat /proc/"$(launcher)"/comm) was still there $idle s after the last rank here: ended" >&3
            end_all
        fi
    done
}

job='' pending='' helpers=''
for name in HUP INT TERM USR1 USR2; do trap "pass_on $name" $name; done
sh -c "$command" &
job=$!
exec 3>&2
look >/dev/null 2>&1 &
looker=$!
[ -z "$pending" ] || pass_on "$pending"
told=1
while [ -n "$told" ]; do # a signal ends the wait
    told=
    wait $job 2>/dev/null # without a word on what has ended it
    code=$?
done
naps=$(tree $looker $helpers)
kill $looker $helpers 2>/dev/null
wait $looker 2>/dev/null
[ $? -ne 99 ] || code=1
kill $naps 2>/dev/null
exit $code
