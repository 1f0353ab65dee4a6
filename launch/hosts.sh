# shellcheck shell=bash
# hosts.sh - lists of hosts, and what can be learned of each. Sourced by mpirun.sh and run_restarts.sh.

# usage: the head of the script.
usage() { sed -n '2,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$0"; }

# read_hosts FILE: fills hosts and slots ("" where the file has none). Forms, of Open MPI and of MPICH:
#     node0
#     node0 slots=4
#     node0:4
# A host's slots on several lines add up, and each of them is one slot without a number, as in the lists of PBS.
read_hosts() {
    local line name rest i number=0
    local -A places=()
    local host='[A-Za-z0-9_][A-Za-z0-9._-]*' count='([1-9][0-9]{0,4})' gap='[[:space:]]*'
    hosts=() slots=()
    if [ ! -r "$1" ] || [ -d "$1" ]; then
        echo "$1: cannot be read, expected a list of hosts as those in hostfiles/" >&2
        return 2
    fi
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        line=${line#$'\xef\xbb\xbf'} line=${line%$'\r'} # what Windows adds
        line=${line%%#*}
        read -r name rest <<<"$line"
        [ -n "$name" ] || continue
        if [[ $line =~ ^$gap($host):$count$gap$ ]]; then
            name=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
        elif [[ "$name $rest" =~ ^$host\ slots$gap=$gap$count([[:space:]]+max[-_]slots$gap=$gap[0-9]+)?$gap$ ]]; then
            rest=${BASH_REMATCH[1]}
        elif [ -n "$rest" ] || ! [[ $name =~ ^$host$ ]]; then
            echo "$1:$number: found \"${line}\", expected HOST, HOST slots=N or HOST:N" >&2
            return 2
        fi
        i=${places[$name]:-}
        if [ -n "$i" ]; then
            slots[i]=$((${slots[i]:-1} + ${rest:-1}))
        else
            places[$name]=${#hosts[@]}
            hosts+=("$name") slots+=("$rest")
        fi
    done <"$1"
    [ ${#hosts[@]} -gt 0 ] || { echo "$1: no host in it" >&2; return 2; }
}

# is_here HOST: by its short or its long name, or by an address.
is_here() {
    local here
    here=$(uname -n)
    case $1 in localhost | 127.* | "$here" | "${here%%.*}" | "$here".*) return 0 ;; esac
    [[ $1 =~ ^[0-9.]+$ ]] && case " $(hostname -I 2>/dev/null) " in *" $1 "*) return 0 ;; esac
    return 1
}

# Sets agent to agent.sh. Launchers cut its path into words, and at colons: then to a link, in agent_dir.
find_agent() {
    agent=$here/agent.sh
    case $agent in
        *[[:space:]:]*)
            agent_dir=$(mktemp -d)
            ln -s "$here/agent.sh" "$here/watch.sh" "$agent_dir"
            agent=$agent_dir/agent.sh
            ;;
    esac
}

# on_host HOST COMMAND: a text for the host's shell, which is this one's where the host is.
on_host() {
    local rsh=${DDP_RSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}
    if is_here "$1"; then
        timeout 30 sh -c "$2" </dev/null
    else
        # shellcheck disable=SC2086 # its options
        timeout 30 $rsh "$1" "$2" </dev/null
    fi
}

# What a host tells of itself: gpus N, cores N, address INTERFACE ADDRESS/BITS.
host_facts='gpus=$(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")
[ "$gpus" -gt 0 ] || gpus=$(ls /dev | grep -c "^nvidia[0-9][0-9]*\$")
echo "gpus $gpus"
echo "cores $(nproc)"
PATH=$PATH:/usr/sbin:/sbin ip -o -4 addr show up 2>/dev/null | while read -r _ name _ address _; do
    echo "address $name $address"
done'

# look_at_hosts FOLDER: asks all hosts at once, 32 at a time; the answers lie there, one file a host.
look_at_hosts() {
    local i failed=0
    for i in "${!hosts[@]}"; do
        [ $((i % 32)) -ne 31 ] || wait
        on_host "${hosts[i]}" "$host_facts" >"$1/$i" 2>"$1/$i.err" || echo "$?" >"$1/$i.code" &
    done
    wait
    for i in "${!hosts[@]}"; do
        if [ -e "$1/$i.code" ]; then
            echo "host ${hosts[i]} does not answer: $(tail -n 1 "$1/$i.err" | grep . || echo "status $(cat "$1/$i.code")")" >&2
        elif [ -z "$(fact "$1/$i" cores)" ]; then
            echo "host ${hosts[i]} does not tell of its cores: $(cat "$1/$i" "$1/$i.err" | head -n 1)" >&2
        else
            continue
        fi
        failed=1
    done
    return $failed
}

# fact FILE NAME: a number.
fact() { awk -v name="$2" '$1 == name { print $2; exit }' "$1"; }

# address_number A.B.C.D
address_number() {
    local a b c d
    IFS=. read -r a b c d <<<"$1"
    echo $(((a << 24) + (b << 16) + (c << 8) + d))
}

# interface_in FILE SUBNET: the name of a host's interface with an address there.
interface_in() {
    local bits=${2#*/} net name address
    net=$(($(address_number "${2%/*}") >> (32 - bits)))
    while read -r name address; do
        if [ $(($(address_number "${address%/*}") >> (32 - bits))) -eq $net ]; then
            echo "$name"
            return 0
        fi
    done < <(awk '$1 == "address" { print $2, $3 }' "$1")
    return 1
}
