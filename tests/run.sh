#!/usr/bin/env bash
# run.sh - installs what the tests need, builds the release, asan and tsan presets, and passes the tests.
#
#   ./tests/run.sh [release] [cluster] [asan] [tsan] [fuzz]        all five unless some are named
#
# Prints what each part took, what was skipped and why, and ctest's closing lines. Non-zero on any
# failure.
case ${1:-} in --help | -h) sed -n '2,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
. launch/packages.sh
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(release cluster asan tsan fuzz)

install_packages "${build_packages[@]}" dataset-fashion-mnist libcmocka-dev g++ clang clang-format \
    libclang-rt-14-dev universal-ctags procps python3-venv gnuplot-nox python3 iproute2 slurm-wlm \
    munge || exit 1

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# Open MPI's topology library asks ten X displays for graphics cards, through name resolution: seconds, on
# a host that cannot resolve "localhost".
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
jobs=$(nproc)
failed=()
reports=()

# build PRESET
build() {
    cmake --preset "$1" >"build-$1.log" 2>&1 && cmake --build --preset "$1" -j "$jobs" >>"build-$1.log" 2>&1
}

# suite PRESET NAME BUDGET PATTERN [EXCLUDED]: ctest over the tests whose names match, at_once of them at a time.
suite() {
    local preset=$1 name=$2 budget=$3 pattern=$4 excluded=${5:-^$} start=$SECONDS dir code=0 log
    dir=$(preset_dir "$preset")
    log=$dir/suite-$name.log
    echo "== $name: tests $pattern of preset $preset, budget $budget s"
    ctest --test-dir "$dir" -R "$pattern" -E "$excluded" -j "${at_once:-1}" --output-on-failure --no-tests=error \
        --timeout "$budget" >"$log" 2>&1 || code=$?
    if [ $code -eq 0 ]; then
        sed -n '/tests passed/,$p' "$log"
    else
        failed+=("$name")
        grep -vE '^ *Start |  Passed  ' "$log"
    fi
    grep -E '\*\*\*Skipped' "$log" | sed 's/^/skipped: /'
    reports+=("$(printf '%-14s %4d s of %4d s: %s' "$name" $((SECONDS - start)) "$budget" \
        "$(grep -E 'tests passed' "$log" || echo 'no result')")")
}

preset_dir() { [ "$1" = release ] && echo build || echo "build-$1"; }

# built PRESET: builds or reports, and says how long it took.
built() {
    local start=$SECONDS
    if build "$1"; then
        echo "== built preset $1 in $((SECONDS - start)) s"
        return 0
    fi
    echo "== preset $1 does not build:"
    tail -n 60 "build-$1.log"
    failed+=("build-$1")
    return 1
}

# simulated PRESET NAME BUDGET PATTERN [EXCLUDED]: a suite on simulated GPUs. Without CUDA's headers there are
# no such tests.
simulated() {
    if ctest --test-dir "$(preset_dir "$1")" -N -R "$4" | grep 'Total Tests: 0' >/dev/null; then
        echo "skipped: $2, without CUDA's headers"
        reports+=("$(printf '%-14s skipped: no headers of CUDA here' "$2")")
    else
        suite "$@"
    fi
}

# For train.tensorboard, which is skipped without.
prepare_tensorboard() {
    local venv=build/tensorboard
    export DDP_TENSORBOARD_PYTHON=$root/$venv/bin/python
    [ -x "$venv/bin/tensorboard" ] ||
        { python3 -m venv "$venv" && "$venv/bin/pip" install -q tensorboard setuptools; } >build-tensorboard.log 2>&1 ||
        echo "TensorBoard cannot be installed here: $(tail -n 1 build-tensorboard.log)"
}

run_release() {
    built release || return
    prepare_tensorboard
    suite release release 900 '.' '^(sim|gpu[0-9]*|cluster)\.'
    at_once=2 simulated release simulator 300 '^(sim|gpu[0-9]*)\.'
}

# Several hosts, made of network namespaces: for root, where the kernel has them.
run_cluster() {
    local refusal
    built release || return
    if refusal=$(. tests/cluster/lib.sh && cluster_can 2>&1); then
        suite release cluster 600 '^cluster\.'
    else
        echo "skipped: cluster: $refusal"
        reports+=("$(printf '%-14s skipped: %s' cluster "$refusal")")
    fi
}

# Leaks are looked for where the process is ours alone: MPI keeps memory to the end on purpose.
run_asan() {
    built asan || return
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0
    suite asan asan-unit 400 '^unit\.' '^unit\.(place|doctor)$'
    # hwloc's plugins keep memory and are unloaded, so that nothing can be said about them by name.
    ASAN_OPTIONS=detect_leaks=0 suite asan asan-topology 60 '^unit\.(place|doctor)$'
    simulated asan asan-sim 200 '^sim\.'
    suite asan asan-loopback 200 '^train\.loopback$'
    ASAN_OPTIONS=detect_leaks=0 suite asan asan-mpi2 200 '^mpi2\.'
    unset UBSAN_OPTIONS LSAN_OPTIONS
}

# Only threads of ours that meet: neither oneDNN nor MPI is built with the sanitizer.
run_tsan() {
    built tsan || return
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tests/tsan.supp
    suite tsan tsan 400 '^(unit\.(algo|async_worlds|lane|marks|thread|queue|log|loader|loopback|comm|shm|reducer|worlds|accumulate|sync_bn|rank_weights|clip|watchdog|net|ring|engine|device|pack).*|train\.loopback)$'
    # Through MPI only what shows that a missing wait is found in a step.
    # A run that fails on purpose leaves its watchdog, which has ended, without waiting for it.
    TSAN_OPTIONS=$TSAN_OPTIONS:report_thread_leaks=0 simulated tsan tsan-sim 300 '^(sim|gpu)\.' '^gpu\.(train|ranks|nccl_failures|selfcheck|fp16|exact|doctor)$'
    unset TSAN_OPTIONS
}

run_fuzz() {
    local start=$SECONDS code=0
    echo "== fuzz: every reader of files, 15 s each"
    tests/fuzz/run.sh 15 || code=$?
    case $code in
        0) reports+=("fuzz           $((SECONDS - start)) s: clean") ;;
        77) reports+=("fuzz           skipped: see above") ;;
        *) reports+=("fuzz           FAILED"); failed+=(fuzz) ;;
    esac
}

for part in "${parts[@]}"; do
    case $part in
        release | cluster | asan | tsan | fuzz) "run_$part" ;;
        *) echo "run.sh: unknown part $part, expected release, cluster, asan, tsan or fuzz" >&2; exit 2 ;;
    esac
done

echo
echo "== results after $SECONDS s"
printf '%s\n' "${reports[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
echo "all passed"
