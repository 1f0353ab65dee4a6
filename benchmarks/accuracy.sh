#!/usr/bin/env bash
# accuracy.sh - test accuracy of the default run (lenet, Fashion-MNIST, 10 epochs) by number of ranks.
#
#   benchmarks/accuracy.sh [RANKS ...]     1 2 4 8 unless some are named
#
# Not a timing: the global batch is the same, so the results should agree but for the order of sums.
. "$(dirname "$0")/lib.sh"

ranks_list=("$@")
[ $# -gt 0 ] || ranks_list=(1 2 4 8)
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_hwloc_base_binding_policy=none

echo "$(machine_line)"
echo
echo "| ranks | test accuracy | test loss |"
echo "|---|---|---|"
for ranks in "${ranks_list[@]}"; do
    mpirun -np "$ranks" "$build_dir/ddp_train" --threads 1 --quiet --run-dir "$work/run-$ranks" \
        >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    file=$work/run-$ranks/metrics.jsonl
    printf '| %s | %.4f | %.4f |\n' "$ranks" "$(summary_field "$file" test_accuracy)" \
        "$(summary_field "$file" test_loss)"
done
