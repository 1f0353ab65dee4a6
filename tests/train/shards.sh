#!/usr/bin/env bash
# Folders of JPEG and PNG files, packed by ddp_pack, train: with the same curve on one rank and on two,
# with images of one size and of many. Damage ends the run on all ranks, with the shard's name.
. "$(dirname "$0")/lib.sh"
pack=$(dirname "$program")/ddp_pack
images=${DDP_MAKE_IMAGES:?the path of make_images}

# pack_set NAME HEIGHT WIDTH VARY: $work/NAME with train/ and test/.
pack_set() {
    local split count=16
    for split in train test; do
        mkdir -p "$work/$1.in/$split"
        "$images" "$work/$1.in/$split" 4 "$count" "$2" "$3" "$4"
        "$pack" --quiet --input "$work/$1.in/$split" --output "$work/$1/$split" --shard-mb 1 ||
            fail "packing $1/$split"
        count=5
    done
}
pack_set equal 32 32 0
pack_set mixed 90 80 50
[ -e "$work/mixed/train/shard-00001.ddp" ] && pass || fail 'one shard only'

common=(--model lenet --dataset shards --batch-size 16 --max-steps 2)
train equal-1 1 "${common[@]}" --data-dir "$work/equal" --verify-data
train equal-2 2 "${common[@]}" --data-dir "$work/equal" --verify-data
same_curve equal-2 equal-1 2 1e-5
equal 'test samples' "$(summary equal-2 test_samples)" 20
train mixed-1 1 "${common[@]}" --data-dir "$work/mixed" --input-size 32
train mixed-2 2 "${common[@]}" --data-dir "$work/mixed" --input-size 32 --workers 2
same_curve mixed-2 mixed-1 2 1e-5

# A test split whose images all happen to have one size, beside training images that differ.
mkdir "$work/both"
ln -s "$work/mixed/train" "$work/both/train"
ln -s "$work/equal/test" "$work/both/test"
train both 1 "${common[@]}" --data-dir "$work/both" --input-size 32

printf '\x7f' | dd of="$work/mixed/train/shard-00001.ddp" bs=1 seek=100000 conv=notrunc status=none
refused 1 'train/shard-00001.ddp: has the checksum' 2 "${common[@]}" --data-dir "$work/mixed" --verify-data
truncate -s 90000 "$work/mixed/train/shard-00001.ddp"
refused 1 'train/shard-00001.ddp: the file has 90000 bytes' 2 "${common[@]}" --data-dir "$work/mixed"
mv "$work/equal.in/test/class-00" "$work/equal.in/test/other"
rm -r "$work/equal/test"
"$pack" --quiet --input "$work/equal.in/test" --output "$work/equal/test"
refused 1 'class 0 of the test samples is "class-01", expected "class-00"' 2 "${common[@]}" \
    --data-dir "$work/equal"
rm "$work/equal/train/MANIFEST.json"
refused 1 'equal/train/MANIFEST.json; --data-dir names a folder' 2 "${common[@]}" --data-dir "$work/equal"
finish
