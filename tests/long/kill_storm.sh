#!/usr/bin/env bash
# kill_storm.sh [RUNS] [FIRST] - runs with --exact that are killed at a random time and go on, on other
# numbers of ranks, until they are done: each must end with the bits of the undisturbed run.
#
# A third of the kills come at any time from the start of the program on, a third while a checkpoint is
# being written, a third soon after one. One rank is killed, or all of a run at once. A run may be killed
# again after it went on. FIRST is the number that the first run's random choices come from.
. "$(dirname "$0")/../train/lib.sh"
runs=${1:-200}
first=${2:-1}

options=(--model lenet --dataset synthetic --synthetic-train 640 --synthetic-test 64 --batch-size 64
    --logical-ranks 8 --exact --momentum 0.9 --lr 0.01 --ema 0.9 --epochs 3 --checkpoint-every 2 --keep 2)
worlds=(1 2 4 8)
hits=0
in_writing=0
kills_of_run=0

another_world() { echo "${worlds[RANDOM % ${#worlds[@]}]}"; }

# Waits until a checkpoint is half written, or until the run is over.
await_writing() { # DIR LAUNCHER
    until compgen -G "$1/checkpoints/*.tmp-*" >/dev/null; do
        kill -0 "$2" 2>/dev/null || return 0
    done
}
await_checkpoint() { # DIR LAUNCHER STEP: one of a later step is there, or being written
    until [[ $(compgen -G "$1/checkpoints/step-*" | tail -n 1) > "$1/checkpoints/step-$3" ]]; do
        kill -0 "$2" 2>/dev/null || return 0
    done
}

# disturb NAME RANKS: starts or continues the run and kills it. Counts the kills that hit a run.
disturb() {
    local dir=$work/$1 launcher victims code=0 how=$((RANDOM % 3))
    mpirun -np "$2" "$program" "${options[@]}" --quiet --threads 1 --run-dir "$dir" --resume auto \
        >"$work/out" 2>&1 &
    launcher=$!
    case $how in
        0) sleep "$(awk -v r=$RANDOM -v t="$seconds" 'BEGIN { print t * r / 32768 }')" ;;
        1) await_checkpoint "$dir" "$launcher" "$(printf %010d $((2 * (RANDOM % 14))))"
           await_writing "$dir" "$launcher" ;;
        2) await_checkpoint "$dir" "$launcher" "$(printf %010d $((2 * (RANDOM % 14))))" ;;
    esac
    victims=$(pgrep -P "$launcher" -x ddp_train || true)
    [ $((RANDOM % 4)) -eq 0 ] || victims=$(shuf -n 1 <<<"$victims")
    [ -z "$victims" ] || kill -9 $victims 2>/dev/null || true
    wait "$launcher" || code=$?
    compgen -G "$dir/checkpoints/*.tmp-*" >/dev/null && in_writing=$((in_writing + 1))
    [ "$code" -eq 0 ] || kills_of_run=$((kills_of_run + 1))
}

# What the bits of a run are: weights, every loss, the last checkpoint's files.
bits_of() { # NAME
    echo "$(summary "$1" weights_xxh3) $(losses "$1" | cksum)" \
        "$(cat "$work/$1"/checkpoints/step-0000000030/{model,optimizer}.safetensors | cksum)"
}

started=$(date +%s%N)
train whole 2 "${options[@]}"
seconds=$(awk -v ns=$(($(date +%s%N) - started)) 'BEGIN { print ns * 1e-9 }')
want=$(bits_of whole)
for ((run = first; run < first + runs; run++)); do
    RANDOM=$run
    kills_of_run=0
    disturb "run$run" "$(another_world)"
    [ $((RANDOM % 4)) -ne 0 ] || disturb "run$run" "$(another_world)"
    [ "$kills_of_run" -eq 0 ] || hits=$((hits + 1))
    train "run$run" "$(another_world)" "${options[@]}" --resume auto
    equal "run $run: bits" "$(bits_of "run$run")" "$want"
    rm -rf "${work:?}/run$run"
done
echo "$hits of $runs runs were killed before their end, $in_writing kills left a half-written checkpoint"
[ "$hits" -gt 0 ] || fail 'no kill hit a run'
finish
