#!/usr/bin/env bash
# selftest.sh ROOT - each lint script fails on a copy of the tree with a violation of its kind, and
# passes on the copy without it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "${1:?the root of the source tree}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

declare -A clean

# fresh_tree: a small copy of the tree in $work/tree.
fresh_tree() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree"/{tests,benchmarks,launch}
    (cd "$root" && cp -r --parents .clang-format include src "$work/tree")
}

# is_clean LINT: it passes on the copy as it is; looked at once.
is_clean() {
    local code=0
    if [ -z "${clean[$1]:-}" ]; then
        "$here/$1.sh" "$work/tree" >"$work/out" 2>&1 || code=$?
        clean[$1]=$code
        [ $code -ne 77 ] || echo "skipped: $1: $(cat "$work/out")"
        if [ $code -ne 0 ] && [ $code -ne 77 ]; then
            echo "FAILED: $1 complains about the tree as it is"
            cat "$work/out"
            status=1
        fi
    fi
    [ "${clean[$1]}" -eq 0 ]
}

# seed LINT NAME COMMAND...: runs the command in a fresh tree, then expects LINT to fail.
seed() {
    local lint=$1 name=$2
    shift 2
    fresh_tree
    is_clean "$lint" || return 0
    (cd "$work/tree" && "$@")
    if "$here/$lint.sh" "$work/tree" >"$work/out" 2>&1; then
        echo "FAILED: $lint does not notice: $name"
        status=1
    else
        echo "ok: $lint notices: $name"
    fi
}

append() { printf "$2" >>"$1"; }
long_function() {
    { echo 'void long_one(void);'; echo 'void long_one(void)'; echo '{'
      for i in $(seq 101); do echo "    (void)$i;"; done; echo '}'; } >src/base/long.c
}
long_file() { for i in $(seq 601); do echo "/* line $i */"; done >src/base/long.c; }
long_header() { for i in $(seq 251); do echo "/* line $i */"; done >include/ddp/long.h; }

seed layers 'an include of a higher folder' append src/base/fs.c '#include "comm/engine.h"\n'
seed layers 'an include of a higher public header' append src/comm/side.h '#include "ddp/model.h"\n'
seed layers 'a public header that includes upwards' append include/ddp/rng.h '#include "ddp/comm.h"\n'
seed sizes 'a function of more than 100 lines' long_function
seed sizes 'a file of more than 600 lines' long_file
seed sizes 'a public header of more than 250 lines' long_header
seed format 'a line in another style' append src/base/fs.c 'int   x ;\n'
seed headers 'a header that needs another one' append include/ddp/rng.h 'void f(FILE *stream);\n'
seed headers 'a header that is not C++' append include/ddp/rng.h 'struct s { int class; };\n'
seed banned 'a call of getenv' append src/nn/relu.c 'int f(void) { return getenv("A") != 0; }\n'
seed banned 'a call of exit' append src/nn/relu.c 'void f(void) { exit(1); }\n'
seed banned 'a call of assert' append src/nn/relu.c 'void f(int i) { assert(i); }\n'
seed banned 'a bare malloc' append src/nn/relu.c 'void *f(void) { return malloc(1); }\n'
seed banned 'mpi.h outside comm/mpi' append src/train/eval.c '#include <mpi.h>\n'
seed banned 'dnnl.h outside device/cpu' append src/nn/relu.c '#include <dnnl.h>\n'
exit $status
