#!/usr/bin/env bash
# CIFAR-10 and CIFAR-100 files train, with the same curve on one rank and on two.
. "$(dirname "$0")/lib.sh"

# records FILE COUNT HEAD: COUNT records of a head in printf's escapes, a label and pixels.
records() {
    local i
    for ((i = 0; i < $2; i++)); do
        printf "$3\\x0$((i % 10))"
        awk -v seed="$i" 'BEGIN { for (i = 0; i < 3072; i++) {
            seed = (seed * 421 + 1663) % 7875; printf "%c", 32 + seed % 95 } }'
    done >"$1"
}
mkdir "$work/ten" "$work/hundred"
for i in 1 2 3 4 5; do records "$work/ten/data_batch_$i.bin" 8 ''; done
records "$work/ten/test_batch.bin" 10 ''
printf '%s\n' airplane automobile bird cat deer dog frog horse ship truck '' >"$work/ten/batches.meta.txt"
records "$work/hundred/train.bin" 30 '\x05'
records "$work/hundred/test.bin" 10 '\x05'
seq -f 'class %g' 100 >"$work/hundred/fine_label_names.txt"

for set in ten:cifar10 hundred:cifar100; do
    options=(--model lenet --dataset "${set#*:}" --data-dir "$work/${set%:*}" --batch-size 20 --max-steps 2)
    train "${set%:*}-1" 1 "${options[@]}"
    train "${set%:*}-2" 2 "${options[@]}" --augment crop:4,flip
    train "${set%:*}-3" 1 "${options[@]}" --augment crop:4,flip
    same_curve "${set%:*}-2" "${set%:*}-3" 2 1e-5
    equal "test samples of ${set#*:}" "$(summary "${set%:*}-1" test_samples)" 10
done

printf 'x' >>"$work/ten/data_batch_2.bin"
refused 1 'data_batch_2.bin: the file has 24585 bytes, expected' 2 --dataset cifar10 --data-dir "$work/ten"
finish
