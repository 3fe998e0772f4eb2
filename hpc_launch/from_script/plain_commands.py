"""Commands whose lines need no launch: what each is for, and why it is unnecessary here or left to a person."""

from __future__ import annotations

import re

PRINTS = frozenset(
    "echo clear printf date hostname pwd nvidia-smi rocm-smi xpu-smi env printenv which ls nproc free lscpu sinfo "
    "squeue sacct sstat seff true : tput id whoami df du head tail uptime uname cat type nvcc gcc ibstat "
    "ibv_devinfo basename dirname lspci ldd sprio scontrol wc grep lstopo hwloc-ls".split()
)
SHELL_STATE = {
    "wait": "the job ends with its training",
    "sleep": "the launcher waits for all nodes",
    "exit": "the job's exit code is recorded",
    "shopt": "a setting of the old shell",
    "set": "a setting of the old shell",
    "return": "a setting of the old shell",
    "hash": "a setting of the old shell",
}
LOGIN = re.compile(r"(wandb\s+login|huggingface-cli\s+login|hf\s+auth\s+login)\b")
DEBUGGING = {
    "NCCL_DEBUG": "debugging; each run records NCCL's last collectives",
    "NCCL_DEBUG_SUBSYS": "debugging; each run records NCCL's last collectives",
    "TORCH_DISTRIBUTED_DEBUG": "debugging; add it to `env:` while you need it",
    "TORCH_CPP_LOG_LEVEL": "debugging; add it to `env:` while you need it",
    "CUDA_LAUNCH_BLOCKING": "debugging; it slows every step",
    "NCCL_ASYNC_ERROR_HANDLING": "the default of PyTorch since 1.13, under another name since 2.2",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "the default of PyTorch",
    "NCCL_BLOCKING_WAIT": "hangs are found by the watcher on each node",
    "TORCH_NCCL_BLOCKING_WAIT": "hangs are found by the watcher on each node",
    "PYTHONFAULTHANDLER": "the watcher takes stacks of hanging processes",
    "PYTHONUNBUFFERED": "hpc-launch sets it",
    "SRUN_CPUS_PER_TASK": "hpc-launch passes the number of CPUs to srun",
    "SLURM_CPU_BIND": "an option of srun",
    "PDSH_RCMD_TYPE": "pdsh is not used",
    "DSHPATH": "pdsh is not used",
    "DLTS_HOSTFILE": "the launcher gets the nodes from Slurm",
}
"""Variables that a job of hpc-launch does without."""
RENDEZVOUS = frozenset(
    "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK LOCAL_WORLD_SIZE GROUP_RANK SLURM_EXPORT_ENV "
    "TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID".split()
)
MASTER = re.compile(
    r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|FIRST|CHIEF)\w*?_?(ADDR|ADDRESS|HOST|HOSTNAME|NODE|IP|ENDPOINT|PROCESS_IP)\w*"
    r"|MASTER|RDZV_ENDPOINT|INIT_HOST)\Z"
)
PORT = re.compile(r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|DIST|INIT)\w*PORT|PORT|FREE_PORT|RDZV_ID|JOB_PORT)\Z")
NETWORK = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|FI|MPICH|PSM2?|OMPI_MCA|UCC|IBV|HCCL|CXI|OFI|TP)_|CUDA_DEVICE_MAX_CONNECTIONS\Z|HSA_"
)
"""Variables of the fabric: they are the same for every job of a site."""


def is_for_launch_only(name: str) -> bool:
    """Whether the variable only serves the old launch line: counts and lists of nodes, GPUs and processes."""
    return bool(
        re.fullmatch(
            r"(?i)(NUM_?|N_?|TOTAL_?|COUNT_?)?(NODES?|N?NODES|GPUS?|GPUS?_PER_NODE|PROCS?|PROCS?_PER_NODE|NPROC\w*|"
            r"NNODES|NPROCS|TASKS|WORKERS|NPROC_PER_NODE|DEVICES)(_COUNT|_PER_NODE|_NUM|_TOTAL)?|COUNT_NODE|"
            r"HOSTNAMES?|NODELIST|NODES_ARRAY|NODE_LIST|HOST_?FILE|NODEFILE|HOSTS|WORLDSIZE|LAUNCHER|JOB_?ID|"
            r"GPU_ARRAY|RDZV_(HOST|PORT|ID|ENDPOINT|BACKEND)|DISTRIBUTED_ARGS",
            name,
        )
    )
