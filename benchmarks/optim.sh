#!/usr/bin/env bash
# optim.sh - an optimizer's pass against the time that its bytes need at the bandwidth of copies, same run.
#
#   benchmarks/optim.sh [--ranks "1 2"] [--params 11.2,25.6] [--samples N]
#
# 11.2 and 25.6 million parameters are those of resnet18 and resnet50. benchmarks/optim.c says what is measured. The
# goal is a ratio of at most 1.3.
. "$(dirname "$0")/lib.sh"
ranks_list="1 2" sizes=11.2,25.6 samples=30
while [ $# -gt 0 ]; do
    case $1 in
        --ranks) ranks_list=$2; shift 2 ;;
        --params) sizes=$2; shift 2 ;;
        --samples) samples=$2; shift 2 ;;
        *) echo "optim.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
need_program benchmarks/bench_optim

echo "$(machine_line); median of $samples"
echo
echo "| ranks | million parameters | rule | ms | GB/s | copy GB/s | ratio |"
echo "|---|---|---|---|---|---|---|"
for ranks in $ranks_list; do
    mpirun -np "$ranks" "$build_dir/benchmarks/bench_optim" --params "$sizes" --samples "$samples"
done
