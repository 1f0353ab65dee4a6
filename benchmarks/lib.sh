# lib.sh - what the benchmark scripts share. Sourced, not run.
set -euo pipefail

# --help: the head of the script that reads this.
for word in "$@"; do
    case $word in --help | -h)
        sed -n '2,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
done

export LC_ALL=C
bench_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root_dir=$(dirname "$bench_dir")
build_dir=${DDP_BUILD:-$root_dir/build}

# mpirun as root, with more ranks than cores, unbound: only where that is the case.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1

need_program() {
    if [ ! -x "$build_dir/$1" ]; then
        cmake -S "$root_dir" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release >&2
        cmake --build "$build_dir" >&2
    fi
}

# summary_field FILE KEY: a number of the last summary record of a metrics.jsonl.
summary_field() {
    awk -v key="\"$2\":" '/"kind": ?"summary"/ {
        line = $0; gsub(/: /, ":", line); i = index(line, key)
        if (i) { rest = substr(line, i + length(key)); sub(/[,}].*/, "", rest); value = rest } }
        END { print value }' "$1"
}

# json_field KEY: a number of the JSON line on standard input.
json_field() {
    awk -v key="\"$1\":" '{ line = $0; gsub(/: /, ":", line); i = index(line, key)
        if (i) { rest = substr(line, i + length(key)); sub(/[,}].*/, "", rest); print rest } }' | tail -n 1
}

median() {
    sort -g | awk '{ v[NR] = $1 } END { if (NR == 0) print "-"; else if (NR % 2) print v[(NR + 1) / 2];
        else print (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

machine_line() {
    printf '%s, %s cores, %s, %s\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" \
        "$(nproc)" "$(uname -sr)" "$(date -u +%F)"
}
