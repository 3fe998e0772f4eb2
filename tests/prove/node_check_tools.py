"""Stand-ins for the tools of GPUs. They replay real outputs, by the name of the node on which they run."""

from __future__ import annotations

SMI = """\
#!/bin/bash
# Stands in for nvidia-smi. FOLDER/NODE.smi may replace the answer to a query.
fault=""
links='GPU %s: NVIDIA A100-SXM4-80GB (UUID: GPU-5d1e8c3a)\\n\\t Link 0: 25 GB/s\\n\\t Link 1: 25 GB/s'
[ ! -r "${0%/*}/$(hostname).smi" ] || . "${0%/*}/$(hostname).smi"
each() { for gpu in 0 1 2 3; do printf "$1\\n" "$gpu"; done; }
case "$fault,$*" in
*HANG*,*) exec sleep 600 ;;
*LOST*,*)
    echo -n 'Unable to determine the device handle for GPU 0000:9D:00.0: GPU is lost.  '
    echo 'Reboot the system to recover this GPU'
    exit 15 ;;
*NONE*,*) echo 'No devices were found'; exit 6 ;;
*MISSING*,*query-gpu=index,count*) each '%s, 3, NVIDIA A100-SXM4-80GB, 0, 550.90.07' | head -n 3 ;;
*TRUNCATED*,*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0, 550.90.07' | head -c 52 ;;
*MODEL*,*query-gpu=index,count*) each '%s, 4, NVIDIA H100 80GB HBM3, 0, 550.90.07' ;;
*ECC*,*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0, 550.90.07' | sed '3s/0, 5/2, 5/' ;;
*DRIVER*,*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0, 535.104.05' ;;
*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0, 550.90.07' ;;
*PENDING*,*remapped_rows.pending*) each '%s, No' | sed '2s/No/Yes/' ;;
*remapped_rows*) each '%s, No' ;;
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.'; exit 2 ;;
*THROTTLED*,*clocks_throttle_reasons*) each '%s, Not Active' | sed '4s/Not //' ;;
*clocks_throttle_reasons*) each '%s, Not Active' ;;
*LINKS*,*nvlink*) each "$links" |
    sed '5s/25 GB.s/<inactive>/' ;;
*nvlink*) each "$links" ;;
*PROCESS*,*compute-apps*) echo '4711, 70123' ;;
*compute-apps*) ;;
*HELD*,*memory.used*) each '%s, 61000, 81920' ;;
*memory.used*) each '%s, 4, 81920' ;;
*) echo "Invalid combination of input arguments: $*"; exit 2 ;;
esac
"""

TORCH = '''\
"""Stands in for PyTorch on a node with GPUs: the node's file `fault` says how its third GPU, or its network, fails."""

import os
import socket
import time

__version__ = "2.6.0"
_FAULT = os.path.join(os.path.dirname(__file__), "..", "..", socket.gethostname() + ".compute")
fault = open(_FAULT).read().strip() if os.path.exists(_FAULT) else ""
float16 = float32 = uint8 = None


class Tensor:
    def __init__(self, device, value=1.0):
        self.device, self.value = device, value

    def __getitem__(self, place):
        return self

    def __matmul__(self, other):
        if self.device == "cuda:2" and fault == "hang":
            time.sleep(600)
        if self.device == "cuda:2" and fault == "error":
            raise RuntimeError("CUDA error: an illegal instruction was encountered")
        return Tensor(self.device, 1.0 if self.device == "cuda:2" and fault == "wrong" else 2048.0)

    def __mul__(self, other):
        return Tensor(self.device, self.value * other)

    def all(self):
        return True

    def __float__(self):
        return self.value

    def copy_(self, other, non_blocking):
        time.sleep(0.01)


def ones(*size, device, dtype=None):
    return Tensor(device)


def empty(*size, device, dtype, pin_memory):
    return Tensor(device)


def isfinite(tensor):
    return tensor


def mm(one, two, out):
    time.sleep(0.1 if one.device == "cuda:2" and fault == "slow" else 0.02)


class cuda:
    is_available = staticmethod(lambda: True)
    set_device = staticmethod(lambda device: None)
    synchronize = staticmethod(lambda: None)
'''

DISTRIBUTED = '''\
"""Stands in for the collectives. The lines are those that NCCL 2.21 prints."""

import socket
import time

import torch

WORLD = 0


class ReduceOp:
    MAX = "max"


def init_process_group(backend, init_method, rank, world_size, timeout):
    global WORLD
    WORLD = world_size
    host = socket.gethostname()
    if torch.fault == "socket":
        print(host + ":4711:4740 [0] NCCL INFO NET/IB : No device found.")
        print(host + ":4711:4740 [0] NCCL INFO NET/Socket : Using [0]eth0:10.77.0.4<0>")
        print(host + ":4711:4740 [0] NCCL INFO Using network Socket", flush=True)
    else:
        print(host + ":4711:4740 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.77.0.1<0>")
        print(host + ":4711:4740 [0] NCCL INFO Using network IB", flush=True)


def all_reduce(tensor, op=None):
    if torch.fault == "reduce hang" and WORLD > 4:
        time.sleep(600)
    if torch.fault == "reduce error" and WORLD > 4:
        raise RuntimeError("NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
    time.sleep(0.005)
    tensor.value *= 1 if op else WORLD
'''

PYTHON = """\
#!/bin/bash
# Stands in for the node's python3, whose clock is an hour ahead if FOLDER/NODE.clock exists. With FOLDER/NODE.slow,
# PyTorch uses the slowest code of MKL, which any CPU can run.
real=/usr/bin/python3
[ ! -e "${0%/*}/$(hostname).slow" ] || export MKL_CBWR=COMPATIBLE
[ -e "${0%/*}/$(hostname).clock" ] || exec "$real" "$@"
[ "$1" = -I ] || exec "$real" "$@"
shift
exec "$real" -I -c 'import runpy, sys, time
real = time.time
time.time = lambda: real() + 3600
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""
