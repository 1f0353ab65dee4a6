#!/usr/bin/env bash
# no_cuda.sh FILE... - programs and libraries that start without any library of CUDA.
set -uo pipefail
command -v ldd >/dev/null || { echo "skipped: no ldd"; exit 77; }
for file in "$@"; do
    needed=$(ldd "$file") || { echo "ldd $file failed"; exit 1; }
    ! grep -iE 'libcud|libcublas|libnccl|libnvidia' <<<"$needed" || { echo "$file needs them at its start"; exit 1; }
done
