#!/usr/bin/env bash
# nccl_failures.sh PROGRAM (gpu_mpi_nccl) - whatever breaks in NCCL's lane, on whichever rank, all ranks end
# within the deadline, not with status 0, and one line of one rank names the cause.
set -euo pipefail
export LC_ALL=C HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
program=${1:?the path of gpu_mpi_nccl}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# ends NAME LIMIT TEXT MODE VARIABLE...: three ranks in MODE, within LIMIT seconds.
ends() {
    local name=$1 limit=$2 text=$3 mode=$4 code=0 start seconds causes
    shift 4
    start=$(date +%s%N)
    env "$@" timeout -k 5 100 mpirun -np 3 "$program" "$mode" >"$work/out" 2>"$work/err" || code=$?
    seconds=$((($(date +%s%N) - start) / 1000000000))
    causes=$(grep -cE '^ddp_train: ' "$work/err" || true)
    if [ $code -ne 0 ] && [ $seconds -le "$limit" ] && [ "$causes" -eq 1 ] &&
        grep '^ddp_train: ' "$work/err" | grep -qE -- "$text"; then
        echo "$name: after $seconds s: $(grep '^ddp_train: ' "$work/err")"
        return 0
    fi
    echo "FAILED: $name: status $code after $seconds s, $causes causes, expected \"$text\""
    cat "$work/err"
    failures=$((failures + 1))
}

ends 'a rank is killed' 40 'rank 2' die
ends 'a rank leaves a sum out' 40 'rank 2' skip
ends 'an asynchronous error' 40 'rank 1' go CUSIM_FAIL=ncclAsync@rank1:7
ends 'a call that is refused' 40 'rank 1.*ncclAllReduce' go CUSIM_FAIL=ncclAllReduce@rank1:7
ends 'no communicator' 40 'rank 1.*ncclCommInitRankConfig' go CUSIM_FAIL=ncclCommInitRankConfig@rank1
ends 'no id' 40 'rank 0.*ncclGetUniqueId' go CUSIM_FAIL=ncclGetUniqueId@rank0
[ $failures -eq 0 ]
