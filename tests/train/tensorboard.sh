#!/usr/bin/env bash
# Event files as the real TensorBoard reads them: equal to metrics.jsonl, also behind a resume that does steps
# again. DDP_TENSORBOARD_PYTHON names a Python that has the package; without one the test is skipped.
. "$(dirname "$0")/lib.sh"
python=${DDP_TENSORBOARD_PYTHON:-python3}
if ! "$python" -c 'import tensorboard' 2>/dev/null; then
    echo "skipped: $python has no tensorboard"
    exit 77
fi
model=(--dataset synthetic --synthetic-train 240 --synthetic-test 64 --model mlp --mlp-widths 32 --batch-size 24
    --run-dir "$work/run" --threads 1 --quiet)

compare() {
    "$python" - "$work/run" <<'PY'
import json, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
folder = sys.argv[1]
records = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
events = EventAccumulator(folder, size_guidance={"scalars": 0})
events.Reload()
def check(tag, kind, key, at):
    want = [(at(r), r[key]) for r in records if r["kind"] == kind]
    got = [(e.step, e.value) for e in events.Scalars(tag)]
    assert len(want) > 0 and [w[0] for w in want] == [g[0] for g in got], (tag, want, got)
    for (_, w), (_, g) in zip(want, got):
        assert math.isclose(w, g, rel_tol=1e-5, abs_tol=1e-6), (tag, w, g)
steps = lambda r: r["step"]
check("train/loss", "step", "loss", steps)
check("train/lr", "step", "lr", steps)
check("train/grad_norm", "step", "grad_norm", steps)
check("speed/images_per_s", "step", "images_per_s", steps)
check("epoch/train_loss", "epoch", "train_loss", lambda r: 10 * r["epoch"])
check("epoch/test_accuracy", "epoch", "test_accuracy", lambda r: 10 * r["epoch"])
print(len(events.Scalars("train/loss")))
PY
}

mpirun -np 2 "$program" "${model[@]}" --epochs 2 --checkpoint-every 13 --checkpoint-epochs 0 --no-checkpoint-at-end \
    >"$work/out" 2>&1 || fail "$(cat "$work/out")"
equal 'steps' "$(compare 2>&1 | tail -n 1)" 20
# Goes on from step 13, and does 14 to 20 again.
mpirun -np 2 "$program" "${model[@]}" --epochs 3 --resume auto >"$work/out" 2>&1 || fail "$(cat "$work/out")"
equal 'files' "$(ls "$work/run" | grep -c '^events\.out\.tfevents\.')" 2
equal 'steps after a resume' "$(compare 2>&1 | tail -n 1)" 30
# And without.
mpirun -np 2 "$program" "${model[@]/#$work\/run/$work/none}" --epochs 1 --no-tensorboard >"$work/out" 2>&1 || fail "$(cat "$work/out")"
equal 'no files' "$(ls "$work/none" | grep -c '^events' || true)" 0
finish
