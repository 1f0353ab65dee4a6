#!/usr/bin/env bash
# --doctor: what is provoked here is found, each with what to do about it, and nothing else is; a sound launch
# passes; nothing stays behind.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../doctor_lib.sh"
cd "$work"

# A sound launch: measured, and nothing is left behind.
visit 0 -np 2 "$program" "${small[@]}"
shows '^doctor: 2 ranks on 1 host'
shows '0-1 inside .* memory .* [um]s +[0-9.]+ GB/s'
shows 'sums over all ranks by mpi: 64 B .*, 1.0 MiB .*, .* \(all gradients\)'
shows '^nothing was found that would make this run fail'
silent '^this will fail'
equal 'files that a visit has left' "$(ls -A "$work" | grep -cvE '^(out|err)$' || true)" 0
"$program" "${small[@]}" --comm loopback --loopback-ranks 3 >"$work/out" && shows '^doctor: 3 ranks on 1 host' ||
    fail 'a visit of threads failed'
refused 2 'found several' 1 "${small[@]}" --eval-only --init-weights x

# Directories.
visit 1 -np 2 "$program" --doctor --data-dir "$work/nowhere" --model mlp
fails 'rank 0 on .* cannot read the data: .*/nowhere: No such file'
mkdir data && cp "${DDP_DATA_DIR:-/usr/share/datasets/fashion-mnist}"/* data/
if unshare -m sh -c 'mount -t tmpfs none /mnt' 2>/dev/null; then
    visit 1 -np 1 "$program" --doctor --data-dir "$work/data" --no-shared-memory : -np 1 \
        unshare -m sh -c 'mount -t tmpfs none "$1" && shift && exec "$@"' - "$work/data" \
        "$program" --doctor --data-dir "$work/data" --no-shared-memory
    fails 'rank 1 on .*no t10k-images.* in .*/data'
else
    echo 'not tried: data that one rank does not see, without mounts of our own'
fi
touch file
visit 1 -np 2 "$program" "${small[@]}" --run-dir file/run
fails 'rank 0 on .* cannot write the run directory: create a file in file: Not a directory'
mkdir used && echo trained >used/status
visit 1 -np 2 "$program" "${small[@]}" --run-dir used
fails 'option --run-dir: used holds a run already'

# Limits, of the ranks alone: mpirun itself needs more.
limited() { # COMMAND OF THE SHELL
    mpirun_arguments=(-np 2 sh -c "$1"' && exec "$@"' - "$program" "${small[@]}")
}
limited 'ulimit -n 17'
visit 1 "${mpirun_arguments[@]}"
fails 'rank 0 on .* may open 17 files and needs about'
limited 'ulimit -n 64'
visit 0 "${mpirun_arguments[@]}"
noted 'rank 0 on .* may open 64 files, and has'
limited 'ulimit -l 64'
visit 0 "${mpirun_arguments[@]}"
shows ' 64 KiB$'

# A small /dev/shm, in a mount namespace of the whole launch.
if unshare -m sh -c 'mount -t tmpfs none /mnt' 2>/dev/null; then
    visit_shm() {
        timeout 150 unshare -m sh -c 'mount -t tmpfs -o size=24m none /dev/shm && exec "$@"' - "$@" \
            >"$work/out" 2>"$work/err" || fail "a small /dev/shm: $(cat "$work/out" "$work/err")"
    }
    visit_shm mpirun -np 2 "$program" "${small[@]}" --mlp-widths 1200,1200
    slow '2 ranks share .* MiB through /dev/shm on .*, where .* MiB are free'
else
    echo 'not tried: a small /dev/shm, without mounts of our own'
fi

# Variables and options that differ.
visit 0 -np 1 -x OMP_NUM_THREADS=1 "$program" "${small[@]}" : \
    -np 1 -x OMP_NUM_THREADS=2 "$program" "${small[@]}"
noted 'OMP_NUM_THREADS differs: rank 0 on .* has "1", rank 1 on .* has "2"'
visit 1 -np 1 "$program" "${small[@]}" : -np 1 "$program" "${small[@]}" --lr 3
fails '--?lr|lr='

# Cores.
if [ "$(nproc)" -gt 1 ]; then
    visit 0 -np 2 taskset -c 0 "$program" "${small[@]}"
    slow 'ranks 0-1 on .* may all run on core 0 only, of'
    # An ordinary run says so, too, and nothing where they are not bound.
    plain=("${small[@]:1}" --quiet --max-steps 1)
    visit 0 -np 2 taskset -c 0 "$program" "${plain[@]}" --run-dir bound
    shows_err 'warning: ranks 0-1 on .* may all run on core 0 only, of .*--bind-to none'
    visit 0 -np 2 "$program" "${plain[@]}" --run-dir free
    equal 'warnings of a run that is not bound' "$(grep -c warning: "$work/err" || true)" 0
    visit 0 -np 2 taskset -c 0 "$program" "${small[@]}" --threads 2
    slow '2 threads each on 1 core'
fi
visit 0 -np $(($(nproc) + 1)) "$program" "${small[@]}"
slow "$(($(nproc) + 1)) ranks share the $(nproc) cores? of"

# Slurm: more nodes than ranks' hosts; and tasks that MPI does not join, which is refused at the start.
visit 0 -np 2 -x SLURM_JOB_NUM_NODES=4 "$program" "${small[@]}"
slow "Slurm's job has 4 nodes, but all 2 ranks are on 1 of them"
SLURM_NTASKS=4 SLURM_PROCID=0 refused 2 'srun --mpi=pmix' loopback:1 "${small[@]}" --comm mpi --loopback-ranks 0
finish
