#!/usr/bin/env bash
# network.sh - training over two hosts with a link of 1 and 10 Gbit/s: what of the communication is hidden, and what
# crosses the link.
#
#   benchmarks/network.sh [--peer SCRIPT] [--python PROGRAM] [--rates "1gbit 10gbit"] [--batch N] [--steps N] [--rounds N]
#                         [--compress] [--quick] [--out DIR]
#
# Hosts are network namespaces of this machine (tests/cluster/lib.sh; root), with one rank, of one thread, each.
# resnet18-small, synthetic data, global batch 128. Medians over the rounds of each run's median step. With --compress
# also rows of what sends less. SCRIPT is a PyTorch script with the interface of torch_ddp.py, whose ranks run
# in the same hosts over gloo; its step is batch / rate_median. Runs take turns, round by round.
#
# exposed: what the rank waits for communication that waits for no other rank; with waiting: the slowest rank's, who
# also waits for ranks that come later. hidden: (comm - exposed) / min(comm, backward), what of the communication that
# fits behind backward is. The limit is exposed <= max(0, comm - backward) + 10 % of comm.
# bytes: what the busier host sends for a step with 4 and 8 ranks on the two hosts, over the least possible,
# 2(h-1)/h of the gradient's bytes; from two runs of different length; packets are cut as on a wire, so that
# all headers count. Limit 1.08.
# --quick: short runs, to see that it works; bytes are rough then, since sums tried at the start differ between runs. DIR gets network.txt (the tables) and network.json.
. "$(dirname "$0")/lib.sh"
. "$root_dir/tests/cluster/lib.sh"

peer='' python=python3 rates='1gbit 10gbit' batch=128 steps=12 rounds=2 out='' byte_steps='2 22' small=''
variants=('25 MiB|--bucket-cap-mb 25' 'auto|--bucket-cap-mb auto')
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2 ;;
        --python) python=$2 ;;
        --rates) rates=$2 ;;
        --batch) batch=$2 ;;
        --steps) steps=$2 ;;
        --rounds) rounds=$2 ;;
        --out) out=$2 ;;
        --compress) variants+=('bf16|--grad-dtype bf16' 'powersgd|--compress powersgd' 'topk|--compress topk') ;;
        --quick) small=1 batch=16 steps=6 rounds=1 ;;
        *) echo "network.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
    case $1 in --compress | --quick) shift ;; *) shift 2 ;; esac
done
cluster_can || exit 1
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warmup=3 # steps of a run that do not count

# run RANKS STEPS BATCH OPTION...: trains over the hosts into $work/run.
run() {
    local ranks=$1 count=$2 global=$3
    shift 3
    rm -rf "$work/run"
    cluster_run 0 timeout 300 mpirun --hostfile "$work/hosts" --map-by "ppr:$((ranks / 2)):node" -np "$ranks" \
        "$build_dir/ddp_train" --model resnet18-small --dataset synthetic --input-shape 1x28x28 --classes 10 \
        --synthetic-train 4096 --synthetic-test 16 --eval-every 0 --checkpoint-every 0 --batch-size "$global" \
        --threads 1 --max-steps "$count" --quiet --run-dir "$work/run" "$@" >"$work/out" 2>&1 ||
        { echo "network.sh: $ranks ranks ended with an error: $(cat "$work/out")" >&2; exit 1; }
}

# step_median KEY [GROUP]: of the steps' times, in ms; GROUP ms_least: of the rank with the least.
step_median() {
    grep '"kind":"step"' "$work/run/metrics.jsonl" | tail -n +$((warmup + 1)) |
        sed -n "s/.*\"${2:-ms}\":{[^}]*\"$1\":\([0-9.e+-]*\).*/\1/p" | median
}

# theirs: the peer's step in ms.
theirs() {
    local rank jobs=()
    for rank in 0 1; do
        cluster_run $rank env RANK=$rank LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=29512 \
            MASTER_ADDR="$(cluster_address 0)" GLOO_SOCKET_IFNAME=eth0 PEER_T0="$(date +%s.%N)" OMP_NUM_THREADS=1 \
            GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000 \
            timeout 300 "$python" "$peer" --task resnet18 --nproc 2 --sync ddp --threads 1 --batch "$batch" \
            --steps "$steps" >"$work/peer-$rank" 2>"$work/peer-$rank.err" &
        jobs+=($!)
    done
    wait "${jobs[@]}" || { cat "$work"/peer-*.err >&2; exit 1; }
    awk -v rate="$(json_field rate_median <"$work/peer-0")" -v batch="$batch" 'BEGIN { print batch / rate * 1000 }'
}

# of RATE NAME KEY: the median over the rounds.
of() { median <"$work/$1-$2-$3"; }

times() {
    local round rate variant name key
    for round in $(seq "$rounds"); do
        for rate in $rates; do
            cluster_shape "$rate"
            for variant in "${variants[@]}"; do
                name=${variant%%|*}
                echo "round $round, $rate, $name" >&2
                # shellcheck disable=SC2086 # options
                run 2 $((steps + warmup)) "$batch" ${variant#*|}
                for key in step backward comm comm_exposed; do step_median $key >>"$work/$rate-$name-$key"; done
                step_median comm_exposed ms_least >>"$work/$rate-$name-exposed"
            done
            [ -z "$peer" ] || { echo "round $round, $rate, peer" >&2; theirs >>"$work/$rate-peer-step"; }
        done
    done
    cluster_shape none
}

# count RANKS STEPS: puts the bytes that the busier host has sent during a run into sent. (Not by printing them:
# cluster_run takes a subshell's place.)
count() {
    local i before=() now=()
    for i in 0 1; do read -r "before[i]" _ <<<"$(cluster_bytes $i)"; done
    run "$1" "$2" 16
    for i in 0 1; do read -r "now[i]" _ <<<"$(cluster_bytes $i)"; done
    sent=$((now[0] - before[0] > now[1] - before[1] ? now[0] - before[0] : now[1] - before[1]))
}

# byte_ratio RANKS: sent for a step, over the least possible, into a file.
byte_ratio() {
    local few many base parameters
    read -r few many <<<"$byte_steps"
    count "$1" "$few"
    base=$sent
    count "$1" "$many"
    parameters=$(grep -o '"parameters": *[0-9]*' "$work/run/metrics.jsonl" | head -n 1 | grep -o '[0-9]*$')
    awk -v sent=$((sent - base)) -v steps=$((many - few)) -v least=$((4 * parameters)) \
        'BEGIN { printf "%.3f\n", sent / steps / least }' >"$work/bytes-$1"
}

bytes() {
    local i
    for i in 0 1; do ip -n "$(cluster_net $i)" link set eth0 gso_max_segs 1; done
    for i in 4 8; do
        echo "bytes, $i ranks" >&2
        byte_ratio $i
    done
}

# verdict STEP BACKWARD COMM EXPOSED: the hidden share, and whether the limit is kept.
verdict() {
    awk -v backward="$2" -v comm="$3" -v exposed="$4" 'BEGIN {
        fits = comm < backward ? comm : backward
        most = (comm > backward ? comm - backward : 0) + 0.1 * comm
        printf "%.0f %s\n", 100 * (comm - exposed) / fits, exposed <= most ? "yes" : "no" }'
}

tables() {
    local rate variant name step hidden kept theirs ratio
    echo "$(machine_line); resnet18-small, global batch $batch, 2 hosts, 1 rank of 1 thread each, median of $rounds rounds"
    echo
    echo "| link | buckets | step ms | backward | comm | exposed | with waiting | hidden % of what fits | within the limit | PyTorch DDP step | ratio |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    for rate in $rates; do
        for variant in "${variants[@]}"; do
            name=${variant%%|*}
            step=$(of "$rate" "$name" step)
            read -r hidden kept <<<"$(verdict "$step" "$(of "$rate" "$name" backward)" "$(of "$rate" "$name" comm)" \
                "$(of "$rate" "$name" exposed)")"
            theirs=- ratio=-
            if [ -n "$peer" ]; then
                theirs=$(of "$rate" peer step)
                ratio=$(awk "BEGIN { printf \"%.2f\", $step / $theirs }")
            fi
            printf '| %s | %s | %.0f | %.0f | %.0f | %.1f | %.1f | %s | %s | %s | %s |\n' "$rate" "$name" "$step" \
                "$(of "$rate" "$name" backward)" "$(of "$rate" "$name" comm)" "$(of "$rate" "$name" exposed)" \
                "$(of "$rate" "$name" comm_exposed)" "$hidden" "$kept" "${theirs%.*}" "$ratio"
        done
    done
    echo
    echo "| ranks on 2 hosts | bytes of the busier host over the least possible (limit 1.08) |"
    echo "|---|---|"
    for i in 4 8; do echo "| $i | $(cat "$work/bytes-$i") |"; done
}

json() {
    local rate variant name first=1 theirs
    printf '{"batch":%s,"rounds":%s,"steps":%s,"machine":"%s","rows":[' "$batch" "$rounds" "$steps" "$(machine_line)"
    for rate in $rates; do
        theirs=null
        [ -z "$peer" ] || theirs=$(of "$rate" peer step)
        for variant in "${variants[@]}"; do
            name=${variant%%|*}
            [ -n "$first" ] || printf ','
            first=''
            printf '{"link":"%s","buckets":"%s","step_ms":%s,"backward_ms":%s,"comm_ms":%s,"exposed_ms":%s,"comm_exposed_ms":%s,"peer_step_ms":%s}' \
                "$rate" "$name" "$(of "$rate" "$name" step)" "$(of "$rate" "$name" backward)" \
                "$(of "$rate" "$name" comm)" "$(of "$rate" "$name" exposed)" \
                "$(of "$rate" "$name" comm_exposed)" "$theirs"
        done
    done
    printf '],"bytes_over_least":{"4":%s,"8":%s}}\n' "$(cat "$work/bytes-4")" "$(cat "$work/bytes-8")"
}

cluster_up 2
cluster_hostfile "$work/hosts" 4
[ -z "$small" ] || byte_steps='1 3'
times
bytes
if [ -n "$out" ]; then
    mkdir -p "$out"
    tables | tee "$out/network.txt"
    json >"$out/network.json"
else
    tables
fi
