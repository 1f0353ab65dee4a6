#!/bin/sh
# Builds every fuzzer of this folder (fuzz_NAME.c) and runs it for SECONDS (default 15) from its
# kept inputs in tests/data/fuzz_NAME/. Prints the input of a crash; writes nothing into the tree.
# Exit status: 0 clean, 1 a finding or a failed build, 2 usage, 77 skipped (no clang or libFuzzer).
# Usage: run.sh [SECONDS]
set -u
seconds=${1:-15}
case $seconds in
'' | *[!0-9]* | 0*)
    echo "usage: run.sh [SECONDS], at least 1" >&2
    exit 2
    ;;
esac
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

if ! command -v clang >/dev/null 2>&1; then
    echo "skipped: no clang"
    exit 77
fi
cat >"$work/probe.c" <<'PROBE'
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long bytes);
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long bytes)
{
    return data == 0 && bytes > 0;
}
PROBE
if ! clang -fsanitize=fuzzer,address,undefined "$work/probe.c" -o "$work/probe" 2>/dev/null; then
    echo "skipped: clang has no libFuzzer or no sanitizer runtime"
    exit 77
fi

# The sources under test, beside those of base and obs. Event files are only written.
sources_of() {
    case $1 in
    fuzz_idx) echo "$root/src/data/idx_reader.c" ;;
    fuzz_bench)
        echo "$root/src/sync/cost.c $root/src/sync/cost_cut.c"
        for part in predict_step predict_sum overlap_read overlap_measure runs_read bench_stats; do
            echo "$root/src/tools/bench/$part.c"
        done
        ;;
    fuzz_shards) echo "$root/src/data/shard.c $root/src/data/shard_manifest.c" ;;
    fuzz_safetensors) echo "$root/src/ckpt/safetensors.c" "$root/src/ckpt/match.c" "$root/src/ckpt/convert.c" ;;
    *) find "$root/src" -name "${1#fuzz_}*.c" ;;
    esac
}

build() {
    clang -std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=all -I"$root/include" -I"$root/src" "$root/tests/fuzz/$1.c" \
        $(sources_of "$1") "$root"/src/base/*.c $(ls "$root"/src/obs/*.c | grep -v '/events\.c$') \
        -lz -ljansson -linih -lxxhash -lpthread -lm -o "$work/$1" >"$work/$1.log" 2>&1
}

run() {
    mkdir -p "$work/$1.new" "$work/$1.found"
    (cd "$work" && "./$1" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/$1.found/" \
        "$work/$1.new" "$root/tests/data/$1" >"$work/$1.log" 2>&1)
}

report() {
    echo "$1: $2"
    tail -n 60 "$work/$1.log"
    for input in "$work/$1.found"/*; do
        [ -f "$input" ] || continue
        echo "$(basename "$input"), in hex:"
        od -An -tx1 -v "$input" | head -n 256
    done
}

failed=0
for source in "$root"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    if ! build "$name"; then
        report "$name" "does not build"
        failed=1
    elif ! run "$name"; then
        report "$name" "FAILED"
        failed=1
    else
        inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log")
        echo "$name: clean, $inputs inputs"
    fi
done
exit $failed
