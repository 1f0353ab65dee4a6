#!/usr/bin/env bash
# banned.sh ROOT - calls that go around the fatal path, the options or the allocation count, and foreign
# headers outside their folder.
. "$(dirname "$0")/lib.sh"

code=$(mktemp)
trap 'rm -f "$code"' EXIT
without_comments $(sources src) >"$code"

# ban PATTERN ALLOWED WHY: no call of it in src outside the files that match ALLOWED.
ban() {
    local hit
    while IFS= read -r hit; do
        [[ ${hit%%:*} =~ $2 ]] || complain "$hit: $3"
    done < <(grep -E "^[^:]*:[0-9]*:(.*[^_a-zA-Z0-9>.])?($1)[[:space:]]*\(" "$code")
}
ban 'getenv|secure_getenv' '^src/(base/|comm/mpi/mpi_launch\.c$)' \
    'options come from config; only the launcher is asked elsewhere'
ban 'exit|abort|_exit|_Exit|quick_exit' '^src/base/status\.c$' 'only the fatal path ends the process'
ban 'assert' '^$' 'DDP_ASSERT stays in release builds, assert does not'
ban 'malloc|calloc|realloc|free|strdup|aligned_alloc|posix_memalign' '^src/base/' \
    'allocation goes through ddp/memory.h'

# own HEADER ALLOWED: a foreign header outside its folder.
own() {
    local hit
    while IFS= read -r hit; do
        [[ ${hit%%:*} =~ $2 ]] || complain "$hit: includes $1 outside its folder"
    done < <(sources src include benchmarks tests | xargs grep -nHE "^[[:space:]]*#[[:space:]]*include[[:space:]]*<$1")
}
own 'mpi\.h' '^(src/comm/mpi/|benchmarks/|tests/mpi/)'
own '(oneapi/dnnl/)?dnnl' '^src/device/cpu/'
own 'nccl\.h' '^(src/comm/nccl/|tests/)'
verdict
