#!/bin/sh
# Builds every fuzzer of this folder (fuzz_NAME.c) and runs it for SECONDS (default 15) on its kept inputs in
# tests/data/fuzz_NAME/. Fails on a crash and prints the input that caused it. Writes nothing into the source tree.
# Exit status: 0 clean, 1 a finding or a failed build, 77 skipped (no clang with libFuzzer).
# Usage: run.sh [SECONDS]
set -u
seconds=${1:-15}
case $seconds in
'' | *[!0-9]*)
    echo "usage: run.sh [SECONDS]" >&2
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
printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);\n%s\n' \
    'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' \
    >"$work/probe.c"
if ! clang -fsanitize=fuzzer,address "$work/probe.c" -o "$work/probe" 2>/dev/null; then
    echo "skipped: clang has no libFuzzer or sanitizer runtime"
    exit 77
fi

# What each fuzzer needs beside the sources of base.
sources_of() {
    case $1 in
    fuzz_idx) echo "$root/src/data/idx_reader.c" ;;
    *) find "$root/src" -name "${1#fuzz_}*.c" ;;
    esac
}

flags="-std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all"
libraries="-lz -ljansson -linih -lxxhash -lpthread -lm"
failed=0
for source in "$root"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    if ! clang $flags -I"$root/include" -I"$root/src" "$source" $(sources_of "$name") \
        "$root"/src/base/*.c "$root"/src/obs/*.c $libraries -o "$work/$name" >"$work/$name.build" 2>&1; then
        echo "$name: does not build"
        cat "$work/$name.build"
        failed=1
        continue
    fi
    mkdir -p "$work/$name.new"
    if (cd "$work" && "./$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/$name." \
        "$work/$name.new" "$root/tests/data/$name" >"$work/$name.log" 2>&1); then
        echo "$name: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log") inputs"
    else
        echo "$name: FAILED"
        tail -n 60 "$work/$name.log"
        for input in "$work/$name".crash-* "$work/$name".leak-* "$work/$name".timeout-* \
            "$work/$name".oom-*; do
            [ -f "$input" ] && echo "input in hex:" && od -An -tx1 -v "$input" | head -n 64
        done
        failed=1
    fi
done
exit $failed
