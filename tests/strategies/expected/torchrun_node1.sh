#!/bin/bash
# shellcheck disable=SC2016
# Node 1 of 4 nodes x 8 GPUs, started by hand: torchrun, static ranks.
# Written by hpc-launch config launcher. Start the scripts of all nodes within a few minutes.
set -euo pipefail

export MASTER_ADDR=192.168.1.100 MASTER_PORT=29500
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8 # 64 cores for 8 processes

exec python3 -m torch.distributed.run \
    --nnodes=4 --nproc-per-node=8 --node-rank=1 \
    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    'my train.py' --note 'it'\''s $HOME'
