#!/usr/bin/env bash
# launch/mpirun.sh: the right flags for each mpirun, slots from GPUs or cores, interfaces from a subnet, refusals;
# a run that is asked to stop, and one whose mpirun stays behind. Fake mpiruns and a fake ssh record what they get.
. "$(dirname "$0")/lib.sh"
launch_dir=$(cd "$(dirname "$0")/../../launch" && pwd)
script=$launch_dir/mpirun.sh
here=$(uname -n)

# fake NAME VERSION: an mpirun that has this version and prints its arguments, one a line.
fake() {
    mkdir -p "$work/$1"
    cat >"$work/$1/mpirun" <<END
#!/bin/sh
if [ "\$1" = --version ]; then echo '$2'; exit; fi
printf '%s\n' "\$@"
END
    chmod +x "$work/$1/mpirun"
}
fake ompi4 'mpirun (Open MPI) 4.1.4'
fake ompi5 'mpirun (Open MPI) 5.0.3'
fake mpich 'HYDRA build details:
    Version:                                 4.0.2'
fake other 'Some MPI 1.0'

# An ssh that tells of hosts: gpu* have 8 GPUs, others none, 16 cores each; far does not answer.
cat >"$work/ssh" <<'END'
#!/bin/sh
case $1 in
    far) echo 'no route to far' >&2; exit 255 ;;
    mute) echo 'welcome'; exit ;;
    gpu*) echo "gpus 8" ;;
    *) echo "gpus 0" ;;
esac
echo "cores 16"
echo "address lo 127.0.0.1/8"
echo "address docker0 172.17.0.1/16"
case $1 in
    odd*) echo "address ens3 10.1.0.7/16" ;;
    *) echo "address eth1 10.1.2.3/16" ;;
esac
END
chmod +x "$work/ssh"
export DDP_RSH="$work/ssh"
unset SLURM_JOB_ID NCCL_SOCKET_IFNAME
printf '# two hosts\n\na slots=2\nb slots=3 max_slots=4 # more\n' >"$work/given"
printf 'a:2\nb:3\n' >"$work/colons"
printf 'gpu0\ngpu1 slots=4\n' >"$work/gpus"
printf 'c\nd\n' >"$work/plain"

# words NAME ARGUMENTS...: the words that this mpirun gets, one a line.
words() {
    local name=$1
    shift
    PATH=$work/$name:$PATH "$script" "$@" 2>"$work/err" | tail -n +2
}

# has WHAT WORDS EXPECTED...: these follow each other in there.
has() {
    local what=$1 found=$2
    shift 2
    case " $(tr '\n' ' ' <<<"$found")" in *" $* "*) pass ;; *) fail "$what: \"$*\" is not in: $found; $(cat "$work/err")" ;; esac
}
lacks() {
    case $2 in *"$3"*) fail "$1: \"$3\" is in: $2" ;; *) pass ;; esac
}

for kind in ompi4 ompi5; do
    found=$(words $kind --hostfile "$work/given" prog --word 'a b')
    has "$kind" "$found" --host a:2,b:3 -np 5 --bind-to none
    equal "$kind: last word" "$(tail -n 1 <<<"$found")" 'a b'
    lacks "$kind" "$found" tree_spawn
    has "$kind, colons" "$(words $kind --hostfile "$work/colons" -np 4 prog)" --host a:2,b:3 -np 4
    has "$kind, cores" "$(words $kind --hostfile "$work/plain" prog)" --host c:16,d:16 -np 32
    has "$kind, GPUs" "$(words $kind --hostfile "$work/gpus" prog)" --host gpu0:8,gpu1:4 -np 12
    found=$(words $kind --hostfile "$work/given" --subnet 10.1.0.0/16 prog)
    has "$kind, subnet" "$found" --mca btl_tcp_if_include 10.1.0.0/16
    has "$kind, subnet" "$found" -x NCCL_SOCKET_IFNAME==eth1
    has "$kind, variable" "$(OMP_NUM_THREADS=2 words $kind --hostfile "$work/given" -x A=1 prog)" -x OMP_NUM_THREADS -x A=1 prog
    has "$kind, here" "$(words $kind --oversubscribe -np 99 prog)" --host "$here:$(nproc)" -np 99
    lacks "$kind, here" "$(words $kind prog)" agent
    seq -f 'h%g slots=1' 65 >"$work/many"
    words $kind --hostfile "$work/many" prog >"$work/words-$kind"
done
found=$(words ompi4 --hostfile "$work/given" --subnet 10.1.0.0/16 --oversubscribe prog)
has ompi4 "$found" --mca plm_rsh_agent "$launch_dir/agent.sh"
has ompi4 "$found" --mca oob_tcp_if_include 10.1.0.0/16
has ompi4 "$found" --oversubscribe
has ompi4 "$(cat "$work/words-ompi4")" --mca plm_rsh_no_tree_spawn 1
found=$(words ompi5 --hostfile "$work/given" --subnet 10.1.0.0/16 --oversubscribe prog)
has ompi5 "$found" --prtemca plm_ssh_agent "$launch_dir/agent.sh"
has ompi5 "$found" --prtemca prte_if_include 10.1.0.0/16
has ompi5 "$found" --map-by :OVERSUBSCRIBE
has ompi5 "$(cat "$work/words-ompi5")" --prtemca plm_ssh_no_tree_spawn 1

found=$(words mpich --hostfile "$work/given" --subnet 10.1.0.0/16 -x A=1 prog)
has mpich "$found" -hosts a:2,b:3 -n 5 -launcher ssh -launcher-exec "$launch_dir/agent.sh" -iface eth1
has mpich "$found" -genv NCCL_SOCKET_IFNAME =eth1 -genv A 1 prog

printf 'c slots=1\nodd slots=1\n' >"$work/odd"
has 'two names' "$(words ompi4 --hostfile "$work/odd" --subnet 10.1.0.0/16 prog)" -x NCCL_SOCKET_IFNAME==eth1,ens3
export NCCL_SOCKET_IFNAME=^docker0
lacks 'a variable of the user' "$(words ompi4 --hostfile "$work/given" --subnet 10.1.0.0/16 prog)" ==
grep -q 'only excludes' "$work/err" && pass || fail "no warning of an exclusion: $(cat "$work/err")"
unset NCCL_SOCKET_IFNAME
has 'in a Slurm job' "$(SLURM_JOB_ID=1 SLURM_NTASKS=6 words ompi4 prog)" -np 6 --bind-to none
lacks 'in a Slurm job' "$(SLURM_JOB_ID=1 SLURM_NTASKS=6 words ompi4 prog)" --host

# What is printed is what runs, and is all that happens with --dry-run.
printed=$(PATH=$work/ompi4:$PATH "$script" --dry-run --hostfile "$work/given" prog "it's" '$x')
equal 'the printed command' "$(PATH=$work/ompi4:$PATH bash -c "$printed")" "$(words ompi4 --hostfile "$work/given" prog "it's" '$x')"

# Launchers cut the agent's path at blanks.
mkdir "$work/my files"
cp "$launch_dir"/*.sh "$work/my files"
agent=$(script="$work/my files/mpirun.sh" words ompi4 --hostfile "$work/given" prog | grep 'agent.sh$')
case $agent in *' '*) fail "a blank in: $agent" ;; *) pass ;; esac
if [ -e "$(dirname "$agent")" ]; then fail "$(dirname "$agent") is left"; else pass; fi

# no KIND TEXT ARGUMENTS...: refused with status 2, for this reason.
no() {
    local kind=$1 text=$2 code=0
    shift 2
    PATH=$work/$kind:$PATH "$script" "$@" >"$work/out" 2>"$work/err" || code=$?
    equal "status of: $*" "$code" 2
    if grep -qF -- "$text" "$work/err"; then pass; else fail "$*: no \"$text\" in: $(cat "$work/err")"; fi
}
echo 'a slots=x' >"$work/bad"
printf 'a slots=1\nfar\n' >"$work/far"
no ompi4 'bad:1: found "a slots=x"' --hostfile "$work/bad" prog
no ompi4 'host far does not answer: no route to far' --hostfile "$work/far" prog
no ompi4 '10.9.0.0/16: host a has no address there: lo 127.0.0.1/8' --hostfile "$work/given" --subnet 10.9.0.0/16 prog
no ompi4 'found 6, expected at most 5' --hostfile "$work/given" -np 6 prog
for net in eth0 10.1.0.0 10.1.0.0/33 10.1.0.0/0 10.257.0.0/16 10.01.0.0/16; do
    no ompi4 "--subnet: found \"$net\"" --subnet "$net" prog
done
no ompi4 'no program' --hostfile "$work/given"
no other 'found "Some MPI 1.0"' prog
no ompi4 'none --version failed' --mpirun none prog
no ompi4 '-np: found "99999999999999999999"' --oversubscribe -np 99999999999999999999 prog
no ompi4 'host mute does not tell of its cores: welcome' --hostfile <(echo mute) prog
SLURM_JOB_ID=1 no ompi4 '-np: is missing' prog
equal 'words of help' "$("$script" --help | grep -c -- '^  --subnet NET/BITS ')" 1
no mpich 'found eth1,ens3' --hostfile "$work/odd" --subnet 10.1.0.0/16 prog

# A real run: its status; and asked to stop, it saves and ends with 3.
model=(--dataset synthetic --synthetic-train 480 --synthetic-test 48 --model mlp --mlp-widths 64 --batch-size 48 --quiet
    --threads 1 --epochs 100000 --eval-every 0)
code=0
"$script" -np 2 --oversubscribe "$program" "${model[@]}" --lr x --run-dir "$work/wrong" >"$work/out" 2>&1 || code=$?
equal 'status of wrong options' "$code" 2

# ended NAME SECONDS: the script, job, saves and ends in that time, with status 3.
ended() {
    local code=0
    for _ in $(seq $(($2 * 20))); do kill -0 $job 2>/dev/null || break; sleep 0.05; done
    kill -9 $job 2>/dev/null && fail "$1: was still there after $2 s: $(cat "$work/err")"
    wait $job || code=$?
    equal "$1: status" "$code" 3
    equal "$1: the run" "$(cat "$work/$1/status")" stopped
}
"$script" -np 2 --oversubscribe "$program" "${model[@]}" --run-dir "$work/told" >"$work/out" 2>"$work/err" &
job=$!
reach told 6 || true
kill -TERM $job
sleep 0.05
kill -TERM $job # as timeout does, which is not to be the second signal
ended told 60

# Asked before there are ranks: mpirun would pass USR1 to nobody, and ranks die of it that do not catch it yet.
mkdir "$work/late"
cat >"$work/late/mpirun" <<END
#!/bin/bash
[ "\$1" = --version ] && exec $(command -v mpirun) --version
touch "$work/late/started"
exec $(command -v mpirun) "\$@"
END
chmod +x "$work/late/mpirun"
PATH=$work/late:$PATH "$script" -np 2 --oversubscribe "$program" "${model[@]}" --run-dir "$work/early" \
    >"$work/out" 2>"$work/err" &
job=$!
until [ -e "$work/late/started" ]; do sleep 0.01; done
sleep 0.1
kill -TERM $job
ended early 60

# An mpirun that does not end when its rank has: watch.sh ends it.
mkdir -p "$work/stuck"
cat >"$work/stuck/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
trap '' TERM
OMPI_COMM_WORLD_RANK=0 sleep 5
echo $$ >"$0.pid"
while :; do sleep 0.1; done
END
chmod +x "$work/stuck/mpirun"
code=0
PATH=$work/stuck:$PATH timeout 120 "$script" --grace 1 prog >"$work/out" 2>"$work/err" || code=$?
equal 'status of a launcher that stays' "$code" 1
grep -q "^$here: mpirun was still there" "$work/err" && pass || fail "no word of it: $(cat "$work/err")"
kill -0 "$(cat "$work/stuck/mpirun.pid")" 2>/dev/null && fail 'the launcher is still there' || pass

# A watch that is killed does not leave its process.
sh "$launch_dir/watch.sh" 1 "exec sleep 300 # $work" &
job=$!
until left=$(cat /proc/$job/task/*/children) && [ "$(wc -w <<<"$left")" -eq 2 ]; do sleep 0.05; done
kill -9 $job
for pid in $left; do
    gone "$pid" && pass || fail 'a process is left of a watch that was killed'
done
finish
