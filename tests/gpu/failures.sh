#!/usr/bin/env bash
# failures.sh - whatever breaks on one rank's simulated GPU while two train: all end in time, not
# with status 0, and one line says which rank and why.
. "$(dirname "$0")/../train/lib.sh"
cd "$work"
run=(--device cuda --comm nccl --model lenet --dataset synthetic --synthetic-train 4800 --synthetic-test 48
    --batch-size 48 --epochs 1000 --eval-every 0 --threads 1 --quiet --comm-timeout 4
    --first-bucket-mb 0.001 --bucket-cap-mb 0.01)
limit=40 # usually two or so; a run that hangs does so for good

# ended WHAT TEXT CODE START: judges the run whose errors are in $work/err.
ended() {
    local what=$1 text=$2 code=$3 ms=$((($(date +%s%N) - $4) / 1000000)) causes
    causes=$(grep -c '^ddp_train: ' err || true)
    if [ "$code" -ne 0 ] && [ $ms -le $((limit * 1000)) ] && [ "$causes" -eq 1 ] &&
        grep '^ddp_train: ' err | grep -qE -- "$text"; then
        echo "$what: $ms ms: $(grep '^ddp_train: ' err)"
        pass
    else
        fail "$what: status $code after $ms ms, $causes causes, expected \"$text\": $(cat err)"
    fi
}

# breaks WHAT TEXT VARIABLE...: GRAPHS=on lets the steps be replayed, with few calls that could be counted.
breaks() {
    local what=$1 text=$2 code=0 start
    shift 2
    start=$(date +%s%N)
    env "$@" timeout -k 5 100 mpirun -np 2 "$program" "${run[@]}" \
        --cuda-graph "${GRAPHS:-off}" --run-dir "$RANDOM$RANDOM" >out 2>err ||
        code=$?
    ended "$what" "$text" $code "$start"
}

# dies: rank 1 is killed once the run makes steps.
dies() {
    local code=0 start job pid
    rm -rf killed
    mpirun -np 2 "$program" "${run[@]}" --run-dir killed >out 2>err &
    job=$!
    reach killed 6 || return 0
    pid=$({ tr -d ' \n' <killed/environment.json; echo; } | sed -n 's/.*{"rank":1,[^}]*"pid":\([0-9]*\).*/\1/p')
    start=$(date +%s%N)
    kill -9 "$pid"
    wait $job || code=$?
    ended 'a peer is lost' 'rank 1 ' $code "$start"
}

breaks 'no memory at the start' 'rank 1 .*not to be had on GPU 1' CUSIM_FAIL=cudaMalloc@rank1:9
breaks 'too little memory' 'rank [01] .*not to be had on GPU [01] .*free' CUSIM_MEMORY_MB=1
breaks 'no pinned memory' 'rank 0 .*pinned' CUSIM_FAIL=cudaHostAlloc@rank0:2
breaks 'an asynchronous error of NCCL' 'rank 1 .*gradients' CUSIM_FAIL=ncclAsync@rank1:40
GRAPHS=on breaks 'the same in a graph' 'rank 1 .*gradients' CUSIM_FAIL=ncclAsync@rank1:40
breaks 'a call that NCCL refuses' 'rank 1 .*ncclAllReduce' CUSIM_FAIL=ncclAllReduce@rank1:40
breaks 'an error that stays' 'rank 0 .*illegal memory access' CUSIM_FAIL=kernel@rank0:400
breaks 'a launch that is refused' 'rank 1 .*CUDA' CUSIM_FAIL=launch@rank1:400
breaks 'wrong order' 'rank [01] .*gradients' CUSIM_STRICT=0 CUSIM_BUG=swap/ncclAllReduce@rank1:41
breaks 'a sum left out' 'rank [01] .*gradients' CUSIM_STRICT=0 CUSIM_BUG=skip/ncclAllReduce@rank1:41
dies
finish
