# shellcheck shell=bash disable=SC2064
# lib.sh - hosts out of network namespaces, for tests and benchmarks over several hosts. Sourced, by bash, as root.
#
#   cluster_can || exit 77
#   cluster_up 2
#   cluster_hostfile "$work/hosts" 1
#   cluster_run 0 mpirun --hostfile "$work/hosts" -np 2 build/ddp_train
#   cluster_down                            # on EXIT too
#
# A host is a network namespace with eth0 on a bridge, a host name (node0, node1, ...), a /dev/shm, a TMPDIR
# and a boot_id of its own; processors, memory, processes' numbers and all other files are the machine's. The bridge is in a
# namespace too, so the machine's network stays as it is, and clusters live side by side: all names begin with
# $CLUSTER_ID. There is no sshd: the agent script stands for ssh, a clean environment included. What a script
# that was killed has left behind goes at the next cluster_up.
#
#   cluster_can             0 if the kernel lets us; else says on stderr why not
#   cluster_up N [SUBNET]   makes node0 to node<N-1>, with the addresses .10, .11, ... of SUBNET (10.77.0.0/24)
#   cluster_shape RATE      limits every host's link, both ways, to a rate as tc writes it (1gbit); none: no limit
#   cluster_cut I           takes the carrier from a host's link; cluster_join I gives it back
#   cluster_second NET      gives every host an eth1 on a second bridge, in NET (10.88.0.0/24)
#   cluster_bait            gives every host a docker0 with one and the same address, which leads nowhere
#   cluster_run I CMD...    runs a command on a host, in this directory and environment. In a subshell (behind &,
#                           in a pipe) it takes the subshell's place: a kill of $! reaches the command
#   cluster_agent           prints the path of the agent: AGENT [OPTION...] HOST COMMAND..., as ssh
#   cluster_address I       prints a host's address on eth0
#   cluster_hostfile F S    writes "nodeI slots=S" lines
#   cluster_kill I          kills all processes of a host
#   cluster_bytes I [ETH]   prints what went through eth0 (or ETH) so far: bytes sent, bytes received
#   cluster_left            lists processes that still run on any host, and files in the hosts' /dev/shm
#   cluster_down            kills everything in the cluster and removes it
#
# Exported for launchers: the agent; no binding and yielding when idle, since hosts share the cores;
# more ranks than cores, and root, are allowed.

CLUSTER_ID=${CLUSTER_ID:-c$(($$ % 100000))}
CLUSTER_HOME=${CLUSTER_HOME:-/tmp/ddp-cluster}
cluster_dir=$CLUSTER_HOME/$CLUSTER_ID
cluster_count=0

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}

# cluster_try TEXT COMMAND...: for cluster_can.
cluster_try() {
    local what=$1 said
    shift
    said=$("$@" 2>&1) && return 0
    echo "no cluster of network namespaces here: $what${said:+: $said}" >&2
    return 1
}

cluster_can() {
    local probe=$CLUSTER_ID-probe code=0 tool
    cluster_try 'needs root' [ "$(id -u)" -eq 0 ] || return 1
    for tool in ip tc unshare nsenter; do
        cluster_try "no program $tool" command -v "$tool" || return 1
    done
    cluster_try 'network namespaces' ip netns add "$probe" || return 1
    cluster_try 'bridges' ip -n "$probe" link add br0 type bridge &&
        cluster_try 'pairs of interfaces' ip -n "$probe" link add v0 type veth peer name v1 &&
        cluster_try 'bandwidth (tbf)' tc -n "$probe" qdisc add dev v0 root tbf rate 1gbit burst 256kb limit 1mb &&
        cluster_try 'namespaces of host names and mounts' nsenter --net=/run/netns/"$probe" \
            unshare --uts --mount --propagation private sh -c 'hostname probe && mount -t tmpfs none /dev/shm' ||
        code=1
    ip netns del "$probe"
    return $code
}

cluster_net() { echo "$CLUSTER_ID-node$1"; }
cluster_pids() { ip netns pids "$1" 2>/dev/null; }
cluster_hosts() { seq 0 $((cluster_count - 1)); }
cluster_address() { echo "$cluster_subnet.$((10 + $1))"; }

cluster_up() {
    local count=$1 prefix=${2:-10.77.0.0/24} i
    cluster_subnet=${prefix%.*}
    cluster_sweep
    mkdir -p "$cluster_dir"
    cluster_start_time $$ >"$cluster_dir/owner"
    cluster_at_exit
    cluster_bridge sw
    { echo "127.0.0.1 localhost"
      for i in $(seq 0 $((count - 1))); do echo "$cluster_subnet.$((10 + i)) node$i"; done; } >"$cluster_dir/hosts"
    for i in $(seq 0 $((count - 1))); do
        ip netns add "$(cluster_net "$i")"
        ip -n "$(cluster_net "$i")" link set lo up
        cluster_wire "$i" sw eth0 "$cluster_subnet.$((10 + i))/24"
        cluster_hold "$i"
        cluster_count=$((i + 1))
    done
    cluster_write_agent
    export OMPI_MCA_plm_rsh_agent=$cluster_dir/agent PRTE_MCA_plm_ssh_agent=$cluster_dir/agent
    export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$cluster_dir/agent
}

# cluster_bridge NAME: a switch.
cluster_bridge() {
    ip netns add "$CLUSTER_ID-$1"
    ip -n "$CLUSTER_ID-$1" link add br0 type bridge
    ip -n "$CLUSTER_ID-$1" link set br0 up
}

# cluster_wire I SWITCH INTERFACE ADDRESS
cluster_wire() {
    local net
    net=$(cluster_net "$1")
    ip -n "$net" link add "$3" type veth peer name "port$1" netns "$CLUSTER_ID-$2"
    ip -n "$net" addr add "$4" dev "$3"
    ip -n "$net" link set "$3" up
    ip -n "$CLUSTER_ID-$2" link set "port$1" master br0
    ip -n "$CLUSTER_ID-$2" link set "port$1" up
}

# cluster_hold I: a process that keeps the host's name and mounts. /sys is mounted anew to show the host's own
# interfaces, with the machine's control groups in it as before; where that is not allowed it stays as it is.
cluster_hold() {
    local at=$cluster_dir/node$1
    mkdir -p "$at/tmp"
    nsenter --net=/run/netns/"$(cluster_net "$1")" unshare --uts --mount --propagation private bash -c '
        hostname "$2" && mount -t tmpfs none /dev/shm && mount --bind "$3" /etc/hosts || exit 1
        mkdir -p "$1/cgroup" && mount --rbind /sys/fs/cgroup "$1/cgroup" && mount -t sysfs none /sys &&
            mount --move "$1/cgroup" /sys/fs/cgroup
        # What tells one machine from another, where processes have the same numbers.
        cat /proc/sys/kernel/random/uuid >"$1/boot" &&
            mount --bind "$1/boot" /proc/sys/kernel/random/boot_id || exit 1
        touch "$1/ready"
        exec sleep infinity' _ "$at" "node$1" "$cluster_dir/hosts" </dev/null >"$at/log" 2>&1 &
    echo $! >"$at/holder"
    disown $!
    for _ in $(seq 3000); do
        [ ! -e "$at/ready" ] || return 0
        sleep 0.02
    done
    echo "node$1 does not start: $(cat "$at/log")" >&2
    return 1
}

# The agent has ssh's ways: options first, the words of the command are put together for a shell on the host,
# which starts with little more than a PATH.
cluster_write_agent() {
    cat >"$cluster_dir/agent" <<END
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
read -r holder <$cluster_dir/\$host/holder || exit 255
exec nsenter --net --uts --mount --target "\$holder" env -i HOME="\$HOME" USER=root LANG=C \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HWLOC_COMPONENTS=-gl \\
    TMPDIR=$cluster_dir/\$host/tmp bash -c "\$*"
END
    chmod +x "$cluster_dir/agent"
}

cluster_agent() { echo "$cluster_dir/agent"; }

cluster_run() {
    local at=$cluster_dir/node$1
    shift
    set -- nsenter --net --uts --mount --target "$(cat "$at/holder")" env TMPDIR="$at/tmp" \
        bash -c 'cd "$1" && shift && exec "$@"' _ "$PWD" "$@"
    if [ "$BASH_SUBSHELL" -gt 0 ]; then exec "$@"; else "$@"; fi
}

cluster_hostfile() {
    local i
    for i in $(cluster_hosts); do echo "node$i slots=$2"; done >"$1"
}

# What a bucket holds must last from one tick of the clock to the next, or the rate is not reached.
cluster_shape() {
    local rate=$1 i
    for i in $(cluster_hosts); do
        cluster_limit "$(cluster_net "$i")" eth0 "$rate"
        cluster_limit "$CLUSTER_ID-sw" "port$i" "$rate"
    done
}

cluster_limit() {
    local burst=256kb
    tc -n "$1" qdisc del dev "$2" root 2>/dev/null || true
    [ "$3" != none ] || return 0
    case $3 in *gbit) [ "${3%gbit}" = 1 ] || burst=2500kb ;; esac
    tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst "$burst" latency 20ms
}

cluster_cut() { ip -n "$CLUSTER_ID-sw" link set "port$1" down; }
cluster_join() { ip -n "$CLUSTER_ID-sw" link set "port$1" up; }

cluster_second() {
    local prefix=${1:-10.88.0.0/24} i
    cluster_bridge sw2
    for i in $(cluster_hosts); do cluster_wire "$i" sw2 eth1 "${prefix%.*}.$((10 + i))/24"; done
}

cluster_bait() {
    local i
    for i in $(cluster_hosts); do
        ip -n "$(cluster_net "$i")" link add docker0 type bridge
        ip -n "$(cluster_net "$i")" addr add 172.17.0.1/16 dev docker0
        ip -n "$(cluster_net "$i")" link set docker0 up
    done
}

cluster_bytes() {
    nsenter --net=/run/netns/"$(cluster_net "$1")" awk -v at="${2:-eth0}:" '$1 == at { print $10, $2 }' /proc/net/dev
}

# cluster_of I: the host's processes, without the one that holds it.
cluster_of() { cluster_pids "$(cluster_net "$1")" | grep -vxF "$(cat "$cluster_dir/node$1/holder")" || true; }

# Again while there are some: one of them may just have made another.
cluster_kill() {
    local pids
    while pids=$(cluster_of "$1") && [ -n "$pids" ]; do
        kill -9 $pids 2>/dev/null || true
        sleep 0.02
    done
}

cluster_left() {
    local i pid
    for i in $(cluster_hosts); do
        for pid in $(cluster_of "$i"); do
            echo "node$i: process $pid: $(cat "/proc/$pid/cmdline" 2>/dev/null | tr '\0\n' '  ' | cut -c1-200)"
        done
        nsenter --mount --target "$(cat "$cluster_dir/node$i/holder")" find /dev/shm -mindepth 1 -printf "node$i: %p\n"
    done
}

# cluster_start_time PID: what tells a process from a later one with its number.
cluster_start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk -v pid="$1" '{ print pid, $20 }'; }

# cluster_remove ID: its processes, namespaces (and with them the links) and files.
cluster_remove() {
    local net pids
    for net in $(ip netns list | awk -v id="$1" 'index($1, id "-") == 1 { print $1 }'); do
        while pids=$(cluster_pids "$net") && [ -n "$pids" ]; do
            kill -9 $pids 2>/dev/null || true
            sleep 0.02
        done
        ip -n "$net" -o link show type veth | awk -F'[ @:]+' '{ print $2 }' |
            xargs -r -n 1 ip -n "$net" link del 2>/dev/null || true
        ip netns del "$net"
    done
    rm -rf "${CLUSTER_HOME:?}/$1"
}

# Removes clusters whose script is gone.
cluster_sweep() {
    local dir
    for dir in "$CLUSTER_HOME"/*/; do
        [ -e "${dir}owner" ] || continue
        [ "$(cluster_start_time "$(cut -d' ' -f1 "${dir}owner")")" = "$(cat "${dir}owner")" ] ||
            cluster_remove "$(basename "$dir")"
    done
}

cluster_down() {
    [ -d "$cluster_dir" ] || return 0
    cluster_remove "$CLUSTER_ID"
    cluster_count=0
}

# A trap that is there already comes behind.
cluster_at_exit() {
    local words
    eval "words=($(trap -p EXIT))"
    case ${words[2]:-} in *cluster_down*) ;; *) trap "cluster_down; ${words[2]:-}" EXIT ;; esac
}
