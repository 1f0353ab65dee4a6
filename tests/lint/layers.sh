#!/usr/bin/env bash
# layers.sh ROOT - every include of ours goes to the own folder or to one that src/LAYERS allows.
. "$(dirname "$0")/lib.sh"

declare -A may owner
while IFS=: read -r folder headers allowed; do
    folder=${folder// /}
    case $folder in '' | '#'*) continue ;; esac
    may[$folder]=" $allowed $folder "
    for header in $headers; do owner[$header]=$folder; done
done <src/LAYERS

check_include() { # FILE LINE FOLDER INCLUDED
    local target
    case $4 in
        ddp/*) target=$(basename "$4" .h); target=${owner[$target]:-} ;;
        */*) target=${4%%/*} ;;
        *) target=$3 ;;
    esac
    if [ -z "$target" ]; then
        complain "$1:$2: no folder of src/LAYERS owns $4"
    elif [[ ${may[$3]} != *" $target "* ]]; then
        complain "$1:$2: $3 may not include $4, which belongs to $target"
    fi
}

while IFS=: read -r file line text; do
    folder=${file#src/}
    folder=${folder%%/*}
    if [ -z "${may[$folder]:-}" ]; then
        complain "$file: folder $folder is not listed in src/LAYERS"
        continue
    fi
    included=${text#*\"}
    check_include "$file" "$line" "$folder" "${included%%\"*}"
done < <(sources src | xargs grep -nH '^[[:space:]]*#[[:space:]]*include[[:space:]]*"')

# A public header may only include what its own folder may.
while IFS=: read -r file line text; do
    name=$(basename "$file" .h)
    [ -n "${owner[$name]:-}" ] || { complain "$file: no folder of src/LAYERS owns it"; continue; }
    included=${text#*\"}
    check_include "$file" "$line" "${owner[$name]}" "${included%%\"*}"
done < <(sources include | xargs grep -nH '^[[:space:]]*#[[:space:]]*include[[:space:]]*"')
verdict
