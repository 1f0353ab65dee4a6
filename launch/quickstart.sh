#!/usr/bin/env bash
# quickstart.sh - from a fresh Debian 12 to a trained LeNet: installs what is missing, builds, trains.
#
#   ./launch/quickstart.sh [--ranks N | N] [ddp_train's options]
#
# 8 ranks where there are 8 cores, else one a core. As root, or as a user (packages then need sudo). Options of
# ddp_train: build/ddp_train --help.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/launch/packages.sh"

cores=$(nproc)
ranks=$((cores < 8 ? cores : 8))
case ${1:-} in
    --help | -h) sed -n '2,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift 2 ;;
    --ranks=*) ranks=${1#--ranks=}; shift ;;
    [0-9]*) ranks=$1; shift ;;
esac
case $ranks in
    '' | *[!0-9]* | 0*) echo "quickstart.sh: --ranks: found \"$ranks\", expected a number from 1" >&2
        exit 2 ;;
esac

install_packages "${build_packages[@]}" dataset-fashion-mnist
cmake -S "$root" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDDP_TESTS=OFF
cmake --build "$root/build"

# mpirun refuses root and more ranks than cores unless told; ranks that share cores must not be bound.
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ "$ranks" -gt "$cores" ]; then
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
else
    # Slots are cores here, also where cores are hardware threads.
    export OMPI_MCA_hwloc_base_use_hwthreads_as_cpus=1
fi
# Open MPI's topology library asks ten X displays for graphics cards, through name resolution: seconds, on
# a host that cannot resolve "localhost".
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
echo "mpirun -np $ranks build/ddp_train $*"
exec mpirun -np "$ranks" "$root/build/ddp_train" "$@"
