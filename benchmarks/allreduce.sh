#!/usr/bin/env bash
# allreduce.sh - GB/s of an allreduce of f32 gradients on this machine: ours, MPI's, and a peer's.
#
#   benchmarks/allreduce.sh [--peer SCRIPT] [--python PROGRAM] [--ranks "2 4"] [--sizes-mb 1,4,25,64,256]
#                           [--rounds N] [--min-time SECONDS] [--all]
#
# ours is --allreduce auto on buffers that the communicator has allocated; MPI is MPI_Allreduce called by itself.
# Rounds of ours, MPI and peer are interleaved; each figure is the median over rounds of bytes / median time, in GB/s
# (10^9). bound is the share of the time that the memory traffic of an allreduce in place would take at memcpy's
# bandwidth (ddp_bench allreduce --help says how). --all adds every algorithm of the communicator, one round each. The peer
# must take --task allreduce --nproc N --sizes-mb LIST and print JSON with "allreduce": [{"mb": ..., "algbw_GBps": ...}].
#
# Freed memory stays with malloc in all programs: otherwise MPI_Allreduce maps, touches and unmaps its scratch memory at
# every call, and is up to 16 times slower.
. "$(dirname "$0")/lib.sh"
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592

peer= python=python3 ranks_list="2 4" sizes=1,4,25,64,256 rounds=3 min_time=0.5 all=
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --ranks) ranks_list=$2; shift 2 ;;
        --sizes-mb) sizes=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --min-time) min_time=$2; shift 2 ;;
        --all) all=1; shift ;;
        *) echo "allreduce.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
need_program ddp_bench
need_program benchmarks/bench_mpi_allreduce
bytes=$(awk -v list="$sizes" 'BEGIN { n = split(list, mb, ","); for (i = 1; i <= n; i++)
    printf "%s%d", (i > 1 ? "," : ""), mb[i] * 1048576 }')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ours NAME RANKS ALGORITHM [ARGUMENT...]: appends lines "MB GBps bound" to the file NAME.RANKS.
ours() {
    local name=$1 ranks=$2 algorithm=$3
    shift 3
    mpirun -np "$ranks" "$build_dir/ddp_bench" allreduce --allreduce "$algorithm" --sizes "$bytes" \
        --min-time "$min_time" "$@" >"$work/table"
    awk -F'|' '$4 ~ /^ *[0-9]+ $/ { printf "%g %g %g\n", $4 / 1048576, $9, $11 }' "$work/table" \
        >>"$work/$name.$ranks"
}

plain() { # RANKS
    mpirun -np "$1" "$build_dir/benchmarks/bench_mpi_allreduce" "$bytes" "$min_time" |
        awk '{ printf "%g %g\n", $1 / 1048576, $1 / $2 / 1e9 }' >>"$work/plain.$1"
}

theirs() { # RANKS
    "$python" "$peer" --task allreduce --nproc "$1" --threads 1 --sizes-mb "$sizes" --min-time "$min_time" \
        2>"$work/peer.err" >"$work/peer.json" || { cat "$work/peer.err" >&2; return 1; }
    "$python" -c 'import json, sys
for line in sys.stdin:
    for row in json.loads(line)["allreduce"] if line.startswith("{") else []:
        print("%g %f" % (row["mb"], row["algbw_GBps"]))' <"$work/peer.json" >>"$work/peer.$1"
}

# figure NAME RANKS MB FIELD: median over rounds, or -.
figure() {
    [ -f "$work/$1.$2" ] || { echo -; return; }
    awk -v mb="$3" -v field="$4" '$1 == mb { print $field }' "$work/$1.$2" | median
}

ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN { if (a == "-" || b == "-") print "-"; else printf "%.1f", a / b }'
}

shorten() {
    awk -v v="$1" 'BEGIN { if (v == "-") print v; else printf "%.2f", v }'
}

echo "$(machine_line); median of $rounds rounds; GB/s"
for ranks in $ranks_list; do
    for _ in $(seq "$rounds"); do
        ours auto "$ranks" auto
        plain "$ranks"
        [ -z "$peer" ] || theirs "$ranks"
    done
    for algorithm in ${all:+shm mpi root ring tree rhd}; do
        ours "$algorithm" "$ranks" "$algorithm"
    done
    [ -z "$all" ] || ours private "$ranks" auto --memory private
done

extra=
[ -z "$all" ] || extra=" shm | mpi | root | ring | tree | rhd | auto, private buffers |"
echo
echo "| ranks | MiB | ours | MPI_Allreduce | peer | ours / MPI | ours / peer | bound |$extra"
echo "|---|---|---|---|---|---|---|---|${all:+---|---|---|---|---|---|---|}"
for ranks in $ranks_list; do
    for mb in ${sizes//,/ }; do
        mine=$(figure auto "$ranks" "$mb" 2) mpi=$(figure plain "$ranks" "$mb" 2) other=$(figure peer "$ranks" "$mb" 2)
        printf '| %s | %s | %s | %s | %s | %s | %s | %s |' "$ranks" "$mb" "$(shorten "$mine")" "$(shorten "$mpi")" \
            "$(shorten "$other")" "$(ratio "$mine" "$mpi")" "$(ratio "$mine" "$other")" \
            "$(shorten "$(figure auto "$ranks" "$mb" 3)")"
        for name in ${all:+shm mpi root ring tree rhd private}; do
            printf ' %s |' "$(shorten "$(figure "$name" "$ranks" "$mb" 2)")"
        done
        printf '\n'
    done
done
