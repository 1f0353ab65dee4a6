#!/usr/bin/env bash
# mpirun.sh - starts a training on one host or many with the flags that this mpirun wants.
#
#   ./launch/mpirun.sh [OPTION...] [--] PROGRAM [ARGUMENT...]
#   ./launch/mpirun.sh --hostfile hostfiles/mine --subnet 10.0.0.0/24 build/ddp_train --run-dir /shared/run
#
#   --hostfile FILE   hosts (see hostfiles/); without one: this host, or the Slurm job's
#   -np N             ranks; all slots unless said. A host has as many slots as the file says, else as it has
#                     GPUs, else cores
#   --subnet NET/BITS MPI, its launcher and NCCL use the interfaces with an address in there
#   --oversubscribe   more ranks than slots are meant
#   -x NAME[=VALUE]   hands a variable on, besides DDP_TRAIN_*, NCCL_*, OMP_*, LD_LIBRARY_PATH and the like
#   --grace SECONDS   how long mpirun may go on without ranks (15); see watch.sh
#   --mpirun PROGRAM  another one than the PATH's: Open MPI 4 and 5 and MPICH are known
#   --dry-run         prints the command only
#
# The command is printed before it runs. TERM, INT (Ctrl-C) and HUP ask the ranks to save and leave with status 3
# as USR1 does, as soon as there are ranks; the second one ends them at once. The exit status is mpirun's, 1 if it had to
# be ended, 2 for a mistake. DDP_RSH is another ssh, as in agent.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/hosts.sh"
. "$here/job.sh"

refuse() {
    say "$@"
    exit 2
}

# positive NAME VALUE
positive() {
    case $2 in '' | *[!0-9]* | 0* | ????????*) refuse "$1: found \"$2\", expected a number from 1" ;; esac
}

hostfile='' ranks='' subnet='' grace=15 mpirun=mpirun dry='' oversubscribe=''
forward=()
parse() {
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) usage; exit 0 ;;
            --hostfile=* | --subnet=* | --grace=* | --mpirun=* | --ranks=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
            --dry-run) dry=1; shift; continue ;;
            --oversubscribe) oversubscribe=1; shift; continue ;;
            --) shift; break ;;
            --hostfile | --subnet | --grace | --mpirun | -np | -n | --ranks | -x) ;;
            -*) refuse "found \"$1\", expected --hostfile, -np, --subnet, --oversubscribe, -x, --grace, --mpirun," \
                "--dry-run, --help or the program" ;;
            *) break ;;
        esac
        [ $# -gt 1 ] || refuse "$1: a value is missing"
        case $1 in
            --hostfile) hostfile=$2 ;;
            --subnet) subnet=$2 ;;
            --grace) positive "$1" "$2"; grace=$2 ;;
            --mpirun) mpirun=$2 ;;
            -x) forward+=("$2") ;;
            *) positive "$1" "$2"; ranks=$2 ;;
        esac
        shift 2
    done
    [ $# -gt 0 ] || refuse "found no program, expected ddp_train and its options"
    program=("$@")
    local byte='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
    if [ -n "$subnet" ] && ! [[ $subnet =~ ^($byte\.){3}$byte/([1-9]|[12][0-9]|3[0-2])$ ]]; then
        refuse "--subnet: found \"$subnet\", expected NET/BITS like 10.0.0.0/24"
    fi
}

# Which mpirun: sets kind to ompi4, ompi5 or mpich.
find_kind() {
    local text
    text=$("$mpirun" --version 2>&1) || refuse "$mpirun --version failed: $text"
    case $text in
        *'Open MPI'*' 4.'*) kind=ompi4 ;;
        *'Open MPI'*' 5.'*) kind=ompi5 ;;
        *HYDRA* | *mpich* | *MPICH*) kind=mpich ;;
        *) refuse "$mpirun --version: found \"$(head -n 1 <<<"$text")\", expected Open MPI 4 or 5, or MPICH" ;;
    esac
}

# Fills in slots, and names the interfaces of --subnet.
look_around() {
    local i gpus name names=() with_gpus=0
    case " ${slots[*]/#/=} " in *' = '*) ;; *) [ -n "$subnet" ] || return 0 ;; esac
    look_at_hosts "$work" || exit 2
    for i in "${!hosts[@]}"; do
        if [ -z "${slots[i]}" ]; then
            gpus=$(fact "$work/$i" gpus)
            slots[i]=$((gpus > 0 ? gpus : $(fact "$work/$i" cores)))
            with_gpus=$((with_gpus + (gpus > 0)))
        fi
        if [ -n "$subnet" ]; then
            name=$(interface_in "$work/$i" "$subnet") ||
                refuse "--subnet $subnet: host ${hosts[i]} has no address there:" \
                    "$(awk '$1 == "address" { print $2, $3 }' "$work/$i" | paste -sd, | sed 's/,/, /g')"
            case " ${names[*]} " in *" $name "*) ;; *) names+=("$name") ;; esac
        fi
    done
    interfaces=$(IFS=,; echo "${names[*]}")
    if [ $with_gpus -gt 0 ] && [ $with_gpus -lt ${#hosts[@]} ]; then
        say 'some hosts have GPUs and some none: ddp_train will use none unless told otherwise'
    fi
}

find_hosts() {
    hosts=() slots=() interfaces=''
    if [ -n "$hostfile" ]; then
        read_hosts "$hostfile" || exit 2
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        : "${ranks:=${SLURM_NTASKS:-}}"
    else
        hosts=("$(uname -n)") slots=('')
    fi
    look_around
}

# Ranks against slots.
count_ranks() {
    local i total=0
    for i in "${!hosts[@]}"; do total=$((total + ${slots[i]:-0})); done
    : "${ranks:=$total}"
    [ "$ranks" != 0 ] || refuse "-np: is missing, and the Slurm job has no number of tasks"
    if [ "$total" -gt 0 ] && [ "$ranks" -gt "$total" ] && [ -z "$oversubscribe" ]; then
        refuse "-np: found $ranks, expected at most $total, the slots of ${#hosts[@]} host(s), or --oversubscribe"
    fi
}

# Names of variables that go to all hosts; sets names.
find_variables() {
    # Open MPI's topology library asks X displays for graphics cards otherwise, which takes seconds.
    export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
    mapfile -t names < <(compgen -e | grep -E \
        '^((DDP_TRAIN|NCCL|OMP|DNNL|ONEDNN|UCX|FI|MALLOC)_.*|CUDA_(VISIBLE_DEVICES|DEVICE_.*|MODULE_.*|LAUNCH_.*)|LD_LIBRARY_PATH|HWLOC_COMPONENTS)$' || true)
    case ${NCCL_SOCKET_IFNAME:-} in
        ^*) say "NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME only excludes, and takes any other interface: --subnet is safer" ;;
    esac
}

is_remote() {
    [ ${#hosts[@]} -gt 1 ] || { [ ${#hosts[@]} -eq 1 ] && ! is_here "${hosts[0]}"; }
}

# host_list: "node0:4,node1:4"
host_list() {
    local i list=()
    for i in "${!hosts[@]}"; do list+=("${hosts[i]}${slots[i]:+:${slots[i]}}"); done
    (IFS=,; echo "${list[*]}")
}

# The parameters of Open MPI's launcher have another name in 5, and their option too.
ompi_command() {
    local to_launcher=--mca rsh=plm_rsh include=oob_tcp_if_include name
    if [ $kind = ompi5 ]; then to_launcher=--prtemca rsh=plm_ssh include=prte_if_include; fi
    command=("$mpirun")
    [ ${#hosts[@]} -eq 0 ] || [ -z "${slots[0]}" ] || command+=(--host "$(host_list)")
    command+=(-np "$ranks" --bind-to none)
    [ "$(id -u)" -ne 0 ] || command+=(--allow-run-as-root)
    if [ -n "$oversubscribe" ]; then
        if [ $kind = ompi5 ]; then command+=(--map-by :OVERSUBSCRIBE); else command+=(--oversubscribe); fi
    fi
    ! is_remote || command+=("$to_launcher" "${rsh}_agent" "$agent")
    [ ${#hosts[@]} -le 64 ] || command+=("$to_launcher" "${rsh}_no_tree_spawn" 1)
    [ -z "$subnet" ] || command+=(--mca btl_tcp_if_include "$subnet" "$to_launcher" "$include" "$subnet")
    if [ -n "$interfaces" ] && [ -z "${NCCL_SOCKET_IFNAME:-}" ]; then
        command+=(-x "NCCL_SOCKET_IFNAME==$interfaces")
    fi
    for name in "${names[@]}" "${forward[@]}"; do command+=(-x "$name"); done
    command+=("${program[@]}")
}

# Hydra hands on the whole environment by itself.
mpich_command() {
    local name
    command=("$mpirun")
    [ ${#hosts[@]} -eq 0 ] || [ -z "${slots[0]}" ] || command+=(-hosts "$(host_list)")
    command+=(-n "$ranks")
    ! is_remote || command+=(-launcher ssh -launcher-exec "$agent")
    if [ -n "$interfaces" ]; then
        case $interfaces in
            *,*) refuse "--subnet: MPICH wants one name of an interface on all hosts, found $interfaces" ;;
        esac
        command+=(-iface "$interfaces" -genv FI_TCP_IFACE "$interfaces")
        [ -n "${NCCL_SOCKET_IFNAME:-}" ] || command+=(-genv NCCL_SOCKET_IFNAME "=$interfaces")
    fi
    for name in "${forward[@]}"; do
        case $name in *=*) command+=(-genv "${name%%=*}" "${name#*=}") ;; esac
    done
    command+=("${program[@]}")
}

parse "$@"
find_kind
work=$(mktemp -d) agent_dir=''
trap 'rm -rf "$work" "$agent_dir"' EXIT
find_hosts
count_ranks
find_variables
find_agent
if [ $kind = mpich ]; then mpich_command; else ompi_command; fi
quote_words "${command[@]}"
echo
[ -z "$dry" ] || exit 0
export DDP_LAUNCH_GRACE=$grace
catch_signals
run_job "$grace" "${command[@]}"
exit "$code"
