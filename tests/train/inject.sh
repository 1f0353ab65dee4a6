#!/usr/bin/env bash
# Mishaps on purpose: each ends the run, or not, as the option says, and the cause names the rank.
. "$(dirname "$0")/lib.sh"
model=(--dataset synthetic --synthetic-train 1024 --synthetic-test 64 --model mlp --mlp-widths 64 --epochs 4
    --batch-size 48 --eval-every 0 --quiet --threads 1 --checkpoint-epochs 0)

# mishap TEXT LIST ARGUMENTS...: the run fails with one cause, which contains the text.
mishap() {
    local text=$1 list=$2 code=0
    shift 2
    mpirun -np 3 "$program" "${model[@]}" --run-dir "$work/$list" --inject "$list" "$@" >"$work/out" 2>"$work/err" ||
        code=$?
    if [ "$code" -ne 0 ]; then pass; else fail "$list: exit status 0"; fi
    equal "$list: causes" "$(grep -c '^ddp_train: ' "$work/err" || true)" 1
    grep '^ddp_train: ' "$work/err" | grep -q "$text" && pass || fail "$list: $(cat "$work/err")"
    grep -q "warning: this run rehearses mishaps: --inject $list" "$work/out" "$work/err" && pass ||
        fail "$list: no warning"
    equal "$list: status" "$(cat "$work/$list/status")" failed
}

mishap 'rank 1 (pid .*) on .* died; last seen at step 7' kill@1:7
# What it leaves behind: the survivors' last works, and a page with the cause first and a line for each rank.
page=$work/kill@1:7/failure/summary.txt
equal 'files of a failure' "$(ls "$work/kill@1:7/failure" | tr '\n' ' ')" 'rank-0.json rank-2.json summary.txt '
grep -q '"kind":"reduce_owned","what":"gradients","bytes":[0-9]*,"bucket":0,"step":6,.*"ended"' \
    "$work/kill@1:7/failure/rank-2.json" && pass || fail "$(head -c 600 "$work/kill@1:7/failure/rank-2.json")"
equal 'lines of the page' "$(wc -l <"$page")" 4
sed -n 1p "$page" | grep -q '^first cause, from rank [02] on .*: rank 1 (pid .*) on .* died' && pass || fail "$(cat "$page")"
sed -n 2p "$page" | grep -q '^rank 0 on .*: at step 7 in training step; last work: .*, not complete$' && pass ||
    fail "$(cat "$page")"
sed -n 3p "$page" | grep -q '^rank 1 on .*: at step 7 .*, complete; has written nothing$' && pass || fail "$(cat "$page")"
mishap 'rank 2 (pid .*) on .* died; last seen at step 7' exit@2:7
# How long is told in seconds, from the limit on.
mishap 'rank 1 on .* is a stopped process and has not entered .* for [3-9]\..*step 7' stop@1:7 --comm-timeout 3
mishap 'rank 2 on .* has not entered .* for [2-7]\..* step 5' delay@2:5:8 --limit-step 2
mishap 'step 5 (epoch 1): loss or gradients of rank 2 are not finite' nan@2:5
mishap 'step 5: parameter fc2.weight differs between rank 0 and rank 2' bitflip@2:5 --check-replicas 1
# Three of four ranks heal the other; two of three do not.
mishap 'parameter fc2.weight differs between rank 0 and rank 2' bitflip@2:4 --check-replicas 1 --on-mismatch heal
train healthy 4 "${model[@]}" --max-steps 9
train healed 4 "${model[@]}" --max-steps 9 --inject bitflip@1:5,bitflip@3:7 --check-replicas 1 --on-mismatch heal
equal 'weights after healing' "$(summary healed weights_xxh3)" "$(summary healthy weights_xxh3)"
equal 'parameters that were healed' "$(grep -c 'step [57]: parameter fc2.weight of rank [13] was damaged' "$work/healed.out")" 2
# Three ranks wait for the fourth: the record of the step says how long, and that nobody computes for longer. In the mean
# they wait for at most three quarters of the step; each of them may come a second late on a busy machine.
train late 4 "${model[@]}" --max-steps 5 --inject delay@2:5:4
late=$(sed -nE 's/.*"step":5,.*"compute":([0-9.e+]*),"wall":([0-9.e+]*)\},"ms_mean":\{.*"comm_exposed":([0-9.e+]*),.*"ms_least":\{"comm_exposed":([0-9.e+]*)\}.*/\1 \2 \3 \4/p' \
    "$work/late/metrics.jsonl")
awk '{ exit !($1 < $2 - 1000 && $2 > 3500 && $3 - $4 > 2000 && $3 - $4 < 0.8 * $2 && $4 < $3 / 2) }' <<<"${late:-0 0 0 0}" &&
    pass || fail "times of a step with a late rank: $late"
# The update of that step is left out, on all ranks.
train skip 3 "${model[@]}" --inject nan@2:5 --on-nonfinite skip
equal 'skipped steps' "$(summary skip skipped_steps)" 1
# No space for a checkpoint is said, and is no reason to end.
train enospc 3 "${model[@]}" --inject enospc@1:5 --max-steps 9 --checkpoint-every 8 --no-checkpoint-at-end
grep -q 'rank 1 .*the checkpoint of step 8 is not written: .*No space left' "$work/enospc.out" && pass ||
    fail "enospc: $(cat "$work/enospc.out")"
finish
