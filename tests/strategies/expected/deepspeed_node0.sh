#!/bin/bash
# shellcheck disable=SC2016
# Node 0 of 4 nodes x 8 GPUs, started by hand with DeepSpeed, told its rank: no ssh between nodes.
# Written by hpc-launch config launcher. Start each node's script within a few minutes of the others.
set -euo pipefail

export MASTER_ADDR=192.168.1.100 MASTER_PORT=29500
export PYTHONUNBUFFERED=1

# The launcher counts the lines; without ssh it uses no name in them.
hostfile=$(mktemp "${TMPDIR:-/tmp}/hostfile.XXXXXX")
trap 'rm -f "$hostfile"' EXIT
for ((node = 0; node < 4; node++)); do
    printf 'node%d slots=8\n' "$node"
done >"$hostfile"

python3 -m deepspeed.launcher.runner \
    --hostfile="$hostfile" --no_ssh --node_rank=0 \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    src/train.py --config config.yaml --deepspeed config/ds_config.json
