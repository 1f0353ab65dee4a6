#!/usr/bin/env bash
# sizes.sh ROOT - files of at most 600 lines, public headers of 250, functions of 100.
# Longer functions stand in size_exceptions.txt, one a line: FILE FUNCTION reason.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
command -v ctags >/dev/null || { echo "skipped: ctags is not installed"; exit 77; }

limit_file() { # FILE LIMIT
    local lines
    lines=$(wc -l <"$1")
    [ "$lines" -le "$2" ] || complain "$1: $lines lines, at most $2"
}

for file in $(sources src tests benchmarks) $(find launch tests benchmarks -name '*.sh'); do
    limit_file "$file" 600
done
for file in $(sources include); do limit_file "$file" 250; done

# ctags of the wrong kind would find nothing, and so complain about nothing.
functions=0
while read -r file name first last; do
    functions=$((functions + 1))
    [ $((last - first + 1)) -le 100 ] && continue
    grep -q "^$file $name " "$here/size_exceptions.txt" && continue
    complain "$file:$first: $name has $((last - first + 1)) lines, at most 100"
done < <(sources src tests benchmarks |
    ctags -L - -x --languages=C --langmap=C:.c.h --kinds-C=f --fields=+e \
        --_xformat='%F %N %n %{end}' 2>/dev/null)
[ "$functions" -gt 0 ] || complain "ctags found no function at all"
verdict
