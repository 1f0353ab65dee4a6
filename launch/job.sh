# shellcheck shell=bash
# job.sh - runs a launcher that signals to the script ask to stop. Sourced by mpirun.sh and run_restarts.sh.

job='' stopping='' stopping_since=0 passed=''

say() { echo "$(basename "$0"): $*" >&2; }

# Words for a shell that is not bash.
quote_words() {
    local word
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then printf '%s ' "$word"
        else printf "'%s' " "${word//\'/\'\\\'\'}"; fi
    done
}

# to_job SIGNAL
to_job() { [ -z "$job" ] || kill -s "$1" "$job" 2>/dev/null || true; }

# ask SIGNAL: the ranks are to save and to stop; on another one they end. What comes within half a second is the same
# one: timeout, and schedulers, send it to the script and to its group.
ask() {
    local now=${EPOCHREALTIME:-$SECONDS.000000}
    now=${now/[.,]/}
    if [ -n "$stopping" ] && [ "$1" != USR1 ]; then
        [ $((now - stopping_since)) -lt 500000 ] || to_job TERM
        return 0
    fi
    stopping=$1 stopping_since=$now passed=$job
    say 'asks the ranks to save and to stop; the next signal ends them at once'
    to_job USR1
}

catch_signals() {
    local signal
    # shellcheck disable=SC2064 # its name
    for signal in TERM INT HUP USR1; do trap "ask $signal" "$signal"; done
    trap 'to_job USR2' USR2
}

# run_job GRACE COMMAND...: under watch.sh, in a session of its own: Ctrl-C is for the script alone. Sets code.
run_job() {
    local grace=$1
    shift
    DDP_WATCH_PARENT=$$ setsid sh "$here/watch.sh" "$grace" "exec $(quote_words "$@")" &
    job=$!
    [ -z "$stopping" ] || [ -n "$passed" ] || to_job USR1
    # A signal ends wait before the job has ended.
    wait "$job" || true
    while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done
    code=0
    wait "$job" || code=$?
    job=''
}
