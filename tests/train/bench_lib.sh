# bench_lib.sh - what the tests of ddp_bench share. Sourced.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bench=${DDP_BENCH:?the path of ddp_bench}

# json NAME EXPRESSION: whether it holds for d, the file's contents.
json() {
    if python3 - "$1" "$2" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
near = lambda a, b: abs(a - b) <= 1e-6 * max(abs(a), abs(b))
sys.exit(0 if eval("(" + sys.argv[2] + ")", {"d": d, "near": near, "all": all, "len": len, "enumerate": enumerate, "sum": sum, "abs": abs, "max": max}) else 1)
PY
    then pass; else fail "$1: $2 does not hold: $(cat "$1")"; fi
}
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }

# bad TEXT ARGUMENTS...: exit status 2, and one line that says why.
bad() {
    local text=$1 code=0
    shift
    "$bench" "$@" >"$work/bad.out" 2>"$work/err" || code=$?
    equal "exit status of $*" "$code" 2
    grep -qF -- "$text" "$work/err" && pass || fail "$*: no \"$text\" in: $(cat "$work/err")"
    equal "lines about $*" "$(wc -l <"$work/err")" 1
}
