#!/usr/bin/env bash
# gpu.sh - images/s of lenet, resnet18-small and resnet50 on GPUs in fp32, tf32 and bf16, with and without CUDA
# graph, beside PyTorch; device memory, share of the card's peak, and gaps between kernels.
#
#   benchmarks/gpu.sh [--peer SCRIPT] [--python PROGRAM] [--ranks N] [--steps N] [--only "CONFIG..."]
#                     [--precisions "NAME..."] [--simulator] [--output FILE]
#
# A CONFIG is MODEL:BATCH, the batch being that of all ranks. The build is $DDP_BUILD. SCRIPT is a PyTorch script with
# the interface of torch_ddp.py (--task lenet|resnet18|resnet50, --nproc, --device cuda, --batch, --steps, --warmup,
# --no-split, --channels-last, --allow-tf32, --bf16, --compile; one JSON object with rate_median on standard output).
# It runs plain, with channels last, and compiled with channels last; the ratio is to the fastest of them.
#
# Data are synthetic. The rate is that of the median step. Device memory is what nvidia-smi says beyond what was taken
# before the run. "on GPU" is the part of a step that forward and backward take, by events on the GPU's stream. Gaps are from
# nsys, where it is there: the longest and the 99th percentile between two kernels in the middle of the run. --simulator measures
# nothing: it shows that all of this works, in small sizes, on tests/simcuda.
. "$(dirname "$0")/lib.sh"

peer= python=python3 ranks=1 steps= simulator= output= configs= precisions="fp32 tf32 bf16"
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --ranks) ranks=$2; shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        --only) configs=$2; shift 2 ;;
        --precisions) precisions=$2; shift 2 ;;
        --simulator) simulator=1; shift ;;
        --output) output=$2; shift 2 ;;
        *) echo "gpu.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
program=$build_dir/ddp_train
[ -x "$program" ] || { echo "gpu.sh: no $program; DDP_BUILD names another build" >&2; exit 2; }
if [ -n "$simulator" ]; then
    export LD_LIBRARY_PATH=$build_dir/simcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    configs=${configs:-lenet:16 resnet18-small:4}
    steps=${steps:-3}
fi
configs=${configs:-lenet:256 resnet18-small:256 resnet50:256}
steps=${steps:-60}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

graphs=default
help=$("$program" --help)
if [[ $help == *--cuda-graph* ]]; then graphs="off on"; fi

data_of() { # MODEL
    case $1 in
        resnet50) echo "--input-shape 3x224x224 --classes 1000 --synthetic-train $((4 * $2)) --synthetic-test 8" ;;
        *) echo "--input-shape 1x28x28 --classes 10 --synthetic-train $((16 * $2)) --synthetic-test 16" ;;
    esac
}

precision_of() { # NAME
    case $1 in
        fp32) echo "--precision fp32" ;;
        tf32) echo "--precision fp32 --tf32" ;;
        *) echo "--precision $1" ;;
    esac
}

launcher=()
[ "$ranks" -eq 1 ] || launcher=(mpirun -np "$ranks")

# ---- memory, as nvidia-smi sees it ----

memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | sort -g | tail -n 1; }

# with_memory FILE COMMAND...: its greatest use of a GPU's memory, MiB, appended to FILE.
with_memory() {
    local file=$1 before watcher code=0
    shift
    if [ -n "$simulator" ] || ! before=$(memory_used) || [ -z "$before" ]; then
        "$@"
        return
    fi
    (while sleep 0.1; do memory_used; done) >"$work/memory" &
    watcher=$!
    "$@" || code=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    sort -g "$work/memory" | tail -n 1 | awk -v before="$before" '{ print $1 - before }' >>"$file"
    return $code
}

# ---- gaps, as nsys sees them ----

# Lines "longest p99" in us, from a trace of kernels; only the middle of the run, where steps follow each other.
gaps_of() { # CSV
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) { if ($i ~ /^"?Start/) s = i; if ($i ~ /^"?Duration/) d = i } next }
        { print $s, $d }' "$1" | sort -g | awk '
        { start[NR] = $1; end[NR] = $1 + $2 }
        END { low = start[1] + 0.5 * (start[NR] - start[1]); high = start[1] + 0.9 * (start[NR] - start[1])
              for (i = 2; i <= NR; i++) {
                  if (end[i - 1] > last) last = end[i - 1]
                  if (start[i] > low && start[i] < high) print (start[i] > last ? start[i] - last : 0) / 1000 } }' |
        sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.1f %.1f\n", v[NR], v[int((NR - 1) * 0.99) + 1] }'
}

measure_gaps() { # KEY COMMAND...
    local key=$1
    shift
    [ -z "$simulator" ] && command -v nsys >/dev/null || return 0
    nsys profile -t cuda -o "$work/trace" -f true "$@" >"$work/nsys.out" 2>&1 &&
        nsys stats -r cuda_gpu_trace -f csv -o "$work/trace" "$work/trace.nsys-rep" >>"$work/nsys.out" 2>&1 ||
        { echo "gpu.sh: nsys made no trace of $key: $(tail -n 1 "$work/nsys.out")" >&2; return 0; }
    gaps_of "$work/trace_cuda_gpu_trace.csv" >"$work/$key.gaps"
}

# ---- runs ----

phase() { # FILE KEY: median of a phase's milliseconds over the steps but the first
    grep '"kind": \?"step"' "$1" | sed 1d | sed "s/.*\"$2\": \?\([0-9.e+-]*\).*/\1/" | median
}

ours() { # KEY MODEL BATCH PRECISION GRAPH
    local key=$1 metrics=$work/run/metrics.jsonl options=()
    # shellcheck disable=SC2207
    options=($(data_of "$2" "$3") $(precision_of "$4"))
    [ "$5" = default ] || options+=(--cuda-graph "$5")
    options+=(--model "$2" --dataset synthetic --device cuda --batch-size "$3" --lr 0.01 --epochs 1000000
        --eval-every 0 --quiet)
    rm -rf "$work/run"
    with_memory "$work/$key.memory" ${launcher[@]+"${launcher[@]}"} "$program" "${options[@]}" --max-steps "$steps" --run-dir "$work/run" \
        >"$work/out" 2>&1 || { echo "gpu.sh: $key failed: $(tail -n 3 "$work/out")" >&2; failed=1; return 0; }
    summary_field "$metrics" images_per_s >"$work/$key.rate"
    phase "$metrics" step >"$work/$key.step"
    awk "BEGIN { print ($(phase "$metrics" forward) + $(phase "$metrics" backward)) / $(cat "$work/$key.step") }" \
        >"$work/$key.busy"
    grep '"kind": \?"step"' "$metrics" | json_field peak_share >"$work/$key.share"
    device=$(sed -n 's/.*"device": "\(.*\)",*/\1/p' "$work/run/environment.json")
    library=$(sed -n 's/.*"gradients": "\(.*\)",*/\1/p' "$work/run/environment.json")
    rm -rf "$work/run"
    measure_gaps "$key" ${launcher[@]+"${launcher[@]}"} "$program" "${options[@]}" --max-steps 20 --run-dir "$work/run"
}

theirs() { # KEY MODEL BATCH PRECISION OPTION...
    local key=$1 task=${2%-small} batch=$3 flags=()
    case $4 in tf32) flags=(--allow-tf32) ;; bf16) flags=(--bf16 --allow-tf32) ;; esac
    shift 4
    with_memory "$work/$key.memory" "$python" "$peer" --task "$task" --nproc "$ranks" --device cuda --batch "$batch" \
        --warmup 10 --steps "$steps" --no-split "${flags[@]}" "$@" >"$work/peer.json" 2>"$work/err" ||
        { echo "gpu.sh: PyTorch's $key failed: $(tail -n 2 "$work/err")" >&2; return 0; }
    json_field rate_median <"$work/peer.json" >"$work/$key.rate"
}

cell() { # FILE FORMAT
    # shellcheck disable=SC2059
    if [ -s "$work/$1" ]; then printf "$2" "$(tail -n 1 "$work/$1")"; else printf -- -; fi
}

# The fastest of the peer's ways: copied to KEY-best.
choose_best() { # KEY
    local way best=0 rate
    for way in plain last compiled; do
        [ -s "$work/$1-$way.rate" ] || continue
        rate=$(cat "$work/$1-$way.rate")
        if awk "BEGIN { exit !($rate > $best) }"; then
            best=$rate
            echo "$rate" >"$work/$1-best.rate"
            echo "$way" >"$work/$1-best.way"
            [ ! -s "$work/$1-$way.memory" ] || cp "$work/$1-$way.memory" "$work/$1-best.memory"
        fi
    done
}

row() { # MODEL BATCH PRECISION GRAPH
    local key=$1-$2-$3-$4 other=$1-$2-$3 ratio=- gaps=- memory=-
    if [ -s "$work/$key.rate" ] && [ -s "$work/$other-best.rate" ]; then
        ratio=$(awk "BEGIN { printf \"%.2f\", $(cat "$work/$key.rate") / $(cat "$work/$other-best.rate") }")
    fi
    if [ -s "$work/$key.memory" ] && [ -s "$work/$other-best.memory" ]; then
        memory=$(paste "$work/$key.memory" "$work/$other-best.memory" |
            awk '{ if ($2 > 0) printf "%.2f", $1 / $2; else printf "-" }')
    fi
    [ ! -s "$work/$key.gaps" ] || gaps=$(sed 's| | / |' "$work/$key.gaps")
    echo "| $1 | $2 | $3 | $4 | $(cell "$key.rate" %.0f) | $(cell "$key.step" %.3f) | $(cell "$key.busy" %.2f) |" \
        "$(cell "$key.share" %.2f) | $(cell "$key.memory" %.0f) | $gaps | $(cell "$other-plain.rate" %.0f) |" \
        "$(cell "$other-best.rate" %.0f) | $(cell "$other-best.way" %s) | $ratio |" \
        "$(cell "$other-best.memory" %.0f) | $memory |"
}

headline() {
    echo "$(machine_line); $ranks rank(s), median of $steps steps"
    echo
    echo "- device: ${device:--}; gradients over ${library:--}"
    if [ -n "$simulator" ]; then
        echo "- simulated: these are figures of the simulator on the processor, not of a GPU"
    else
        echo "- card, driver, memory: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
            head -n 1)"
    fi
    echo "- revision: $(git -C "$root_dir" describe --always --dirty 2>/dev/null || echo unknown)"
    [ -z "$peer" ] || "$python" -c 'import torch; print("- PyTorch", torch.__version__, "CUDA", torch.version.cuda)'
    echo
}

[ -z "$output" ] || exec >"$output"
failed= device= library=
for config in $configs; do
    IFS=: read -r model batch <<<"$config"
    for precision in $precisions; do
        for graph in $graphs; do ours "$model-$batch-$precision-$graph" "$model" "$batch" "$precision" "$graph"; done
        [ -n "$peer" ] || continue
        key=$model-$batch-$precision
        theirs "$key-plain" "$model" "$batch" "$precision"
        theirs "$key-last" "$model" "$batch" "$precision" --channels-last
        theirs "$key-compiled" "$model" "$batch" "$precision" --channels-last --compile
        choose_best "$key"
    done
done
headline
echo "| model | batch | precision | graph | images/s | ms a step | on GPU | of peak | MiB | gaps, us: longest / p99 |" \
    "PyTorch plain | fastest | way | ratio | MiB | ratio |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
for config in $configs; do
    IFS=: read -r model batch <<<"$config"
    for precision in $precisions; do
        for graph in $graphs; do row "$model" "$batch" "$precision" "$graph"; done
    done
done
[ -z "$failed" ]
