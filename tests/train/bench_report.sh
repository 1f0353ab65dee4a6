#!/usr/bin/env bash
# bench_report.sh - benchmarks/report.sh makes one page that needs no other file, and says what has failed.
. "$(dirname "$0")/bench_lib.sh"
report=$(dirname "$0")/../../benchmarks/report.sh
export DDP_BUILD
DDP_BUILD=$(dirname "$bench")

# page FILE: its tags match, and nothing is loaded from elsewhere. Prints how many tables, pictures and failures there are.
page() {
    python3 - "$1" <<'PY'
import sys
from html.parser import HTMLParser
counts, stack = {}, []
class Page(HTMLParser):
    def handle_starttag(self, tag, attrs):
        counts[tag] = counts.get(tag, 0) + 1
        for name, value in attrs:
            if name == "src" or (name in ("href", "xlink:href") and not value.startswith("#")):
                sys.exit("%s of %s is %s" % (name, tag, value))
            if (name, value) == ("class", "failed"):
                counts["failed"] = counts.get("failed", 0) + 1
        if tag not in ("meta", "br"):
            stack.append(tag)
    def handle_startendtag(self, tag, attrs):
        pass
    def handle_endtag(self, tag):
        if not stack or stack.pop() != tag:
            sys.exit("</%s> closes another tag" % tag)
Page().feed(open(sys.argv[1], encoding="utf-8").read())
if stack:
    sys.exit("open at the end: %s" % stack)
print(counts.get("h2", 0), counts.get("table", 0), counts.get("svg", 0), counts.get("failed", 0))
PY
}

pictures=4
command -v gnuplot >/dev/null || pictures=0
model='--model mlp --mlp-widths 16 --synthetic-train 4096'
"$report" --quick --ranks 1 --train "$model" --out "$work/page" >"$work/said" 2>"$work/err" || fail "report: $(cat "$work/err")"
equal 'what report.sh prints' "$(cat "$work/said")" "$work/page/report.html"
equal 'headings, tables, pictures, failures' "$(page "$work/page/report.html" 2>&1)" "3 6 $pictures 0"
grep -qF 'ddp_bench scaling --launcher mpirun --ranks 1' "$work/page/report.html" && pass || fail 'the command is not shown'

code=0
"$report" --quick --only scaling --ranks 1 --train '--model no-such<model>' --out "$work/bad" >"$work/said" 2>"$work/err" || code=$?
equal 'exit status with a part that failed' "$code" 1
equal 'headings, tables, pictures, failures' "$(page "$work/bad/report.html" 2>&1)" "1 1 0 1"
rm -rf "$(sed -n 's/^ddp_bench: logs of the runs are in //p' "$work/bad/scaling.log")"
# The cause, and not that a file is missing.
code=0
"$report" --quick --only predict --ranks 1 --train '--model no-such<model>' --out "$work/bad" >"$work/said" 2>"$work/err" || code=$?
equal 'exit status without the times of one rank' "$code" 1
grep -q 'no-such&lt;model' "$work/bad/report.html" && grep -q 'no-such<model' "$work/err" && pass || fail "no cause: $(cat "$work/err")"
for words in '--ranks 0' '--ranks abc' '--ranks 1,,2' '--only nothing'; do
    code=0
    "$report" --quick $words --out "$work/none" >"$work/said" 2>"$work/err" || code=$?
    equal "exit status with $words" "$code" 2
done
[ ! -e "$work/none" ] && pass || fail 'a folder is made in spite of wrong arguments'

# A signal ends what runs.
printf '#!/bin/sh\necho $$ >"%s/sleeper"\nexec sleep 1000\n' "$work" >"$work/sleep"
chmod +x "$work/sleep"
"$report" --only overlap --train '--model mlp --mlp-widths 16 --synthetic-train 4096 --batch-per-rank 16' --ranks 2 \
    --launcher "$work/sleep" --out "$work/stopped" >"$work/said" 2>"$work/err" &
pid=$!
code=0
for _ in $(seq 100); do [ -s "$work/sleeper" ] && break; sleep 0.1; done
[ -s "$work/sleeper" ] && pass || fail "nothing runs: $(cat "$work/err")"
kill -TERM "$pid"
wait "$pid" || code=$?
equal 'exit status after TERM' "$code" 143
kill -0 "$(cat "$work/sleeper")" 2>/dev/null && fail 'what the report started still runs' || pass
[ ! -e "$work/stopped/page.part" ] && pass || fail 'half a page is left'
code=0
"$report" --quick --rank 1 >"$work/said" 2>"$work/err" || code=$?
equal 'exit status with a wrong argument' "$code" 2
finish
