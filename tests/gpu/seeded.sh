#!/usr/bin/env bash
# seeded.sh none|wait|sync|barrier|swap|skip - mistakes that CUDA and NCCL let pass, made on purpose by the
# simulator (CUSIM_BUG) in training steps of two ranks: each must be noticed, every time, and the program
# without them must not be. DDP_SANITIZED=thread: this is the thread sanitizer's build, which sees missing
# waits; the plain build sees the rest. DDP_SEEDED_RUNS: how often each is made.
. "$(dirname "$0")/../train/lib.sh"
cd "$work"
runs=${DDP_SEEDED_RUNS:-1}
export CUSIM_NCCL_TIMEOUT_MS=6000 CUSIM_NCCL_BUFFERS=1
export OMPI_MCA_odls_base_sigkill_timeout=0 # the other rank need not be asked to end first
# Two layers of one size, and each a bucket of its own: only the buffer tells their gradients apart.
mlp=(--dataset synthetic --synthetic-train 96 --synthetic-test 24 --batch-size 24 --max-steps 4
    --eval-every 0 --momentum 0.9 --first-bucket-mb 0.001 --bucket-cap-mb 0.001 --threads 1
    --model mlp --mlp-widths 32,32,32)
lenet=("${mlp[@]}" --model lenet)
steps=4
lane=nccl

# steps_of NAME: what every step computed, the loss and the norm of its gradients.
steps_of() {
    sed -n 's/^{"kind":"step",.*"loss":\([^,}]*\).*"grad_norm":\([^,}]*\).*/\1 \2/p' \
        "$1/metrics.jsonl" 2>/dev/null
}

# gpus NAME BUG ARGUMENTS...: a run of two ranks; its status. Graphs are off: one that lacks a wait is
# refused at once, and the run would go on without it.
gpus() {
    local name=$1 bug=$2 code=0
    shift 2
    rm -rf "$name"
    env CUSIM_BUG="$bug" timeout -k 5 120 mpirun -np 2 "$program" "$@" --device cuda --comm "$lane" \
        --cuda-graph off --quiet --run-dir "$name" >"$name.out" 2>&1 || code=$?
    return $code
}

# noticed BUG TEXT ARGUMENTS...: the mistake is made, and ends the run with this text.
noticed() {
    local bug=$1 text=$2 code
    shift 2
    for run in $(seq "$runs"); do
        code=0
        gpus bug "$bug" "$@" || code=$?
        if ! grep -q 'simcuda: a mistake on purpose' bug.out; then
            fail "$bug: there is no place for this mistake: $(cat bug.out)"
        elif [ $code -eq 0 ] || ! grep -qE -- "$text" bug.out; then
            fail "$bug, run $run: status $code and no \"$text\": $(cat bug.out)"
        else
            pass
        fi
    done
}

# differs BUG ARGUMENTS...: the mistake is made, and the steps are not the CPU's.
differs() {
    local bug=$1
    shift
    for run in $(seq "$runs"); do
        gpus bug "$bug" "$@" || true
        if ! grep -q 'simcuda: a mistake on purpose' bug.out; then
            fail "$bug: there is no place for this mistake: $(cat bug.out)"
        elif same_steps bug; then
            fail "$bug, run $run: the steps are the CPU's"
        else
            pass
        fi
    done
}

# same_steps NAME: as those of the CPU, in $work/cpu.
same_steps() {
    paste <(steps_of "$1") <(steps_of cpu) | awk -v want=$steps '
        function far(a, b) { return a - b > 2e-5 * b || b - a > 2e-5 * b }
        NF != 4 || far($1, $3) || far($2, $4) { print "step " NR ": " $0; bad = 1 }
        END { exit bad || NR != want }'
}

# clean ARGUMENTS...: the program as it is.
clean() {
    rm -rf cpu
    "$program" "$@" --device cpu --quiet --run-dir cpu >cpu.out 2>&1 || fail "on the CPU: $(cat cpu.out)"
    for run in $(seq "$runs"); do
        if gpus right '' "$@" && same_steps right; then
            pass
        else
            fail "without a mistake, run $run: $(same_steps right || true; cat right.out)"
        fi
    done
}

sanitized=${DDP_SANITIZED:-}
if [ -n "$sanitized" ]; then # the libraries' own accesses and MPI's locks are not the program's
    export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1:detect_deadlocks=0:atexit_sleep_ms=0
fi
race='WARNING: ThreadSanitizer: data race'
case ${1:?which mistake} in
    none)
        clean "${mlp[@]}"
        [ -n "$sanitized" ] || clean "${lenet[@]}"
        ;;
    wait) # the allreduce for the gradients; the optimizer for the allreduce; a step for its batch
        noticed 'wait/high<low:1+' "$race" "${mlp[@]}"
        noticed 'wait/high<low@rank1:7' "$race" "${mlp[@]}"
        noticed 'wait/low<high:1+' "$race" "${mlp[@]}"
        noticed 'wait/low<high@rank0:6' "$race" "${mlp[@]}"
        noticed 'wait/low<low:1+' "$race" "${mlp[@]}"
        lane=mpi # the copy to pinned memory for the gradients
        noticed 'wait/low2<low1:1+' "$race" "${mlp[@]}"
        ;;
    sync) # the host for the loss: it reads too early, or asks for a time too early
        early='cudaEventElapsedTime: device not ready'
        if [ -n "$sanitized" ]; then
            early="$early|$race"
            noticed 'sync/low@rank1:1+' "$early" "${mlp[@]}"
        else
            export CUSIM_DELAY_US=3000
        fi
        noticed 'sync/low@rank1:28+' "$early" "${mlp[@]}"
        ;;
    barrier)
        clean "${lenet[@]}"
        for kernel in bias_sums bias_gather transpose; do
            differs "barrier/$kernel:1+" "${lenet[@]}"
        done
        ;;
    swap) # of one size; of different sizes; in the last step
        noticed 'swap/ncclAllReduce@rank1:2' 'nccl: calls do not match' "${mlp[@]}"
        noticed 'swap/ncclAllReduce@rank0:3' 'nccl: calls do not match' "${mlp[@]}"
        noticed 'swap/ncclAllReduce@rank1:14' 'nccl: calls do not match' "${mlp[@]}"
        ;;
    skip) # followed by another; the last of all
        noticed 'skip/ncclAllReduce@rank1:2' 'nccl: calls do not match' "${mlp[@]}"
        CUSIM_TRACE=1 gpus right '' "${mlp[@]}" || fail "traced: $(cat right.out)"
        last=$(($(grep -c ' ncclAllReduce on ' right.out) / 2))
        noticed "skip/ncclAllReduce@rank0:$last" 'rank 1 waits in vain in ncclAllReduce' "${mlp[@]}"
        ;;
    *) fail "unknown mistake $1" ;;
esac
finish
