#!/usr/bin/env bash
# selfcheck.sh - the first minutes on a machine with a GPU, from a bare checkout and without a network: finds the
# toolkit, builds, passes the GPU suite, compares training curves with the CPU's, and measures.
#
#   tests/gpu/selfcheck.sh [OPTION...]
#
#   --build DIR       where to build (default: build-selfcheck)
#   --built DIR       check this build as it is, build nothing
#   --prefix DIR      a folder into which packages were unpacked (dpkg -x PACKAGE DIR) that are not installed here
#   --without-mpi     build with -DDDP_MPI=off even if MPI is here
#   --jobs N          of the build (default: one for each core)
#   --no-benchmarks   check only
#   --peer SCRIPT, --python PROGRAM
#                     PyTorch's figures beside ours; see benchmarks/gpu.sh
#   --results DIR     where the table goes, as DATE-CARD.md (default: benchmarks/results)
#   --simulator       the same on the simulator of CUDA, from end to end, in small sizes; the table goes to the build
#   --quick           of each part a little
#
# CUDA, cuDNN and NCCL are looked for in $CUDA_ROOT, $CUDNN_ROOT, $NCCL_ROOT, $CUDA_HOME, on PATH, in /usr/local/cuda*
# and in the wheels nvidia/* of python3; MPI in $MPI_HOME, in --prefix, on PATH and beside python3. What is missing is
# said in one list, and the script ends with 2. It ends with 1 if something failed, and 0 if all is well.
set -uo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() { sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; }
argument() { [ $# -ge 2 ] || { echo "selfcheck.sh: option $1 needs a value" >&2; exit 2; }; }

build=$root/build-selfcheck built= prefix= mpi=1 jobs=$(nproc) benchmarks=1 peer= python=python3 results=
simulator= quick=
while [ $# -gt 0 ]; do
    case $1 in
        --build) argument "$@"; build=$2; shift 2 ;;
        --built) argument "$@"; build=$2; built=1; shift 2 ;;
        --prefix) argument "$@"; prefix=$2; shift 2 ;;
        --without-mpi) mpi=; shift ;;
        --jobs) argument "$@"; jobs=$2; shift 2 ;;
        --no-benchmarks) benchmarks=; shift ;;
        --peer) argument "$@"; peer=$2; shift 2 ;;
        --python) argument "$@"; python=$2; shift 2 ;;
        --results) argument "$@"; results=$2; shift 2 ;;
        --simulator) simulator=1; shift ;;
        --quick) quick=1; shift ;;
        --help) usage; exit 0 ;;
        *) echo "selfcheck.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
mkdir -p "$build" || exit 2
build=$(cd "$build" && pwd)
[ -z "$prefix" ] || prefix=$(cd "$prefix" && pwd) || exit 2
logs=$build/selfcheck
mkdir -p "$logs"
rm -f "$logs/table.md"
start=$SECONDS
report=()
failed=()

# ---- what is here ----

missing=()
parts=()
lacks() { missing+=("$(printf '%-22s looked for %s' "$1" "$2")"); }
finds() { printf '  %-14s %s\n' "$1" "$2"; }

# Folders with include, lib and bin of CUDA's parts; wheels have one for each part.
site_folders() {
    "$python" - 2>/dev/null <<'END'
import os, site, sys
seen = []
for folder in sys.path + site.getsitepackages() + [site.getusersitepackages()]:
    if folder and folder not in seen and os.path.isdir(os.path.join(folder, "nvidia")):
        seen.append(folder)
        print(folder)
END
}

find_cuda_folders() {
    local nvcc folder site
    folders=()
    for folder in "${CUDA_ROOT:-}" "${CUDNN_ROOT:-}" "${NCCL_ROOT:-}" "${CUDA_HOME:-}"; do
        [ -z "$folder" ] || folders+=("$folder")
    done
    nvcc=$(command -v nvcc) && folders+=("$(dirname "$(dirname "$(readlink -f "$nvcc")")")")
    [ -z "$prefix" ] || folders+=("$prefix/usr" "$prefix/usr/local/cuda")
    folders+=(/usr/local/cuda /usr/local/cuda-*/ /usr)
    while IFS= read -r site; do
        [ -z "$site" ] || folders+=("$site"/nvidia/*/)
    done <<<"$(site_folders)"
}

# in_folders PATTERN...: the first file that one of CUDA's folders has.
in_folders() {
    local folder pattern file
    for folder in "${folders[@]}"; do
        for pattern in "$@"; do
            for file in "${folder%/}"/$pattern; do
                [ -e "$file" ] && { echo "$file"; return 0; }
            done
        done
    done
    return 1
}

# What is found here is what the build is given: it would take wheels before the toolkit, of whatever version.
look_for_cuda() {
    local part name header library file where
    find_cuda_folders
    where="$(printf '%s ' "${folders[@]}")(CUDA_ROOT, CUDNN_ROOT, NCCL_ROOT, wheels of $python)"
    for part in CUDART:cuda_runtime_api.h:libcudart CUBLASLT:cublasLt.h:libcublasLt CUDNN:cudnn.h:libcudnn \
        NCCL:nccl.h:libnccl; do
        IFS=: read -r name header library <<<"$part"
        if file=$(in_folders "include/$header" "include/$(uname -m)-linux-gnu/$header"); then
            finds "$header" "$file"
            parts+=("-DDDP_${name}_INCLUDE=$(dirname "$file")")
        else
            lacks "$header" "$where"
        fi
        [ -z "$simulator" ] || continue
        if file=$(in_folders "lib64/$library.so*" "lib/$library.so*" "lib/$(uname -m)-linux-gnu/$library.so*"); then
            finds "$library" "$file"
            parts+=("-DDDP_${name}_LIBRARY=$file")
        else
            lacks "$library" "$where"
        fi
    done
    [ -z "$simulator" ] || return 0
    cudart=$(dirname "$(dirname "$(in_folders include/cuda_runtime_api.h)")")
    if nvcc=$(in_folders bin/nvcc); then finds nvcc "$nvcc"; else lacks nvcc "bin/ of $where"; fi
    if gpu=$(nvidia-smi -L 2>/dev/null | grep '^GPU'); then
        finds GPU "$(head -n 1 <<<"$gpu") ($(wc -l <<<"$gpu") in all)"
    else
        lacks "a GPU and its driver" "by nvidia-smi -L on PATH; --simulator does without"
    fi
}

need_program() { # NAME ALTERNATIVE...
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null && { finds "$1" "$(command -v "$name")"; return 0; }
    done
    lacks "$*" "on PATH"
}

# Can a C program with this include and these flags be made?
compiles() {
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" |
        cc -x c - -o "$logs/try" "${@:2}" 2>/dev/null
}

look_for_tools() {
    need_program cmake
    need_program ninja make
    need_program cc gcc
    need_program c++ g++
    need_program pkg-config pkgconf
    command -v cc >/dev/null || return 0
    compiles argp.h || lacks argp.h "by cc: part of glibc"
    compiles omp.h -fopenmp || lacks OpenMP "by cc -fopenmp: libgomp, part of gcc"
    if compiles dnnl.h; then
        finds dnnl.h "by cc"
    else
        lacks "oneDNN (libdnnl-dev)" "dnnl.h by cc${prefix:+, in $prefix}"
    fi
}

look_for_packages() {
    local module
    for module in inih:libinih-dev jansson:libjansson-dev libxxhash:libxxhash-dev hwloc:libhwloc-dev \
        zlib:zlib1g-dev cmocka:libcmocka-dev; do
        if pkg-config --exists "${module%:*}" 2>/dev/null; then
            finds "${module%:*}" "$(pkg-config --modversion "${module%:*}")"
        else
            lacks "${module%:*} (${module#*:})" "${module%:*}.pc by pkg-config${prefix:+, in $prefix}"
        fi
    done
}

# Not having it is no fault: the build does without.
look_for_mpi() {
    local at
    [ -z "$built" ] || ! grep -q '^DDP_MPI:.*=off' "$build/CMakeCache.txt" || mpi=
    [ -n "$mpi" ] || { finds MPI "not wanted: -DDDP_MPI=off"; return 0; }
    mpi=
    for at in "${MPI_HOME:+$MPI_HOME/bin/mpicc}" "$(command -v mpicc)" \
        "$("$python" -c 'import sys; print(sys.prefix)' 2>/dev/null)/bin/mpicc"; do
        if [ -x "$at" ] && "$at" --version >/dev/null 2>&1; then
            mpi=$at
            PATH=$(dirname "$at"):$PATH
            finds MPI "$at"
            return 0
        fi
    done
    finds MPI "none in \$MPI_HOME, on PATH${prefix:+, in $prefix}, beside $python: -DDDP_MPI=off, one rank"
}

# Unpacked packages know only where they would be installed.
use_prefix() {
    local lib=$prefix/usr/lib/$(uname -m)-linux-gnu file
    [ -n "$prefix" ] || return 0
    mkdir -p "$logs/pkgconfig"
    for file in "$prefix"/usr/lib/pkgconfig/*.pc "$prefix"/usr/share/pkgconfig/*.pc "$lib"/pkgconfig/*.pc; do
        [ ! -e "$file" ] || sed "s|=/usr|=$prefix/usr|" "$file" >"$logs/pkgconfig/$(basename "$file")"
    done
    export PKG_CONFIG_PATH=$logs/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export LD_LIBRARY_PATH=$lib:$lib/openmpi/lib:$prefix/usr/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    export C_INCLUDE_PATH=$prefix/usr/include/$(uname -m)-linux-gnu:$prefix/usr/include
    export CPLUS_INCLUDE_PATH=$C_INCLUDE_PATH PATH=$PATH:$prefix/usr/bin
    export CMAKE_PREFIX_PATH=$prefix/usr
    [ -d "$lib/openmpi" ] || return 0
    export OPAL_PREFIX=$prefix/usr PMIX_INSTALL_PREFIX=$lib/pmix2
    # Debian's names for them are links that only installing makes.
    [ -x "$prefix/usr/bin/mpicc" ] || ln -sf "$prefix/usr/bin/opal_wrapper" "$logs/mpicc"
    [ -x "$prefix/usr/bin/mpirun" ] || ln -sf "$prefix/usr/bin/orterun" "$logs/mpirun"
    PATH=$PATH:$logs
}

look() {
    echo "== what is here"
    use_prefix
    look_for_tools
    command -v pkg-config >/dev/null && look_for_packages
    look_for_cuda
    look_for_mpi
    [ ${#missing[@]} -gt 0 ] || return 0
    echo
    echo "selfcheck.sh: missing:"
    printf '  %s\n' "${missing[@]}"
    exit 2
}

# ---- the parts ----

# part NAME COMMAND...: its log, how long it took, how it ended.
part() {
    local name=$1 code=0 since=$SECONDS word
    shift
    echo "== $name"
    "$@" >"$logs/$name.log" 2>&1 || code=$?
    word=passed
    [ $code -eq 0 ] || { word=FAILED; failed+=("$name"); tail -n 40 "$logs/$name.log"; }
    report+=("$(printf '%-20s %-7s %4d s  %s' "$name" "$word" $((SECONDS - since)) \
        "$(grep -E 'tests passed|checks passed|^summary: ' "$logs/$name.log" | tail -n 1)")")
    return $code
}
skipped() { report+=("$(printf '%-20s skipped         %s' "$1" "$2")"); }

configure() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DDDP_PACK=off -DDDP_BENCHMARKS=off)
    options+=(-DDDP_MPI=$([ -n "$mpi" ] && echo on || echo off) "${parts[@]}")
    [ -z "$mpi" ] || options+=("-DMPI_C_COMPILER=$mpi" "-DMPIEXEC_EXECUTABLE=$(command -v mpirun)")
    command -v ninja >/dev/null && options+=(-G Ninja)
    if [ -n "$simulator" ]; then
        options+=(-DDDP_CUDA=auto -DDDP_GPU_TESTS=off)
    else
        options+=(-DDDP_CUDA=on -DDDP_GPU_TESTS=on "-DDDP_NVCC=$nvcc")
        # The compiler's wheel need not be that of the runtime.
        export NVCC_PREPEND_FLAGS="-I$cudart/include -L$cudart/lib64 -L$cudart/lib ${NVCC_PREPEND_FLAGS:-}"
    fi
    cmake -S "$root" -B "$build" "${options[@]}"
}

compile() {
    if [ -n "$simulator" ]; then
        cmake --build "$build" -j "$jobs" --target ddp_train ddp_cuda_sim gpu_tests
    else
        cmake --build "$build" -j "$jobs" --target real_tests read_fatbin
    fi
}

suite() {
    local pattern='^real\.|^gpu\.architectures$' excluded='^$'
    [ -z "$simulator" ] || pattern='^gpu[0-9]*\.' excluded='^gpu\.(architectures|selfcheck)$'
    ctest --test-dir "$build" -R "$pattern" -E "$excluded" --no-tests=error --output-on-failure --timeout 600
}

count_gpus() { if [ -n "$simulator" ]; then echo 2; else wc -l <<<"$gpu"; fi; }

curves() {
    DDP_TRAIN=$build/ddp_train "$root/tests/gpu/curves.sh" --gpus "$(count_gpus)" \
        $([ -n "$mpi" ] || echo --without-mpi) ${quick:+--quick}
}

# NVIDIA's checker of memory accesses, races and barriers over the tests of kernels and plans.
sanitize() {
    local test tool code=0
    for test in kernels norm softmax pointwise elementwise plans; do
        for tool in memcheck racecheck synccheck initcheck; do
            [ -z "$quick" ] || [ $tool = memcheck ] || continue
            echo "-- $tool, $test"
            timeout 600 compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests/gpu/real_$test" ||
                { echo "$tool reports real_$test"; code=1; }
        done
    done
    return $code
}

# Machine code for each architecture, and PTX of the newest, as NVIDIA's tool reads it.
fat_binary() {
    local module=$build/libddp_cuda.so.0 arch code=0 want="80 90"
    "$nvcc" --version | grep -E 'release (1[3-9]|12\.[89])' >/dev/null && want="80 90 100"
    "$cuobjdump" --list-elf "$module" >"$logs/elf" && "$cuobjdump" --list-ptx "$module" >"$logs/ptx" || return 1
    for arch in $want; do
        grep -q "sm_$arch\." "$logs/elf" || { echo "no machine code for sm_$arch"; code=1; }
    done
    grep -q "sm_${want##* }\." "$logs/ptx" || { echo "no PTX of sm_${want##* }"; code=1; }
    echo "summary: machine code for $want, PTX of ${want##* }"
    return $code
}

several_gpus() { mpirun -np "$(count_gpus)" "$build/tests/gpu/real_mpi_nccl"; }

measure() {
    local card file options=(--output "$logs/table.md" --python "$python")
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    [ -z "$simulator" ] || { card=simulated; options+=(--simulator); }
    [ -z "$peer" ] || options+=(--peer "$peer")
    [ -z "$quick" ] || options+=(--only lenet:16 --precisions fp32 --steps 3)
    DDP_BUILD=$build "$root/benchmarks/gpu.sh" "${options[@]}" || return 1
    file=$(date -u +%F)-$(tr -cs 'a-zA-Z0-9\n' - <<<"$card" | tr 'A-Z' 'a-z' | sed 's/-$//').md
    mkdir -p "$results" && cp "$logs/table.md" "$results/$file" && echo "summary: $results/$file"
}

checks() {
    if [ -n "$built" ] && [ -n "$simulator" ]; then
        skipped suite "part of the tests of $build"
    else
        part suite suite
    fi
    [ -z "$simulator" ] || export LD_LIBRARY_PATH=$build/simcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    part curves curves
    if [ -n "$simulator" ]; then
        skipped compute-sanitizer "needs a GPU"
        skipped cuobjdump "the simulator's module has no machine code of GPUs"
        return 0
    fi
    if command -v compute-sanitizer >/dev/null; then
        part compute-sanitizer sanitize
    else
        skipped compute-sanitizer "not on PATH"
    fi
    if cuobjdump=$(command -v cuobjdump || in_folders bin/cuobjdump); then
        part cuobjdump fat_binary
    else
        skipped cuobjdump "not on PATH; read_fatbin has read the module"
    fi
    if [ -n "$mpi" ] && [ "$(count_gpus)" -gt 1 ]; then
        part nccl several_gpus
    else
        skipped nccl "needs two GPUs and MPI"
    fi
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
if [ -z "$results" ]; then
    results=$root/benchmarks/results
    [ -z "$simulator" ] || results=$logs
fi
look
if [ -z "$built" ]; then
    part configure configure && part build compile
fi
if [ ${#failed[@]} -eq 0 ]; then
    checks
    if [ -n "$benchmarks" ]; then part benchmarks measure; else skipped benchmarks "not wanted"; fi
fi
echo
echo "== results after $((SECONDS - start)) s; logs in $logs"
printf '%s\n' "${report[@]}"
[ ! -e "$logs/table.md" ] || { echo; cat "$logs/table.md"; }
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
echo "all passed"
