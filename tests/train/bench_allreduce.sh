#!/usr/bin/env bash
# bench_allreduce.sh - ddp_bench allreduce: right sums, numbers that fit together, and clear refusals.
. "$(dirname "$0")/bench_lib.sh"

bad 'found the command "reduce"' reduce
bad 'option --allreduce: found "ring,no", expected some of auto, shm' allreduce --allreduce ring,no
bad 'option --types: found "f8"' allreduce --types f8
bad 'option --sizes: found "4"' allreduce --sizes 4
bad '--min-time' allreduce --min-time 0
bad '--size' allreduce --size 8

for world in "mpirun -np 2 $bench allreduce" "$bench allreduce --comm loopback --loopback-ranks 3"; do
    ranks=$(grep -oE '[0-9]+' <<<"${world##*-np}" | head -n 1); [[ $world == *loopback* ]] && ranks=3
    rm -rf "$work/out"
    timeout 200 $world --min-time 0.001 --sizes 8,1000,256K --allreduce auto,ring,tree,rhd,root --types f32,bf16,i64 \
        --gnuplot no-such-gnuplot --out "$work/out" >"$work/said" 2>&1 || fail "$world: $(cat "$work/said")"
    json "$work/out/allreduce.json" "d['ranks'] == $ranks and d['hosts'] == 1 and len(d['rows']) == 5 * 3 * 3"
    json "$work/out/allreduce.json" "all(r['wrong'] == 0 for r in d['rows'])"
    json "$work/out/allreduce.json" "all(0 < r['min_s'] <= r['median_s'] <= r['p90_s'] for r in d['rows'])"
    json "$work/out/allreduce.json" "near(d['bus_factor'], 2 * ($ranks - 1) / $ranks)"
    json "$work/out/allreduce.json" \
        "all(near(r['busbw_GBps'], d['bus_factor'] * r['algbw_GBps']) for r in d['rows'])"
    json "$work/out/allreduce.json" \
        "all(near(r['algbw_GBps'] * 1e9 * r['median_s'], r['bytes']) for r in d['rows'])"
    json "$work/out/allreduce.json" "[p['bytes'] for p in d['points']] == [8, 1000, 262144]"
    json "$work/out/allreduce.json" "all(p['seconds'] == d['rows'][i]['median_s'] for i, p in enumerate(d['points']))"
    grep -q 'no-such-gnuplot is not here' "$work/said" && pass || fail "nothing said about gnuplot: $(cat "$work/said")"
    [ -s "$work/out/allreduce.gp" ] && pass || fail "no script"
    cmp -s "$work/said" "$work/out/allreduce.txt" && pass || fail "the text is not what was printed"
done
finish
