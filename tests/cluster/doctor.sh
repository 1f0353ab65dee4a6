#!/usr/bin/env bash
# --doctor over two hosts: the link between them is measured, and what only several hosts can have wrong is found:
# bridges with one address, no subnet in common, data or a run directory that one host does not see.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/../doctor_lib.sh"
. "$(dirname "$0")/lib.sh"
cluster_can || exit 77
cluster_up 2
cluster_hostfile "$work/hosts" 2
on=(cluster_run 0)
launch=(--hostfile "$work/hosts" -np 2 --map-by node)
small+=(--run-dir "$work/run")

# on_host I COMMAND...: in the host's own mounts.
on_host() { nsenter --net --uts --mount --target "$(cat "$cluster_dir/node$1/holder")" "${@:2}"; }

cluster_shape 1gbit
visit 0 --hostfile "$work/hosts" -np 4 "$program" "${small[@]}"
shows '^doctor: 4 ranks on 2 hosts'
shows '^ +node0 +0-1 '
shows '^ +node1 +2-3 '
shows '^ +node1 +eth0 +10.77.0.11/24 +1500 '
shows '^ +0-2 node0-node1 +eth0 .* [um]s +0\.(0[1-9]|1[0-3]).* GB/s'
shows '^ +2-3 inside node1 +memory .* GB/s'
shows '^ +clock of node1: [+-]0\.0'
shows '^ +side channel of node1: by 10.77.0.11$'
slow 'messages from node0 to node1 pass at 0.*, where eth0 could carry 1.25'
silent '^this will fail'
cluster_shape none

# Files that are another host's.
cp -r /usr/share/datasets/fashion-mnist "$work/data"
on_host 1 mount -t tmpfs none "$work/data"
visit 1 "${launch[@]}" "$program" --doctor --run-dir "$work/run" --data-dir "$work/data"
fails 'rank 1 on node1: no t10k-images.* in .*/data'
mkdir "$work/run"
on_host 1 mount -t tmpfs none "$work/run"
visit 1 "${launch[@]}" "$program" "${small[@]}"
fails 'node0 and node1 do not see the same directory under .*/run, and checkpoints are written by all'
visit 0 "${launch[@]}" "$program" "${small[@]}" --no-checkpoint-at-end --checkpoint-epochs 0
noted 'node0 and node1 do not see the same directory'
on_host 1 umount "$work/run"

# A bridge of containers on one host, then, with the same address, on both.
on_host 1 ip link add docker0 type bridge
on_host 1 ip addr add 172.17.0.1/16 dev docker0
on_host 1 ip link set docker0 up
visit 0 "${launch[@]}" "$program" "${small[@]}"
noted 'docker0 of node1 \(172.17.0.1\) leads to no other host.*btl_tcp_if_include 10.77.0.0/24'
on_host 1 ip link del docker0
cluster_bait
visit 0 "${launch[@]}" --mca btl_tcp_if_include 10.77.0.0/24 "$program" "${small[@]}"
silent 'docker0 of '
visit 1 "${launch[@]}" "$program" "${small[@]}"
if grep -q 'MPI has not connected the ranks within .* btl_tcp_if_include 10.77.0.0/24' "$work/err"; then
    pass
else
    fail "MPI's start over docker0: $(cat "$work/out" "$work/err")"
fi
for i in 0 1; do on_host $i ip link del docker0; done

# Addresses that only routes connect.
for i in 0 1; do
    on_host $i ip addr del "10.77.0.1$i/24" dev eth0
    on_host $i ip addr add "10.77.0.1$i/32" dev eth0
    on_host $i ip route add "10.77.0.1$((1 - i))" dev eth0
done
visit 0 "${launch[@]}" "$program" "${small[@]}"
slow 'node0 and node1 have no subnet in common'
equal 'what is left on the hosts' "$(cluster_left)x" x
finish
