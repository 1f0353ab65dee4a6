#!/usr/bin/env bash
# trace_picture.sh - draws a step of a timeline.
#
#   benchmarks/trace_picture.sh TRACE.json OUT.svg [STEP]
#
# A rank has two rows: its main thread, and its buckets as they travel. STEP: the last but one unless given.
case ${1:-} in --help | -h) sed -n '2,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -euo pipefail
export LC_ALL=C
trace=${1:?TRACE.json} out=${2:?OUT.svg}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v gnuplot >/dev/null || { echo "gnuplot is not installed"; exit 77; }

# One event a line, keys in a fixed order: category, rank, track, begin and length in microseconds, step.
sed -n 's/^{"ph":"X".*"cat":"\([^"]*\)","pid":\([0-9]*\),"tid":\([0-9]*\),"ts":\([0-9.]*\),"dur":\([0-9.]*\),"args":{"step":\([0-9]*\),.*/\1;\2;\3;\4;\5;\6/p' \
    "$trace" >"$work/events"
step=${3:-$(awk -F';' '$1 == "step" { print $6 }' "$work/events" | sort -nu | tail -2 | head -1)}
ranks=$(($(cut -d';' -f2 "$work/events" | sort -nu | tail -1) + 1))

# Boxes: begin, end (ms), bottom, top, colour. What lies within others comes later and is drawn over them.
awk -F';' -v step="$step" -v ranks="$ranks" '
    BEGIN {
        split("data:0xf2cf5b forward:0x4c78a8 backward:0xf58518 wait:0xb8b8b8 optimizer:0xd64f4f bucket:0x54a24b publish:0xa5d69a", list, " ")
        for (i in list) { split(list[i], pair, ":"); colour[pair[1]] = pair[2] }
        colour["layer forward"] = colour["forward"]; colour["layer backward"] = colour["backward"]
        colour["control word"] = "0x9d6bb5"
    }
    FNR == NR {
        if ($1 == "step" && $6 == step && (from == "" || $4 < from)) from = $4
        if ($1 == "step" && $6 == step && $4 + $5 > to) to = $4 + $5
        next
    }
    $5 < (to - from) / 1200 { next } # less than a point wide
    $6 == step && $1 in colour && (($3 == 0) || $3 >= 1000) {
        base = ranks - 1 - $2 + 0.08
        travels = $3 >= 1000
        low = travels ? base : base + 0.34
        high = travels ? base + 0.3 : base + 0.84
        if ($1 == "wait" || $1 == "optimizer" || $1 == "control word") low += 0.12
        printf "%.4f %.4f %.3f %.3f %s\n", ($4 - from) / 1000, ($4 + $5 - from) / 1000, low, high, colour[$1]
    }' "$work/events" "$work/events" >"$work/boxes"

[ -s "$work/boxes" ] || { echo "trace_picture.sh: $trace has no step${step:+ $step}" >&2; exit 1; }

ticks=$(for ((r = 0; r < ranks; r++)); do printf '"rank %d" %d.58, ' "$r" $((ranks - 1 - r)); done)
gnuplot <<END
set terminal svg size 1000,$((90 + 95 * ranks)) font "sans-serif,13" background "white"
set output "$out"
set style fill solid border rgb "white"
set xlabel "milliseconds from the beginning of step $step"
set ytics (${ticks%, }) scale 0
set yrange [0:$ranks]
set key outside top center horizontal samplen 1.5
set border 1
set xtics nomirror
set autoscale xfix
plot "$work/boxes" using ((\$1+\$2)/2):((\$3+\$4)/2):1:2:3:4:(column(5)) with boxxyerror lc rgb variable lw 0.4 notitle, \
    keyentry with boxes fs solid lc rgb 0x4c78a8 title "forward", \
    keyentry with boxes fs solid lc rgb 0xf58518 title "backward", \
    keyentry with boxes fs solid lc rgb 0x54a24b title "bucket's sum", \
    keyentry with boxes fs solid lc rgb 0xa5d69a title "slices back", \
    keyentry with boxes fs solid lc rgb 0xb8b8b8 title "communication in the main thread", \
    keyentry with boxes fs solid lc rgb 0xd64f4f title "update", \
    keyentry with boxes fs solid lc rgb 0x9d6bb5 title "control word"
END
echo "$out: step $step of $ranks ranks"
