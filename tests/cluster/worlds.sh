#!/usr/bin/env bash
# worlds.sh HOSTS - training over HOSTS hosts, with 1 and 2 ranks each, is the training of one host: the same bits
# with --exact, in checkpoints too, equal to rounding without. What MPI sends goes through the interfaces of --subnet
# alone.
. "$(dirname "$0")/runs.sh"
count=${1:?the number of hosts}
model=(--dataset synthetic --synthetic-train 512 --synthetic-test 64 --batch-size 64 --max-steps 4 --conv-algo direct
    --momentum 0.9)
exact=(--exact --logical-ranks $((count * 2)))

# saved NAME: checksums of the last checkpoint, whose parts are written by the ranks that own them.
saved() { (cd "$work/$1/checkpoints/step-0000000004" && cksum model.safetensors optimizer.safetensors); }

hosts_up "$count" 2
cluster_second
train one 1 "${model[@]}" "${exact[@]}"
train plain $((count * 2)) "${model[@]}"

# A rank a host: ranks fill hosts one after the other, so these have one slot.
cluster_hostfile "$work/hosts" 1
over_hosts exact1 "$count" "${model[@]}" "${exact[@]}"
equal "$count ranks: weights" "$(summary exact1 weights_xxh3)" "$(summary one weights_xxh3)"
equal "$count ranks: checkpoint" "$(saved exact1)" "$(saved one)"
equal "$count ranks: hosts" "$(grep -o '"node[0-9]"' "$work/exact1/environment.json" | sort -u | wc -l)" "$count"

cluster_hostfile "$work/hosts" 2
read -r eth0 _ <<<"$(cluster_bytes 1)"
read -r eth1 _ <<<"$(cluster_bytes 1 eth1)"
over_hosts exact2 $((count * 2)) "${model[@]}" "${exact[@]}"
equal "$((count * 2)) ranks: weights" "$(summary exact2 weights_xxh3)" "$(summary one weights_xxh3)"
equal "$((count * 2)) ranks: checkpoint" "$(saved exact2)" "$(saved one)"
read -r now0 _ <<<"$(cluster_bytes 1)"
read -r now1 _ <<<"$(cluster_bytes 1 eth1)"
# Four steps' gradients are 2 MB; the side channel may try any address.
if [ $((now0 - eth0)) -gt 1500000 ]; then pass; else fail "host 1 has sent $((now0 - eth0)) bytes through eth0"; fi
if [ $((now1 - eth1)) -lt 300000 ]; then pass; else fail "host 1 has sent $((now1 - eth1)) bytes through eth1"; fi

subnet=10.88.0.0/24
over_hosts plain2 $((count * 2)) "${model[@]}"
same_curve plain2 plain 4 1e-5
read -r last0 _ <<<"$(cluster_bytes 1)"
read -r last1 _ <<<"$(cluster_bytes 1 eth1)"
if [ $((last1 - now1)) -gt 1500000 ]; then pass; else fail "host 1 has sent $((last1 - now1)) bytes through eth1"; fi
if [ $((last0 - now0)) -lt 300000 ]; then pass; else fail "host 1 has sent $((last0 - now0)) bytes through eth0"; fi
for name in exact1 exact2 plain2; do
    if grep -q 'no TCP connection' "$work/$name.out" "$work/$name"/rank-*.log; then
        fail "$name: the side channel was not in use"
    else
        pass
    fi
done
finish
