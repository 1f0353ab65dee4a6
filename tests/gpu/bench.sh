#!/usr/bin/env bash
# bench.sh - ddp_bench allreduce --comm nccl: right sums in GPUs' memory, and what it cannot do.
. "$(dirname "$0")/../train/bench_lib.sh"

bad 'option --types: found f64 with --comm nccl, expected f32 or bf16' allreduce --comm nccl --types f64
bad 'option --allreduce: found "ring" with --comm nccl' allreduce --comm nccl --allreduce ring
for ranks in 2 3; do
    timeout 100 mpirun -np $ranks "$bench" allreduce --comm nccl --sizes 8,1000,256K --types f32,bf16 --min-time 0.001 \
        --gnuplot no-such-gnuplot --out "$work/out" >"$work/said" 2>&1 || fail "$ranks ranks: $(cat "$work/said")"
    json "$work/out/allreduce.json" "d['ranks'] == $ranks and d['memory'] == 'gpu' and len(d['rows']) == 6"
    json "$work/out/allreduce.json" "all(r['wrong'] == 0 and r['algorithm'] == 'nccl' for r in d['rows'])"
done
finish
