#!/usr/bin/env bash
# headers.sh ROOT - each public header compiles alone, as C17 and as C++17.
. "$(dirname "$0")/lib.sh"
cxx=${CXX:-g++}
command -v "$cxx" >/dev/null || { echo "skipped: no C++ compiler"; exit 77; }

for header in $(sources include); do
    "${CC:-gcc}" -std=c17 -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only -Iinclude -x c \
        "$header" || complain "$header: does not compile alone as C17"
    "$cxx" -std=c++17 -Wall -Wextra -Werror -fsyntax-only -Iinclude -x c++ "$header" ||
        complain "$header: does not compile alone as C++17"
done
verdict
