#!/bin/bash
# Stands in for LMFlow's script of this name: its --deepspeed_args go to the real `deepspeed`, all else to its training.
others=()
while [ $# -gt 0 ]; do
    case $1 in
        --deepspeed_args) deepspeed_args=$2 && shift ;;
        *) others+=("$1") ;;
    esac
    shift
done
# shellcheck disable=SC2086 # several words
exec deepspeed $deepspeed_args examples/finetune.py "${others[@]}"
