#!/usr/bin/env bash
# startup.sh - seconds from launch to the first finished step, and private memory per rank, for lenet.
#
#   benchmarks/startup.sh [--peer SCRIPT] [--python PROGRAM] [--rounds N]
#
# Ours: wall time of `mpirun -np N ddp_train --max-steps 1` up to the moment when the first step's record is in
# metrics.jsonl, and RssAnon of the ranks in the middle of a longer run. The peer reports its own time to the
# first step ("startup": {"first_step": ...} of torch_ddp.py) and its peak resident memory.
. "$(dirname "$0")/lib.sh"

peer= python=python3 rounds=3
while [ $# -gt 0 ]; do
    case $1 in
        --peer) peer=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        *) echo "startup.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
need_program ddp_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

first_step() { # RANKS
    rm -rf "$work/run"
    local start now
    start=$(date +%s.%N)
    mpirun -np "$1" "$build_dir/ddp_train" --threads 1 --quiet --max-steps 1 --eval-every 0 \
        --run-dir "$work/run" >"$work/out" 2>&1 &
    until grep -qs '"kind": *"step"' "$work/run/metrics.jsonl"; do
        kill -0 $! 2>/dev/null || { wait $! || { cat "$work/out" >&2; exit 1; }; }
        sleep 0.005
    done
    now=$(date +%s.%N)
    wait $!
    awk "BEGIN { print $now - $start }"
}

rss_anon() { # RANKS: largest RssAnon in MiB
    rm -rf "$work/run"
    mpirun -np "$1" "$build_dir/ddp_train" --threads 1 --quiet --epochs 2 --run-dir "$work/run" \
        >"$work/out" 2>&1 &
    until [ "$(grep -cs '"kind": *"step"' "$work/run/metrics.jsonl")" -ge 50 ] 2>/dev/null; do
        sleep 0.05
    done
    for pid in $(pgrep -x ddp_train); do
        sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status"
    done | sort -n | tail -n 1 | awk '{ printf "%.0f", $1 / 1024 }'
    wait $!
}

echo "$(machine_line); median of $rounds rounds"
echo
echo "| ranks | ddp_train: first step, s | RssAnon a rank, MiB | PyTorch DDP: first step, s | peak RSS, MB |"
echo "|---|---|---|---|---|"
for ranks in 1 2 8; do
    rm -f "$work"/ours "$work"/theirs "$work"/rss
    for round in $(seq "$rounds"); do
        first_step $ranks >>"$work/ours"
        [ -n "$peer" ] || continue
        "$python" "$peer" --task lenet --nproc $ranks --threads 1 --steps 1 --warmup 1 \
            2>/dev/null >"$work/json"
        json_field first_step <"$work/json" >>"$work/theirs"
        json_field maxrss_mb <"$work/json" >>"$work/rss"
    done
    printf '| %s | %.2f | %s |' $ranks "$(median <"$work/ours")" "$(rss_anon $ranks)"
    if [ -n "$peer" ]; then
        printf ' %.2f | %.0f |\n' "$(median <"$work/theirs")" "$(median <"$work/rss")"
    else
        printf ' - | - |\n'
    fi
done
