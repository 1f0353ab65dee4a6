#!/usr/bin/env bash
# nodes.sh - sums over several hosts: on two levels against flat.
#
#   benchmarks/nodes.sh [--rates "none 10gbit 1gbit"] [--shapes "2x2 2x4 4x2"] [--algorithms hier,ring,rhd,auto,mpi]
#                       [--sizes 4K,64K,1M,25M] [--min-time SECONDS] [--out DIR]
#
# Hosts are network namespaces of this machine with links of the given rates (tests/cluster/lib.sh; root). A shape is
# hosts x ranks on each. For each rate and shape: the table of ddp_bench allreduce. All ranks share this machine's
# cores: what a host has for itself elsewhere, it has to wait for here. What hosts send is counted by the test
# cluster.hier_bytes.
. "$(dirname "$0")/lib.sh"
. "$root_dir/tests/cluster/lib.sh"

rates="none 10gbit 1gbit" shapes="2x2 2x4 4x2" algorithms=hier,ring,rhd,auto,mpi sizes=4K,64K,1M,25M min_time=0.5 out=
while [ $# -gt 0 ]; do
    case $1 in
        --rates) rates=$2 ;;
        --shapes) shapes=$2 ;;
        --algorithms) algorithms=$2 ;;
        --sizes) sizes=$2 ;;
        --min-time) min_time=$2 ;;
        --out) out=$2 ;;
        *) echo "nodes.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "nodes.sh: $1 needs a value" >&2; exit 2; }
    shift 2
done
need_program ddp_bench
cluster_can
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# sweep HOSTS RANKS ARGUMENT...: on every host so many ranks.
sweep() {
    local hosts=$1 ranks=$2
    shift 2
    cluster_run 0 timeout 600 mpirun --hostfile "$work/hosts" --map-by "ppr:$ranks:node" -np $((hosts * ranks)) \
        "$build_dir/ddp_bench" allreduce --types f32 --min-time "$min_time" "$@"
}

machine_line
for rate in $rates; do
    for shape in $shapes; do
        hosts=${shape%x*} ranks=${shape#*x}
        cluster_up "$hosts"
        cluster_hostfile "$work/hosts" "$ranks"
        cluster_shape "$rate"
        echo
        echo "$hosts hosts of $ranks ranks, links: $rate"
        echo
        sweep "$hosts" "$ranks" --allreduce "$algorithms" --sizes "$sizes" ${out:+--out "$out/$rate-$shape"}
        cluster_down
    done
done
