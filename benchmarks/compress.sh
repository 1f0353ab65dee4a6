#!/usr/bin/env bash
# compress.sh - what each way of sending gradients saves in bytes and time, and costs in accuracy, over a slow network.
#
#   benchmarks/compress.sh [--rate 1gbit] [--epochs 3] [--steps 12] [--widths 512,512] [--model-b resnet18-small]
#                          [--ways "fp32 bf16 ..."] [--out DIR]
#
# Two hosts of one rank each, as network namespaces of this machine with links of the given rate
# (tests/cluster/lib.sh; root). An mlp of these widths trains on Fashion-MNIST for whole epochs: accuracy, step time,
# bytes. Model b makes a few steps on synthetic images: step time and bytes. "wire" is what host 0 sent through its
# interface in a step, all headers and the evaluations included; "payload" what a rank gave to the gradients'
# collectives; "wait" what backward did not hide. Medians over the steps but the first five. With --out:
# compress.json there, too.
. "$(dirname "$0")/lib.sh"
. "$root_dir/tests/cluster/lib.sh"

rate=1gbit epochs=3 steps=12 widths=512,512 model_b=resnet18-small out=
ways="fp32 bf16 fp16 powersgd-1 powersgd-4 topk-0.01 topk-0.001"
while [ $# -gt 0 ]; do
    case $1 in
        --rate) rate=$2 ;;
        --epochs) epochs=$2 ;;
        --steps) steps=$2 ;;
        --widths) widths=$2 ;;
        --model-b) model_b=$2 ;;
        --ways) ways=$2 ;;
        --out) out=$2 ;;
        *) echo "compress.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "compress.sh: $1 needs a value" >&2; exit 2; }
    shift 2
done
need_program ddp_train
cluster_can
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

options_of() {
    case $1 in
        fp32 | bf16 | fp16) echo "--grad-dtype $1" ;;
        powersgd-*) echo "--compress powersgd --powersgd-rank ${1#*-}" ;;
        topk-*) echo "--compress topk --topk ${1#*-}" ;;
        *) echo "compress.sh: unknown way $1" >&2; exit 2 ;;
    esac
}

# run NAME WAY ARGUMENT...: leaves $work/NAME/metrics.jsonl, and in $sent what host 0 sent.
run() {
    local name=$1 way=$2 before after
    shift 2
    read -r before _ < <(cluster_bytes 0)
    cluster_run 0 timeout 300 mpirun --hostfile "$work/hosts" -np 2 "$build_dir/ddp_train" --quiet --threads 1 \
        --run-dir "$work/$name" $(options_of "$way") "$@" >"$work/out" 2>&1 ||
        { echo "compress.sh: $way has failed:"; cat "$work/out"; exit 1; } >&2
    read -r after _ < <(cluster_bytes 0)
    sent=$((after - before))
}

# step_median NAME KEY: of the times of all steps but the first five.
step_median() {
    sed -n 's/^{"kind":"step".*"ms":{\([^}]*\)}.*/\1/p' "$work/$1/metrics.jsonl" | tail -n +6 |
        sed -n "s/.*\"$2\":\([^,]*\).*/\1/p" | median
}

# row NAME WAY MODEL: a line of the table, and one of JSON.
row() {
    local file=$work/$1/metrics.jsonl made payload wire step wait_ms accuracy
    made=$(grep -c '"kind":"step"' "$file")
    payload=$(summary_field "$file" comm_bytes_per_step)
    wire=$((sent / made))
    step=$(step_median "$1" step)
    wait_ms=$(step_median "$1" comm_exposed)
    accuracy=$(summary_field "$file" test_accuracy)
    awk -v way="$2" -v p="$payload" -v w="$wire" -v s="$step" -v e="$wait_ms" -v a="$accuracy" -v m="$3" 'BEGIN {
        printf "| %s | %s | %.3f | %.3f | %.1f | %.1f | %s |\n", m, way, p / 1048576, w / 1048576, s, e,
            m == "mlp" ? sprintf("%.4f", a) : "" }'
    printf '{"model":"%s","way":"%s","payload_bytes":%s,"wire_bytes":%s,"step_ms":%s,"exposed_ms":%s,"accuracy":%s}\n' \
        "$3" "$2" "$payload" "$wire" "$step" "$wait_ms" "$accuracy" >>"$work/rows"
}

cluster_up 2
cluster_hostfile "$work/hosts" 1
cluster_shape "$rate"
echo "$(machine_line); 2 hosts of 1 rank, 1 thread each, links: $rate"
echo
echo "| model | way | payload MiB | wire MiB | step ms | wait ms | accuracy after $epochs epochs |"
echo "|---|---|---|---|---|---|---|"
for way in $ways; do
    run "a-$way" "$way" --model mlp --mlp-widths "$widths" --batch-size 256 --lr 0.1 --epochs "$epochs" --eval-every 0
    row "a-$way" "$way" mlp
done
for way in $ways; do
    run "b-$way" "$way" --model "$model_b" --dataset synthetic --input-shape 3x32x32 --synthetic-train 4096 \
        --synthetic-test 16 --batch-size 32 --max-steps "$steps" --eval-every 0 --conv-algo gemm
    row "b-$way" "$way" "$model_b"
done
[ -z "$out" ] || { mkdir -p "$out"; { echo "{\"rate\":\"$rate\",\"rows\":["; paste -sd, "$work/rows"; echo "]}"; } >"$out/compress.json"; }
