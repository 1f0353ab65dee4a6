# lib.sh - what the training tests share: launching, reading records, comparing curves. Sourced.
#
# DDP_TRAIN names the program; ctest sets it. A script ends with `finish`; every check that fails is
# counted and printed with what was found.
set -euo pipefail
export LC_ALL=C
umask 022
# What the caller's shell or job says is not a part of a test.
unset ${!DDP_TRAIN_@} ${!SLURM_@} ${!NCCL_@} OMP_NUM_THREADS
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# Open MPI's topology library asks ten X displays for graphics cards, through name resolution: seconds, on
# a host that cannot resolve "localhost".
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
program=${DDP_TRAIN:?the path of ddp_train}
work=$(mktemp -d)
failures=0
checks=0

clean_up() {
    local pids
    pids=$(jobs -p)
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

pass() { checks=$((checks + 1)); }

finish() {
    echo "$checks checks passed, $failures failed"
    [ "$failures" -eq 0 ] && [ "$checks" -gt 0 ]
}

# launch RANKS ARGUMENTS...: ddp_train as RANKS processes, or as threads where RANKS is "loopback:N".
# DDP_TEST_ARGUMENTS come first: what to run the same test with, like --device cuda.
launch() {
    local ranks=$1
    shift
    set -- ${DDP_TEST_ARGUMENTS:-} "$@"
    case $ranks in
        loopback:*) "$program" --comm loopback --loopback-ranks "${ranks#*:}" "$@" ;;
        *) mpirun -np "$ranks" "$program" "$@" ;;
    esac
}

# train NAME RANKS ARGUMENTS...: a run that must succeed, in the run directory $work/NAME.
train() {
    local name=$1 ranks=$2
    shift 2
    if ! launch "$ranks" --quiet --threads 1 --run-dir "$work/$name" "$@" >"$work/$name.out" 2>&1; then
        fail "$name ($ranks ranks: $*) ended with an error:"
        cat "$work/$name.out"
        return 0
    fi
    [ "$(cat "$work/$name/status")" = trained ] || fail "$name: status is not \"trained\""
}

# steps NAME: how many the run in $work/NAME has recorded so far.
steps() {
    local count
    count=$(grep -c '"kind":"step"' "$work/$1/metrics.jsonl" 2>/dev/null || true)
    echo "${count:-0}"
}

# reach NAME STEPS: waits until a run that was started behind & is there, two minutes at most.
reach() {
    local until=$((SECONDS + 120))
    while [ $SECONDS -lt $until ]; do
        [ "$(steps "$1")" -lt "$2" ] || return 0
        sleep 0.05
    done
    fail "$1: not at step $2 after two minutes: $(cat "$work/$1.out" "$work/out" "$work/err" 2>/dev/null)"
    return 1
}

# gone PID: the process ends within ten seconds. One that nobody has collected yet has ended.
gone() {
    local state
    for _ in $(seq 200); do
        state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) || return 0
        [ -n "$state" ] && [ "$state" != Z ] || return 0
        sleep 0.05
    done
    return 1
}

# losses NAME: the steps' losses, one a line.
losses() {
    sed -n 's/^{"kind":"step",.*"loss":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"
}

# summary NAME KEY: a value of the run's summary record.
summary() {
    awk -v key="\"$2\":" '/"kind": ?"summary"/ { gsub(/": /, "\":"); i = index($0, key)
        if (i) { rest = substr($0, i + length(key)); sub(/[,}].*/, "", rest); gsub(/"/, "", rest)
                 value = rest } } END { print value }' "$work/$1/metrics.jsonl"
}

# same_curve NAME REFERENCE STEPS TOLERANCE: relative difference of each step's loss. Curves of another
# length, or of a loss that is not a number, differ.
same_curve() {
    if [ ! -e "$work/$1/metrics.jsonl" ] || [ ! -e "$work/$2/metrics.jsonl" ]; then
        fail "$1 and $2: a curve is missing"
        return 0
    fi
    losses "$1" >"$work/a"
    losses "$2" >"$work/b"
    if paste "$work/a" "$work/b" | awk -v want="$3" -v tolerance="$4" '
        $1 !~ /^[0-9]/ || $2 !~ /^[0-9]/ { print "step " NR ": " $1 " and " $2; bad = 1; next }
        { d = $1 - $2; if (d < 0) d = -d
          if (d > tolerance * $2) { print "step " NR ": " $1 " and " $2; bad = 1 } }
        END { if (NR != want) { print NR " steps, expected " want; bad = 1 } exit bad }' >"$work/diff"
    then
        pass
    else
        fail "$1 differs from $2: $(head -n 3 "$work/diff" | tr '\n' ';')"
    fi
}

# equal WHAT FOUND EXPECTED
equal() {
    if [ "$2" = "$3" ] && [ -n "$2" ]; then pass; else fail "$1: found \"$2\", expected \"$3\""; fi
}

# refused STATUS TEXT RANKS ARGUMENTS...: the run ends with this status and with one line that says why,
# which contains the text.
refused() {
    local status=$1 text=$2 ranks=$3 code=0 causes
    shift 3
    (launch "$ranks" "$@") >"$work/out" 2>"$work/err" || code=$?
    causes=$(grep -c '^ddp_train: ' "$work/err" || true)
    if [ "$code" -ne "$status" ]; then
        fail "$ranks ranks, $*: exit status $code, expected $status: $(cat "$work/err")"
    elif [ "$causes" -ne 1 ]; then
        fail "$ranks ranks, $*: $causes lines of causes, expected 1: $(cat "$work/err")"
    elif ! grep '^ddp_train: ' "$work/err" | grep -qF -- "$text"; then
        fail "$ranks ranks, $*: the cause lacks \"$text\": $(grep '^ddp_train: ' "$work/err")"
    else
        pass
    fi
}
