#!/usr/bin/env bash
# bench_stopped.sh - ddp_bench on its way to many runs, and a signal: its ranks end, and nothing is left of them.
. "$(dirname "$0")/bench_lib.sh"

# words_of PID: its command line, a word a line.
words_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" || true; }

# stop SIGNAL STATUS COMMAND...: when its run has recorded a step, ddp_bench gets the signal.
stop() {
    local signal=$1 status=$2 child='' dir='' code=0
    shift 2
    # A shell's background processes ignore INT; Python's do not.
    python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
        "$bench" "$@" --train '--model mlp --mlp-widths 16 --batch-per-rank 16 --synthetic-train 4096' \
        >"$work/said" 2>"$work/err" &
    local pid=$!
    for _ in $(seq 1200); do
        child=$(pgrep -P "$pid" | head -n 1) || true
        [ -z "$child" ] || dir=$(words_of "$child" | grep -A1 -x -e '--run-dir' | tail -n 1) || true
        [ -n "$dir" ] && [ -s "$dir/metrics.jsonl" ] && break
        sleep 0.1
    done
    [ -s "$dir/metrics.jsonl" ] && pass || fail "$*: no run has begun: $(cat "$work/err")"
    kill "-$signal" "$pid"
    wait "$pid" || code=$?
    equal "exit status of $1 after $signal" "$code" "$status"
    [ -n "$dir" ] && [ ! -e "$dir" ] && [ ! -e "$dir.log" ] && pass || fail "$*: $dir is left"
    case $dir in "$work"/*) ;; *) [ ! -e "$(dirname "$dir")" ] && pass || fail "$*: $(dirname "$dir") is left" ;; esac
    # Ranks may outlive their launcher by a moment.
    for _ in $(seq 100); do
        pgrep -f -- "--run-dir $dir( |\$)" >/dev/null || break
        sleep 0.1
    done
    equal "processes that are left of $1" "$(pgrep -f -- "--run-dir $dir( |\$)" | wc -l)" 0
    equal "what $1 says" "$(cat "$work/err" "$work/said" | grep -v '^round ')" 'ddp_bench: stopped by a signal'
}
stop TERM 143 overlap --steps 10 --warmup 100000
stop INT 130 overlap --steps 10 --warmup 100000 --work-dir "$work/logs of runs"
stop HUP 129 scaling --ranks 1 --steps 100000 --base alone
finish
