#!/usr/bin/env bash
# launch/: the container's packages are those of packages.sh, the job's options are ddp_train's, host lists can be read.
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/launch/packages.sh"
. "$root/launch/hosts.sh"

found=$(sed -n '/--no-install-recommends/,/^    rm/p' "$root/launch/ddp_train.def" | sed '1d;$d' | tr -d '\\' | tr -s ' ' '\n' | grep . | sort)
equal 'packages of ddp_train.def' "$found" "$(printf '%s\n' "${build_packages[@]}" dataset-fashion-mnist | sort)"
equal 'cmake in ddp_train.def' "$(grep -o '\-G Ninja.*' "$root/launch/ddp_train.def")" \
    "$(grep -o '\-G Ninja.*' "$root/launch/quickstart.sh")"
for file in ddp_train.def mpijob.yaml; do
    if head -n 5 "$root/launch/$file" | grep -q 'Not run here'; then pass; else fail "$file does not say that it was not run"; fi
done
for file in "$root"/hostfiles/*; do
    if read_hosts "$file"; then pass; else fail "$file cannot be read"; fi
done
# Scripts for users say what they are, and start nothing for that.
for script in "$root"/launch/{quickstart,mpirun,run_restarts}.sh "$root"/launch/*.sbatch "$root"/benchmarks/*.sh "$root/tests/run.sh"; do
    [ -x "$script" ] || continue
    name=$(basename "$script")
    if timeout 20 "$script" --help >"$work/out" 2>&1 </dev/null && grep -q "^$name - " "$work/out" &&
        grep -qE "^ +(\./|sbatch |launch/|benchmarks/|tests/)" "$work/out" && ! grep -qE '^(#|shellcheck|set )' "$work/out"; then
        pass
    else
        fail "$name --help: $(head -n 3 "$work/out")"
    fi
done
for script in "$root"/launch/*.sbatch; do
    code=0
    env -u SLURM_JOB_ID "$script" --model lenet >"$work/out" 2>&1 || code=$?
    if [ $code -eq 2 ] && grep -q 'this is no Slurm job, expected: sbatch' "$work/out"; then pass
    else fail "$(basename "$script") outside a job: status $code: $(head -n 3 "$work/out")"; fi
done

# Submitted from another folder.
code=0
(cd "$work" && env -u DDP_TRAIN SLURM_JOB_ID=1 "$root/launch/slurm_train.sbatch" --model lenet) >"$work/out" 2>&1 || code=$?
if [ $code -eq 2 ] && grep -q 'DDP_TRAIN: found build/ddp_train, expected a program' "$work/out"; then pass
else fail "slurm_train.sbatch without a program: status $code: $(head -n 3 "$work/out")"; fi

# reads TEXT HOSTS: as printf writes it; NAME:SLOTS of each host.
reads() {
    printf -- "$1" >"$work/list"
    read_hosts "$work/list" 2>"$work/err" || fail "$1: $(cat "$work/err")"
    equal "$1" "$(for i in "${!hosts[@]}"; do printf '%s:%s ' "${hosts[i]}" "${slots[i]}"; done)" "$2 "
}
reads 'a\r\n\r\n# more\r\nb slots=2\r\n' 'a: b:2'
reads '\xef\xbb\xbfa\n' 'a:'
reads '\t a slots = 2  max-slots = 3 # x\n10.0.0.1:3 ' 'a:2 10.0.0.1:3'
reads 'a\nb\na\na' 'a:3 b:'
reads 'a slots=2\nb:1\na:3\n' 'a:5 b:1'
for line in 'a slots=0' 'a slots=' 'a slots=100000' 'a 2' 'a:' '::1' '-v' 'a;b' 'me@a'; do
    code=0
    read_hosts <(printf 'x\n\n%s\n' "$line") 2>"$work/err" || code=$?
    equal "$line" "$code $(grep -cF ":3: found \"$line\", expected" "$work/err")" '2 1'
done
for file in "$work/none" "$work" /dev/null; do
    code=0
    read_hosts "$file" 2>"$work/err" || code=$?
    equal "$file" "$code $(grep -c . "$work/err")" '2 1'
done

# Slurm's programs; to be queued again ends the job. An mpirun that crashes before there is a run directory.
mkdir "$work/bin"
for name in squeue sbatch srun; do printf '#!/bin/sh\n' >"$work/bin/$name"; done
printf '#!/bin/sh\nexit 139\n' >"$work/bin/mpirun"
cat >"$work/bin/scontrol" <<'END'
#!/bin/sh
case $1 in
    requeue) echo 'queued again'; kill -9 $PPID ;;
    *) echo 'Restarts=0' ;;
esac
END
chmod +x "$work/bin"/*
# job CODE PATTERN NAME=VALUE...: a life of a job ends so.
job() {
    local want=$1 pattern=$2 code=0
    shift 2
    (env PATH="$work/bin:$PATH" SLURM_JOB_ID=1 SLURM_JOB_NAME=x SLURM_JOB_NUM_NODES=2 SLURM_CPUS_ON_NODE=2 \
        SLURM_JOB_NODELIST=n SLURM_JOB_END_TIME=1 LAUNCHER=mpirun DDP_TRAIN=true RUN_DIR="$work/job" "$@" \
        "$root/launch/$slurm_script.sbatch" --out "$work/report" >"$work/out" 2>&1; exit $?) 2>/dev/null || code=$?
    if [ "$code" -eq "$want" ] && grep -qE "$pattern" "$work/out"; then pass; else fail "job: $*: $code: $(cat "$work/out")"; fi
}
slurm_script=slurm_train
for _ in 1 2 3; do job 137 'queued again'; done
job 139 'failed 4 times in a row without saving anything new: no more'
job 2 'run directory: /dev/null/a cannot be written' RUN_DIR=/dev/null/a
mkdir -p "$work/full/slurm_idle"
job 139 'takes no files any more: is not queued again' RUN_DIR="$work/full"
job 2 'RANKS_PER_NODE: found many, expected a number' RANKS_PER_NODE=many
job 2 'RANKS_PER_NODE: found 0, expected' RANKS_PER_NODE=0
job 2 'RESTARTS: found -1, expected' RESTARTS=-1
job 2 'ntasks: found 3, expected as many on each of 2 nodes' SLURM_NTASKS=3
job 137 ' 6 ranks on n,' SLURM_NTASKS=6 RUN_DIR="$work/six"
slurm_script=slurm_scaling
job 0 ' 1,2,3,6 ranks on n ' SLURM_NTASKS=6 REPORT=true
job 2 'RANKS_PER_NODE: found many, expected a number' RANKS_PER_NODE=many REPORT=true

python=$(for p in python3 /usr/bin/python3; do "$p" -c 'import yaml' 2>/dev/null && echo "$p" && break; done || true)
if [ -n "$python" ]; then
    "$python" - "$root/launch/mpijob.yaml" >"$work/words" 2>"$work/err" <<'END' || fail "mpijob.yaml: $(cat "$work/err")"
import sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
spec = job["spec"]
roles = spec["mpiReplicaSpecs"]
assert set(roles) == {"Launcher", "Worker"} and roles["Launcher"]["replicas"] == 1
pods = {name: role["template"]["spec"] for name, role in roles.items()}
words = pods["Launcher"]["containers"][0]["command"] + pods["Launcher"]["containers"][0]["args"]
assert all(isinstance(word, str) for word in words)
assert int(words[words.index("-np") + 1]) == roles["Worker"]["replicas"] * spec["slotsPerWorker"]
mounts = {mount["name"] for mount in pods["Worker"]["containers"][0]["volumeMounts"]}
assert mounts == {volume["name"] for volume in pods["Worker"]["volumes"]}
print("\n".join(words[words.index("ddp_train") + 1:]))
END
    mapfile -t words <"$work/words"
    if "$program" "${words[@]}" --print-config >"$work/out" 2>&1; then pass; else fail "mpijob.yaml: $(cat "$work/out")"; fi
else
    echo 'skipped: mpijob.yaml, without python3-yaml'
fi
finish
