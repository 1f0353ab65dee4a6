#!/usr/bin/env bash
# --doctor on simulated GPUs: each rank's GPU is shown, and what cannot work is found before it is tried.
. "$(dirname "$0")/../train/lib.sh"
. "$(dirname "$0")/../doctor_lib.sh"
cd "$work"
small+=(--device cuda)

visit 0 -np 2 "$program" "${small[@]}"
shows '^ +0 .* Simulated GPU .*:.*, 1 of [0-9]+ visible'
shows '^ +1 .* Simulated GPU '
shows 'driver for CUDA .*, runtime .*, NCCL [0-9]+\..* \(/.*libnccl'
shows 'sums over all ranks by nccl: '
shows '^nothing was found'
silent '^this will'

CUSIM_DEVICES=1 visit 1 -np 2 "$program" "${small[@]}"
fails 'rank 0 on .* and rank 1 on .* have the same GPU'
CUSIM_DRIVER_VERSION=11000 visit 1 -np 2 "$program" "${small[@]}"
fails 'the NVIDIA driver is too old: it knows CUDA 11.0'
CUDA_VISIBLE_DEVICES='' visit 1 -np 2 "$program" "${small[@]}"
fails 'no GPU'
visit 0 -np 1 -x CUDA_VISIBLE_DEVICES=1 "$program" "${small[@]}" : \
    -np 1 -x CUDA_VISIBLE_DEVICES=0 "$program" "${small[@]}"
noted 'each rank of .* sees one GPU only'
silent 'CUDA_VISIBLE_DEVICES differs'
visit 1 -np 1 -x NCCL_ALGO=Ring "$program" "${small[@]}" : -np 1 -x NCCL_ALGO=Tree "$program" "${small[@]}"
fails 'NCCL_ALGO'
visit 1 -np 1 "$program" "${small[@]}" : -np 1 -x CUSIM_NCCL_VERSION=22000 "$program" "${small[@]}"
fails 'NCCL.*22000'
visit 1 -np 1 "$program" "${small[@]}" : -np 1 "$program" "${small[@]}" --comm mpi
fails 'comm'
finish
