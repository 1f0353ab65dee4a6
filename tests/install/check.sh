#!/usr/bin/env bash
# check.sh BUILD CMAKE CC - installs the build into an empty prefix, builds the outside program against
# it by find_package and by pkg-config, and trains with it.
set -euo pipefail
export LC_ALL=C
build=$1 cmake=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# The tree may be moved, so it is.
"$cmake" --install "$build" --prefix "$work/installed" >install.log || { cat install.log; exit 1; }
mv installed prefix
pc=$(dirname "$(find prefix -name ddp.pc)")
[ -n "$pc" ] || { echo "ddp.pc is not installed"; exit 1; }

"$cmake" -S "$here" -B by-cmake -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >cmake.log ||
    { cat cmake.log; exit 1; }
"$cmake" --build by-cmake >>cmake.log || { cat cmake.log; exit 1; }

export PKG_CONFIG_PATH=$work/$pc
libdir=$(pkg-config --variable=libdir ddp)
"$cc" -std=c17 -Wall -Wextra -Werror $(pkg-config --cflags ddp) "$here/outside.c" -o by-pkg-config \
    $(pkg-config --libs ddp) -Wl,-rpath,"$libdir"

# learns DIRECTORY: the run ended well, and its loss has come down.
learns() {
    [ "$(cat "$1/status")" = trained ] || { echo "$1: status is not \"trained\""; exit 1; }
    sed -n 's/^{"kind":"step",.*"loss":\([^,}]*\).*/\1/p' "$1/metrics.jsonl" | awk '
        NR == 1 { first = $1 } { last = $1 }
        END { if (NR != 200 || !(last < 0.7 * first)) { print NR " steps, loss " first " to " last; exit 1 } }'
}
options=(--model small --dataset points --batch-size 64 --epochs 10 --max-steps 200 --lr 0.5 --quiet)

by-cmake/outside --comm loopback --loopback-ranks 2 "${options[@]}" --run-dir loopback
learns loopback
mpirun -np 2 by-cmake/outside "${options[@]}" --run-dir mpi
learns mpi
mpirun -np 2 ./by-pkg-config "${options[@]}" --run-dir pkg
learns pkg
by-cmake/outside --help >help
grep -q 'small *one hidden layer' help || { echo "--help lacks the model"; exit 1; }
prefix/bin/ddp_train --version
