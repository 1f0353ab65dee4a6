#!/usr/bin/env bash
# format.sh ROOT - clang-format has nothing to change.
. "$(dirname "$0")/lib.sh"
command -v clang-format >/dev/null || { echo "skipped: clang-format is not installed"; exit 77; }
sources src include tests benchmarks | xargs clang-format --dry-run -Werror
