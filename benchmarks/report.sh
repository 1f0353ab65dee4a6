#!/usr/bin/env bash
# report.sh - measures this machine, or these hosts, with ddp_bench, and makes one HTML page of it.
#
#   benchmarks/report.sh [--quick] [--out DIR] [--ranks 1,2] [--launcher 'mpirun --hostfile FILE'] [--train 'OPTIONS']
#                        [--batch-per-rank N] [--batch-size N] [--datasets synthetic,fashion-mnist] [--repeats N]
#                        [--only allreduce,overlap,scaling,predict]
#
# DIR (report unless given) gets report.html, which needs no other file, and the text, JSON and SVG files that it is made
# of. --quick takes about a minute on 2 cores and shows what a report looks like; its numbers are worth little. Other
# programs that run meanwhile disturb the numbers. Exit status: 0; 1 if a part failed, which the page says.
. "$(dirname "$0")/lib.sh"

quick= out=report ranks=1,2 launcher=mpirun train= rank_batch= batch= datasets= repeats=
only=allreduce,overlap,scaling,predict
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1; shift ;;
        --out | --ranks | --launcher | --train | --batch-per-rank | --batch-size | --datasets | --repeats | --only)
            [ $# -gt 1 ] || { echo "report.sh: $1 needs a value" >&2; exit 2; }
            case $1 in
                --out) out=$2 ;;
                --ranks) ranks=$2 ;;
                --launcher) launcher=$2 ;;
                --train) train=$2 ;;
                --batch-per-rank) rank_batch=$2 ;;
                --batch-size) batch=$2 ;;
                --datasets) datasets=$2 ;;
                --repeats) repeats=$2 ;;
                --only) only=$2 ;;
            esac
            shift 2 ;;
        *) echo "report.sh: unknown argument $1; --help lists them" >&2; exit 2 ;;
    esac
done
if [ -n "$quick" ]; then
    : "${train:=--model lenet}" "${rank_batch:=32}" "${batch:=64}" "${datasets:=synthetic}" "${repeats:=1}"
    sizes=8,4K,64K,1M,16M min_time=0.05 steps=10 warmup=2
else
    : "${train:=--model resnet18-small}" "${rank_batch:=64}" "${batch:=128}" "${datasets:=synthetic,fashion-mnist}"
    : "${repeats:=5}"
    sizes=8,64,512,4K,32K,256K,1M,4M,16M,64M,256M min_time=0.5 steps=30 warmup=5
fi
[[ $ranks =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] ||
    { echo "report.sh: --ranks: found \"$ranks\", expected numbers with commas between them" >&2; exit 2; }
[[ $only =~ ^(allreduce|overlap|scaling|predict)(,(allreduce|overlap|scaling|predict))*$ ]] ||
    { echo "report.sh: --only: found \"$only\", expected some of allreduce,overlap,scaling,predict" >&2; exit 2; }
most=$(tr ',' '\n' <<<"$ranks" | sort -n | tail -n 1)
need_program ddp_bench
need_program ddp_train
bench=$build_dir/ddp_bench
mkdir -p "$out"
page=$out/page.part
failed=0

# A shell hears a signal when its child has ended, unless it waits for it.
running=
stop() {
    [ -z "$running" ] || { kill -TERM "$running" || true; wait "$running" || true; }
    rm -f "$page"
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

# run LOG COMMAND...: with its output in the file.
run() {
    local log=$1 code=0
    shift
    "$@" >"$log" 2>&1 &
    running=$!
    wait "$running" || code=$?
    running=
    return "$code"
}

# ---- the page ----

escape() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g'; }

# The text of a subcommand: paragraphs, and tables of Markdown.
text_to_html() {
    escape | awk '
        /^\|[-:|]+\|$/ { next }
        /^\|/ { if (!table) { print "<table>"; tag = "th" } else tag = "td"
                table = 1; line = $0; sub(/^\| */, "", line); sub(/ *\|$/, "", line); n = split(line, cell, / *\| */)
                printf "<tr>"; for (i = 1; i <= n; i++) printf "<%s>%s</%s>", tag, cell[i], tag; print "</tr>"; next }
        { if (table) print "</table>"; table = 0 }
        NF { print "<p>" $0 "</p>" }
        END { if (table) print "</table>" }'
}

part_failed() {
    failed=1
    { echo '<p class="failed">This part failed:</p><pre>'; tail -n 20 "$out/$name.log" | escape; echo '</pre>'; } >>"$page"
    tail -n 5 "$out/$name.log" >&2
}

# part TITLE NAME WHAT-IT-IS COMMAND...: runs the command with --out, and appends what came of it. before: what runs first.
before=
part() {
    local title=$1 name=$2 what=$3 picture
    shift 3
    echo "report.sh: $title" >&2
    printf '<h2>%s</h2>\n<p>%s</p>\n<pre class="command">%s</pre>\n' "$title" "$what" \
        "$(printf '%q ' "$@" "--out" "$out" | sed "s#$build_dir/##g" | escape)" >>"$page"
    rm -f "$out/$name.svg" "$out/$name"-*.svg # an earlier report's
    if [ -n "$before" ] && ! run "$out/$name.log" $before; then
        part_failed
    elif run "$out/$name.log" "$@" --out "$out"; then
        text_to_html <"$out/$name.txt" >>"$page"
        for picture in "$out/$name.svg" "$out/$name"-*.svg; do
            [ -f "$picture" ] || continue
            sed '/^<?xml/d; /^<!DOCTYPE/d; /^ "http.*svg11.dtd">/d' "$picture" >>"$page"
        done
    else
        part_failed
    fi
}

row() { printf '<tr><th>%s</th><td>%s</td></tr>\n' "$1" "$(escape <<<"$2")"; }

machine() {
    echo '<table class="machine">'
    row 'processor' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
    row 'cores' "$(nproc)"
    row 'memory' "$(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)"
    row 'GPUs' "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c || true)"
    row 'system' "$(. /etc/os-release 2>/dev/null; echo "${PRETTY_NAME:-unknown}, $(uname -sr)")"
    row 'MPI' "$(mpirun --version 2>/dev/null | head -n 1)"
    row 'program' "$("$build_dir/ddp_train" --version)"
    row 'ranks are started by' "$launcher"
    row 'training' "ddp_train $train"
    row 'load when it began' "$(cut -d ' ' -f 1-3 /proc/loadavg) (anything above 0 was disturbed)"
    echo '</table>'
}

{
    cat <<'HTML'
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Data-parallel training on these machines</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 85%; margin: 1em 0; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: right } th { background: #f2f2f2 }
.machine th, .machine td { text-align: left } pre { background: #f6f6f6; padding: 0.6em; overflow-x: auto; font-size: 85% }
svg { max-width: 100%; height: auto } .failed { color: #b00 }
</style></head><body>
<h1>Data-parallel training on these machines</h1>
<p>In data-parallel training every rank (a process with its own cores or GPU) computes the gradient of its part of a batch;
then all ranks add up their gradients, an <em>allreduce</em>, and take the same step. This page says how fast that sum is
here, how much of it hides behind computing, and how much of the time is lost when ranks are added, and to what.</p>
HTML
    printf '<p>Made on %s%s.</p>\n' "$(date -u '+%F %H:%M UTC')" \
        "${quick:+ in the quick form: it shows what a report looks like, and its numbers are worth little}"
    machine
} >"$page"

wanted() { [[ ,$only, == *,$1,* ]]; }

if wanted allreduce; then
    part 'How fast gradients are summed' allreduce \
        'The time of one allreduce by the size of its buffer. On the left a message costs its latency, whatever its size; on
the right bandwidth decides, and the time grows with the size.' \
        $launcher -n "$most" "$bench" allreduce --allreduce auto,ring,tree,rhd --sizes "$sizes" --min-time "$min_time"
fi
if wanted overlap && [ "$most" -gt 1 ]; then
    part 'How much of the sum hides behind computing' overlap \
        'Gradients are summed in buckets, from the last layer to the first, while the backward pass still computes earlier
layers. What is not done when backward ends keeps everybody waiting.' \
        "$bench" overlap --launcher "$launcher" --ranks "$most" --train "$train --batch-per-rank $rank_batch" \
        --steps "$steps" --warmup "$warmup"
fi
if wanted scaling; then
    part 'What is lost when ranks are added' scaling \
        'Weak scaling keeps the batch of each rank and makes the global batch larger; strong scaling keeps the global batch
and gives each rank less of it. With an efficiency of 100 %, n ranks train n times as many samples a second.' \
        "$bench" scaling --launcher "$launcher" --ranks "$ranks" --mode both --batch-per-rank "$rank_batch" \
        --batch-size "$batch" --datasets "$datasets" --train "$train" --steps "$steps" --warmup "$warmup" \
        --repeats "$repeats"
fi
if wanted predict; then
    # One rank, which writes down when its layers' gradients are complete.
    [ ! -f "$out/one/config.ini" ] || rm -rf "$out/one"
    one_rank() {
        exec "$build_dir/ddp_train" --quiet $train --dataset synthetic --batch-per-rank "$rank_batch" --threads 1 \
            --max-steps $((steps + 10)) --bucket-cap-mb auto --eval-every -1 --checkpoint-at-end=no --run-dir "$out/one"
    }
    before=one_rank # see part
    part 'What more ranks would come to' predict \
        "A prediction, not a measurement: from the times of one rank's layers, which ddp_train --bucket-cap-mb auto writes
down, and what links of these rates would carry. The last table says what would help most." \
        "$bench" predict --layers "$out/one/layers.json" --spread "$out/one/metrics.jsonl"
fi

printf '<p>The files beside this page have all numbers as JSON.</p>\n</body></html>\n' >>"$page"
mv "$page" "$out/report.html"
echo "$out/report.html"
exit $failed
