#!/bin/bash
# shellcheck disable=SC2016
# Node 0 of 4 nodes x 8 GPUs, started by hand: DeepSpeed's launcher, static ranks, no ssh.
# Written by hpc-launch config launcher. Start the scripts of all nodes within a few minutes.
set -euo pipefail

export MASTER_ADDR=192.168.1.100 MASTER_PORT=29500
export PYTHONUNBUFFERED=1

# The launcher counts the lines; without ssh it does not use the names.
hostfile=$(mktemp "${TMPDIR:-/tmp}/hostfile.XXXXXX")
trap 'rm -f "$hostfile"' EXIT
for ((node = 0; node < 4; node++)); do
    printf 'node%d slots=8\n' "$node"
done >"$hostfile"

python3 -m deepspeed.launcher.runner \
    --hostfile="$hostfile" --no_ssh --node_rank=0 \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    src/train.py --config config.yaml --deepspeed config/ds_config.json
