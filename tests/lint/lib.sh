# lib.sh - what the lint scripts share. Sourced, with the tree to look at as $1.
set -euo pipefail
export LC_ALL=C
cd "${1:?the root of the source tree}"
failures=0

# complain TEXT: one violation.
complain() {
    printf '%s\n' "$1"
    failures=$((failures + 1))
}

# C sources and headers below the folders given, without those that somebody else wrote.
sources() {
    find "$@" \( -name '*.c' -o -name '*.h' \) | sort
}

verdict() {
    [ "$failures" -eq 0 ] || { printf '%s violations\n' "$failures"; exit 1; }
}

# without_comments FILE...: their lines as FILE:LINE:TEXT, with comments and the contents of strings blanked.
without_comments() {
    awk 'FNR == 1 { in_comment = 0 }
    {
        out = ""; n = length($0)
        for (i = 1; i <= n; i++) {
            two = substr($0, i, 2); c = substr($0, i, 1)
            if (in_comment) { if (two == "*/") { in_comment = 0; i++ } }
            else if (quote != "") { if (c == "\\") i++; else if (c == quote) { quote = ""; out = out c } }
            else if (two == "/*") { in_comment = 1; i++ }
            else if (two == "//") break
            else { if (c == "\"" || c == "\047") quote = c; out = out c }
        }
        quote = ""; print FILENAME ":" FNR ":" out
    }' "$@"
}
