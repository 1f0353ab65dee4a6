# doctor_lib.sh - what the tests of --doctor share. Sourced behind train/lib.sh.
small=(--doctor --dataset synthetic --synthetic-train 240 --synthetic-test 48 --batch-size 48 --model mlp
    --mlp-widths 64 --threads 1)

on=() # what mpirun is started by
# visit CODE ARGUMENTS-OF-MPIRUN...: its text in out, errors in err.
visit() {
    local want=$1 code=0
    shift
    "${on[@]}" timeout 150 mpirun "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" -eq "$want" ] || fail "$*: exit status $code, expected $want: $(cat "$work/out" "$work/err")"
}

# says KIND TEXT: a finding, on one line with what to do.
says() {
    if grep -E "^$1.*$2" "$work/out" | grep -q '; do: .'; then
        pass
    else
        fail "no line \"$1... $2...\" with what to do in: $(cat "$work/out" "$work/err")"
    fi
}
fails() { says 'this will fail because ' "$1"; }
slow() { says 'this will be slow because ' "$1"; }
noted() { says 'note: ' "$1"; }
silent() {
    if grep -E "$1" "$work/out" >/dev/null; then fail "found \"$1\" in: $(cat "$work/out")"; else pass; fi
}
shows_err() { if grep -Eq -- "$1" "$work/err"; then pass; else fail "no \"$1\" in: $(cat "$work/err")"; fi; }
shows() {
    if grep -Eq -- "$1" "$work/out"; then pass; else fail "no \"$1\" in: $(cat "$work/out" "$work/err")"; fi
}
