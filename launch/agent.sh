#!/bin/sh
# agent.sh - ssh for mpirun: starts a launcher's process on another host so that it does not stay there.
#
#   agent.sh [OPTION...] HOST COMMAND...
#
# Runs COMMAND through ssh, under watch.sh, which goes along as text. DDP_RSH is another ssh with its options;
# DDP_LAUNCH_GRACE the seconds that a process may stay without ranks (15). Where run_restarts.sh is at work, the
# processes get its mark, DDP_RESTARTS_ID, so that it finds those that are left.
here=$(dirname "$0")
rsh=${DDP_RSH:-ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3}

options=
while :; do
    case $1 in
        -l | -p | -i | -o | -F) options="$options $1 $2"; shift 2 ;;
        -*) options="$options $1"; shift ;;
        *) break ;;
    esac
done
host=$1
shift

# quoted TEXT: for another host's shell.
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

mark=
[ -z "$DDP_RESTARTS_ID" ] || mark="DDP_RESTARTS_ID=$DDP_RESTARTS_ID; export DDP_RESTARTS_ID; "
# A shell on the other host reads watch.sh; what it starts does not.
exec $rsh $options "$host" "sh -s ${DDP_LAUNCH_GRACE:-15} $(quoted "$mark$*")" <"$here/watch.sh"
