#!/usr/bin/env bash
# banned.sh ROOT - calls that go around the fatal path, the options or the allocation count, and foreign
# headers outside their folder.
. "$(dirname "$0")/lib.sh"

# ban PATTERN ALLOWED WHY: no call of it in src outside the files that match ALLOWED.
ban() {
    local file hits
    for file in $(sources src); do
        [[ $file =~ $2 ]] && continue
        hits=$(without_comments "$file" | grep -nE "(^|[^_a-zA-Z0-9>.])($1)[[:space:]]*\(" || true)
        [ -z "$hits" ] || complain "$file: $3
$hits"
    done
}
ban 'getenv|secure_getenv' '^src/(base/|comm/mpi/mpi_launch\.c$)' \
    'options come from config; only the launcher is asked elsewhere'
ban 'exit|abort|_exit|_Exit|quick_exit' '^src/base/status\.c$' 'only the fatal path ends the process'
ban 'assert' '^$' 'DDP_ASSERT stays in release builds, assert does not'
ban 'malloc|calloc|realloc|free|strdup|aligned_alloc|posix_memalign' '^src/base/' \
    'allocation goes through ddp/memory.h'

# own HEADER ALLOWED: a foreign header outside its folder.
own() {
    local file
    for file in $(sources src include benchmarks tests); do
        [[ $file =~ $2 ]] && continue
        ! grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]*<$1" "$file" ||
            complain "$file: includes $1 outside its folder"
    done
}
own 'mpi\.h' '^(src/comm/mpi/|benchmarks/|tests/mpi/)'
own '(oneapi/dnnl/)?dnnl' '^src/device/cpu/'
own 'nccl\.h' '^(src/comm/nccl/|tests/)'
verdict
