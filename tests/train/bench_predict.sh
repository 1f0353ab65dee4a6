#!/usr/bin/env bash
# bench_predict.sh - ddp_bench predict and sleepstep from a file of layers' times: files, and what must hold however
# busy the machine is.
. "$(dirname "$0")/lib.sh"
bench=${DDP_BENCH:?the path of ddp_bench}

cat >"$work/layers.json" <<'JSON'
{"model": "three", "samples": 8, "forward": 0.02, "backward": 0.05, "update_per_byte": 1e-10,
 "layers": [{"name": "c", "bytes": 2000000, "ready": 0.02}, {"name": "b", "bytes": 1000000, "ready": 0.035},
            {"name": "a", "bytes": 4000, "ready": 0.05}]}
JSON

if "$bench" predict --layers "$work/layers.json" --ranks 1,8,65536 --ranks-per-host 8 --links 10,400 --spread 0 \
    --bucket-cap-mb auto --out "$work/report" >"$work/predict.out" 2>&1; then pass; else fail "$(cat "$work/predict.out")"; fi
for file in predict.txt predict.json predict.gp; do
    if [ -s "$work/report/$file" ]; then pass; else fail "predict: no $file"; fi
done
# numbers KEY: of predict.json, in order.
numbers() { tr ',{}' '\n' <"$work/report/predict.json" | sed -n "s/^ *\"$1\": *//p"; }
equal 'rows and changes' "$(numbers efficiency | wc -l)" 14
equal 'one rank alone loses nothing' "$(numbers efficiency | sed -n 1p | awk '{print $1 == 1}')" 1
equal 'more ranks are never more efficient' \
    "$(numbers efficiency | head -n 6 | awk '{ bad += NR % 3 != 1 && $1 > last; last = $1 } END { print bad + 0 }')" 0

# sleep NAME ARGUMENTS...: two ranks.
sleep_steps() {
    local name=$1 out
    shift
    if mpirun -np 2 "$bench" sleepstep --layers "$work/layers.json" --steps 4 --warmup 1 --bucket-cap-mb 1 \
        --first-bucket-mb 1 --out "$work/$name" "$@" >"$work/$name.out" 2>&1; then
        pass
    else
        fail "$name: $(cat "$work/$name.out")"
        return 0
    fi
    out=$(tr ',{}' '\n' <"$work/$name/sleepstep.json")
    equal "$name: both cuts" "$(sed -n 's/^ *"cut": *//p' <<<"$out" | tr -d '\n')" '"by size""auto"'
    equal "$name: buckets by size" "$(sed -n 's/^ *"buckets": *//p' <<<"$out" | head -n 1)" 2
    # A sleep may be longer than asked for, never shorter.
    equal "$name: no step is shorter than its layers" \
        "$(sed -n 's/^ *"step": *//p' <<<"$out" | awk '$1 < 0.07 { bad++ } END { print bad + 0 }')" 0
}
sleep_steps messages --no-shared-memory
# A curve of sums that take no time: no share of them is infinite.
echo '{"points": [{"bytes": 0, "seconds": 0}], "ranks": 2}' >"$work/nothing.json"
sleep_steps nothing --no-shared-memory --curve "$work/nothing.json"
equal 'of nothing, all is hidden' "$(awk -F'|' '$2 ~ /auto|by size/ { print $9 + 0 }' "$work/nothing.out" | sort -u)" 100
sleep_steps shared
finish
