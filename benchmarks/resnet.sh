#!/usr/bin/env bash
# resnet.sh - images/s and peak memory of resnet18-small and resnet50 at 1 and 2 ranks, one thread each, in fp32 and
# bf16, beside PyTorch DDP, with the share of the machine's matrix-product peak.
#
#   benchmarks/resnet.sh [--peer SCRIPT] [--python PROGRAM] [--peer-bf16] [--rounds N] [--only "CONFIG..."]
#
# SCRIPT is a PyTorch data-parallel script with the interface of torch_ddp.py (--task resnet18|resnet50, --nproc,
# --threads, --batch, --steps, --warmup, --channels-last, --bf16; one JSON object with rate_median and maxrss_mb on
# standard output). The peer runs with its plain layout and with channels last; the ratio is to the better of the two.
# --peer-bf16: the peer's bf16 autocast too (PyTorch 2.x). A CONFIG is MODEL:BATCH:RANKS. Ours and the peer's runs take
# turns, round by round; the tables show medians over rounds, and medians of the ratios within a round. All data are
# synthetic, in the shapes of Fashion-MNIST and of 224x224 images in 1000 classes.
. "$(dirname "$0")/lib.sh"

peer= python=python3 rounds=1 peer_bf16=
configs="resnet18-small:256:1 resnet18-small:256:2 resnet18-small:64:1 resnet18-small:64:2 resnet50:16:1 resnet50:16:2"
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --peer-bf16) peer_bf16=1; shift ;;
        --rounds) rounds=$2; shift 2 ;;
        --only) configs=$2; shift 2 ;;
        *) echo "resnet.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

data_of() { # MODEL
    case $1 in
        resnet18-small) echo "--input-shape 1x28x28 --classes 10 --synthetic-train 2048 --synthetic-test 16" ;;
        *) echo "--input-shape 3x224x224 --classes 1000 --synthetic-train 64 --synthetic-test 4" ;;
    esac
}

steps_of() { # BATCH: enough for a median, short enough for a table
    if [ "$1" -ge 256 ]; then echo 5; elif [ "$1" -ge 64 ]; then echo 10; else echo 6; fi
}

# Appends rate, peak share and memory (MiB) of one run of ours to files named by KEY.
ours() { # KEY MODEL BATCH RANKS OPTION...
    local key=$1 model=$2 batch=$3 ranks=$4
    shift 4
    rm -rf "$work/run"
    # shellcheck disable=SC2046
    mpirun -np "$ranks" "$build_dir/ddp_train" --model "$model" --dataset synthetic $(data_of "$model") --quiet \
        --batch-size "$batch" --threads 1 --lr 0.01 --epochs 100 --max-steps "$(steps_of "$batch")" --eval-every 0 \
        --run-dir "$work/run" "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    summary_field "$work/run/metrics.jsonl" images_per_s | tee -a "$work/$key.rate"
    grep '"kind": \?"step"' "$work/run/metrics.jsonl" | tail -n 1 | json_field peak_share >>"$work/$key.share"
    awk "BEGIN { print $(summary_field "$work/run/metrics.jsonl" peak_rss_bytes) / 1048576 }" >>"$work/$key.rss"
}

theirs() { # KEY MODEL BATCH RANKS OPTION...
    local key=$1 task=${2%-small} batch=$3 ranks=$4
    shift 4
    "$python" "$peer" --task "$task" --nproc "$ranks" --threads 1 --batch "$batch" --warmup 2 \
        --steps "$(steps_of "$batch")" "$@" >"$work/peer.json" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
    json_field rate_median <"$work/peer.json" | tee -a "$work/$key.rate"
    json_field maxrss_mb <"$work/peer.json" >>"$work/$key.rss"
}

ratio() { # KEY A B...: A over the largest B
    local key=$1 a=$2
    shift 2
    printf '%s\n' "$@" | sort -g | tail -n 1 | awk "{ print $a / \$1 }" >>"$work/$key.ratio"
}

run_config() { # MODEL BATCH RANKS
    local key=$1-$2-$3 fp32 bf16 plain last half
    fp32=$(ours "$key-fp32" "$1" "$2" "$3")
    if [ -n "$peer" ]; then
        plain=$(theirs "$key-plain" "$1" "$2" "$3")
    fi
    bf16=$(ours "$key-bf16" "$1" "$2" "$3" --precision bf16)
    if [ -n "$peer" ]; then
        last=$(theirs "$key-last" "$1" "$2" "$3" --channels-last)
        ratio "$key-fp32" "$fp32" "$plain" "$last"
        ratio "$key-bf16" "$bf16" "$plain" "$last"
    fi
    if [ -n "$peer$peer_bf16" ] && [ -n "$peer_bf16" ]; then
        half=$(theirs "$key-half" "$1" "$2" "$3" --bf16 --channels-last)
        ratio "$key-half" "$bf16" "$half"
    fi
    ours "$key-cheap" "$1" "$2" "$3" --recompute cheap >/dev/null
    ours "$key-segments" "$1" "$2" "$3" --recompute segments >/dev/null
}

for round in $(seq "$rounds"); do
    for config in $configs; do
        IFS=: read -r model batch ranks <<<"$config"
        run_config "$model" "$batch" "$ranks"
    done
done

cell() { # FILE FORMAT
    # shellcheck disable=SC2059
    if [ -s "$work/$1" ]; then printf "$2" "$(median <"$work/$1")"; else printf -- -; fi
}

echo "$(machine_line); 1 thread a rank, median of $rounds round(s)"
[ -z "$peer" ] || "$python" -c 'import torch; print("PyTorch", torch.__version__)'
echo
echo "| model | batch | ranks | fp32 images/s | of peak | PyTorch | channels last | ratio | bf16 images/s | ratio to fp32 of PyTorch | PyTorch bf16 | ratio |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
for config in $configs; do
    IFS=: read -r model batch ranks <<<"$config"
    key=$model-$batch-$ranks
    echo "| $model | $batch | $ranks | $(cell "$key-fp32.rate" %.1f) | $(cell "$key-fp32.share" %.2f) |" \
        "$(cell "$key-plain.rate" %.1f) | $(cell "$key-last.rate" %.1f) | $(cell "$key-fp32.ratio" %.2f) |" \
        "$(cell "$key-bf16.rate" %.1f) | $(cell "$key-bf16.ratio" %.2f) |" \
        "$(cell "$key-half.rate" %.1f) | $(cell "$key-half.ratio" %.2f) |"
done
echo
echo "| model | batch | ranks | peak RSS a rank, MiB: ours | --recompute cheap | --recompute segments | bf16 | PyTorch | channels last | images/s: cheap | segments |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
for config in $configs; do
    IFS=: read -r model batch ranks <<<"$config"
    key=$model-$batch-$ranks
    echo "| $model | $batch | $ranks | $(cell "$key-fp32.rss" %.0f) | $(cell "$key-cheap.rss" %.0f) |" \
        "$(cell "$key-segments.rss" %.0f) | $(cell "$key-bf16.rss" %.0f) | $(cell "$key-plain.rss" %.0f) |" \
        "$(cell "$key-last.rss" %.0f) | $(cell "$key-cheap.rate" %.1f) | $(cell "$key-segments.rate" %.1f) |"
done
