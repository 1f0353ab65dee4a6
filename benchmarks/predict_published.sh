#!/usr/bin/env bash
# predict_published.sh - ddp_bench predict beside efficiencies that others have published.
#
#   benchmarks/predict_published.sh
#
# Inputs, all of them stated here: layers and operations are the networks' own (computed below); a step's time is that
# of the images/s of one GPU, a third of it forward, and within each pass in proportion to operations. Rates marked *
# are from memory of what TensorFlow published for a P100 at batch 64 (ResNet-50 219, ResNet-152 92, VGG-16 154
# images/s); ResNet-101's is interpolated between its neighbours by operations. Links carry 90 % of their rate, a
# message between hosts takes 20 us, one inside a host 10 us at 10 GB/s, computing spreads by 2 %: assumptions, not
# figures of those clusters. Buckets are the systems' own sizes.
. "$(dirname "$0")/lib.sh"
need_program ddp_bench
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# layers MODEL IMAGES_PER_S BATCH: layers.json on standard output.
layers() {
    awk -v model="$1" -v rate="$2" -v batch="$3" '
    function add(params, ops) { n++; p[n] = params; f[n] = ops; total += ops }
    function conv(cin, cout, k, side, norm) {
        add(k * k * cin * cout + (norm ? 2 : 1) * cout, k * k * cin * cout * side * side)
    }
    function stage(blocks, cin, width, side, b) {
        for (b = 0; b < blocks; b++) {
            if (b == 0) conv(cin, 4 * width, 1, side, 1)
            conv(b == 0 ? cin : 4 * width, width, 1, side, 1)
            conv(width, width, 3, side, 1)
            conv(width, 4 * width, 1, side, 1)
        }
    }
    function resnet(third) {
        conv(3, 64, 7, 112, 1)
        stage(3, 64, 64, 56); stage(4, 256, 128, 28); stage(third, 512, 256, 14); stage(3, 1024, 512, 7)
        add(2048 * 1000 + 1000, 2048 * 1000)
    }
    function vgg(i, c, list, part) {
        c = split("3,64,224 64,64,224 64,128,112 128,128,112 128,256,56 256,256,56 256,256,56 256,512,28 512,512,28 " \
                  "512,512,28 512,512,14 512,512,14 512,512,14", list, " ")
        for (i = 1; i <= c; i++) { split(list[i], part, ","); conv(part[1], part[2], 3, part[3], 0) }
        add(25088 * 4096 + 4096, 25088 * 4096); add(4096 * 4096 + 4096, 4096 * 4096); add(4096 * 1000 + 1000, 4096 * 1000)
    }
    BEGIN {
        if (model == "vgg16") vgg(); else resnet(model == "resnet101" ? 23 : 6)
        seconds = batch / rate
        printf "{\"model\":\"%s\",\"forward\":%.9f,\"backward\":%.9f,\"update_per_byte\":0,\"layers\":[", model,
            seconds / 3, seconds * 2 / 3 * 1.000001
        for (i = n; i >= 1; i--) {
            done += f[i]
            printf "%s{\"bytes\":%d,\"ready\":%.9f}", i < n ? "," : "", 4 * p[i], seconds * 2 / 3 * done / total
        }
        print "]}"
    }'
}

# row TEXT PUBLISHED BASE MODEL RATE BATCH RANKS ARGUMENT...: efficiency of RANKS ranks over that of BASE ranks.
row() {
    local text=$1 published=$2 base=$3 model=$4 rate=$5 batch=$6 ranks=$7
    shift 7
    layers "$model" "$rate" "$batch" >"$work/layers.json"
    "$build_dir/ddp_bench" predict --layers "$work/layers.json" --ranks "$base,$ranks" --latency-us 20 \
        --local-latency-us 10 --local-gbs 10 --spread 0.02 --out "$work/out" "$@" >/dev/null
    tr ',{}' '\n' <"$work/out/predict.json" | sed -n 's/^ *"efficiency": *//p' | head -n 2 | tr '\n' ' ' |
        awk -v text="$text" -v published="$published" '{
            printf "| %s | %s | %.0f %% |\n", text, published, $2 / $1 * 100 }'
}

echo "| run | published | predicted |"
echo "|---|---|--:|"
horovod="--ranks-per-host 4 --links 25 --algorithm ring --first-bucket-mb 64 --bucket-cap-mb 64"
row "Horovod, ResNet-101, 512 P100, 25 Gbit/s, batch 64" "90 %" 1 resnet101 129 64 512 $horovod
row "Horovod, VGG-16, 512 P100, 25 Gbit/s, batch 64" "68 %" 1 vgg16 154 64 512 $horovod
row "ImageNet in 1 hour, ResNet-50, 8 to 256 P100, 50 Gbit/s, batch 32" "~90 %" 8 resnet50 219 32 256 \
    --ranks-per-host 8 --links 50 --algorithm rhd --two-levels --first-bucket-mb 1 --bucket-cap-mb 1
row "PyTorch DDP, ResNet-50, 256 V100, 100 Gbit/s, batch 32 (from memory)" "~50 %" 1 resnet50 350 32 256 \
    --ranks-per-host 8 --links 100 --algorithm ring --first-bucket-mb 1 --bucket-cap-mb 25
