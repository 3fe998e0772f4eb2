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
*MISSING*,*query-gpu=index,count*) each '%s, 3, NVIDIA A100-SXM4-80GB, 0' | head -n 3 ;;
*TRUNCATED*,*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0' | head -c 52 ;;
*MODEL*,*query-gpu=index,count*) each '%s, 4, NVIDIA H100 80GB HBM3, 0' ;;
*ECC*,*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0' | sed '3s/0$/2/' ;;
*query-gpu=index,count*) each '%s, 4, NVIDIA A100-SXM4-80GB, 0' ;;
*DRIVER*,*driver_version*) each 535.104.05 ;;
*driver_version*) each 550.90.07 ;;
*PENDING*,*remapped_rows*) each '%s, No, No' | sed '2s/No/Yes/' ;;
*remapped_rows*) each '%s, No, No' ;;
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

DCGM = """\
#!/bin/bash
# Stands in for dcgmi of DCGM 3. FOLDER/NODE.dcgm may change the answer.
fault=$(cat "${0%/*}/$(hostname).dcgm" 2>/dev/null)
answer() {
    printf '{\n\t"DCGM GPU Diagnostic" : {\n\t\t"test_categories" : [\n\t\t\t{\n\t\t\t\t"category" : "Deployment",\n'
    printf '\t\t\t\t"tests" : [\n'
    for name in Denylist 'NVML Library' 'CUDA Main Library' 'Page Retirement/Row Remap' 'Graphics Processes' Inforom; do
        status=PASS warnings=
        [ "$fault,$name" != 'fail,Page Retirement/Row Remap' ] ||
            status=FAIL warnings=', "warnings" : [ "GPU 2 had uncorrectable memory errors and row remap has failed." ]'
        printf '\t\t\t\t\t{ "name" : "%s", "results" : [ { "gpu_ids" : "0,1,2,3", "status" : "%s"%s } ] },\n' \
            "$name" "$status" "$warnings"
        printf '\t\t\t\t\tnull,\n'
    done
    printf '\t\t\t\t\tnull ]\n\t\t\t}\n\t\t],\n\t\t"version" : "3.3.5"\n\t}\n}\n'
}
case $fault in half) answer | head -c 700 ;; *) answer ;; esac
"""

AMD_SMI = """\
#!/bin/bash
# Stands in for amd-smi of ROCm 6. FOLDER/NODE.amd may change the answer.
fault=$(cat "${0%/*}/$(hostname).amd" 2>/dev/null)
[ "$fault" != hang ] || exec sleep 600
answer() {
    for gpu in 0 1 2 3; do
        count=0
        [ "$fault,$gpu" != errors,2 ] || count=3
        printf '%s\n    {\n        "gpu": %s,\n        "ecc": {\n' "$open" $gpu
        printf '            "total_correctable_count": 0,\n'
        printf '            "total_uncorrectable_count": %s,\n            "total_deferred_count": 0,\n' $count
        printf '            "cache_correctable_count": 0,\n            "cache_uncorrectable_count": 0\n        }\n    }'
        open=,
    done
    printf '\n]\n'
}
open='['
answer
"""

XPU_SMI = """\
#!/bin/bash
# Stands in for xpu-smi 1.3 (intel/xpumanager, cli/src/core_stub at 1.3.7), with V2 for 2.0 (ial/cmn). FOLDER/NODE.xpu
# may change the answer.
fault=$(cat "${0%/*}/$(hostname).xpu" 2>/dev/null)
of=4
each() { # FORMAT: one mapping for each GPU
    for gpu in 0 1 2 3; do
        [ "$gpu" -ge "$of" ] || printf "$1%s" "$gpu" "$([ "$gpu" -eq 3 ] || echo ,)"
    done
}
metric() { printf '{"metrics_type": "XPUM_STATS_%s", "value": %s}' "$1" "$2"; }
answer() {
    case $fault,$* in
    *ERROR*,*) echo '{"errno": 39, "error": "Level Zero Initialization Error"}'; exit 39 ;;
    *,'discovery -j')
        name='Intel(R) Data Center GPU Max 1550'
        [[ $fault != *MODEL* ]] || name='Intel(R) Data Center GPU Max 1100'
        echo '{"device_list": ['
        each '{"device_function_type": "physical", "device_id": %s, "device_name": "'"$name"'", "device_type": "GPU",
            "pci_device_id": "0xbd5", "vendor_name": "Intel(R) Corporation"}'
        echo ']}' ;;
    *,'health -l -j')
        says='", "description": "'
        memory="OK${says}All memory channels are healthy."
        link="OK${says}All ports are up and operating as expected."
        clock="OK${says}Device frequency is not throttled"
        warning="Warning$says" critical="Critical$says"
        case $fault in
        *DEGRADED*)
            memory="${warning}Excessive correctable errors have been detected on one or more channels."
            memory+=' Device should be reset.' ;;
        *REPLACE*) memory="${critical}Device should be replaced due to excessive uncorrectable errors." ;;
        *HEAT*) clock="${warning}Tile 0 frequency throttled due to thermal excursion." ;;
        *POWER*) clock="${warning}Device frequency throttled due to average power excursion." ;;
        *LINK*)
            link="${critical}Ports Tile0-1 connection instabilities are preventing workloads"
            link+=' making forward progress. ' ;;
        *CLOSED*) link="${warning}Ports Tile0-1 are configured down. " ;;
        esac
        health=; frequency=frequency; links='"xe_link_port": {"status": "'"$link"'"},'
        [[ $fault != *V2* ]] || health=_health frequency=frequency_health links=
        echo '{"device_list": ['
        each '{"device_id": %s, "core_temperature": {"status": "OK", "throttle_threshold": 105},
            "memory'$health'": {"status": "'"$memory"'"}, "power'$health'": {"status": "Unknown"},
            '"$links"' "'$frequency'": {"status": "'"$clock"'"}}'
        echo ']}' ;;
    *,'ps -j')
        echo '{"device_util_by_proc_list": ['
        case $fault in *PROCESS*)
            echo '{"device_id": 2, "mem_size": 71806976, "process_id": 4711, "process_name": "python"},'
        esac
        echo '{"device_id": 0, "mem_size": 1966, "process_id": '$$', "process_name": "xpu-smi"}]}' ;;
    *V2*,'stats -d '*)
        count=0 used=120.5 util=0.1
        [[ $fault,$3 != *ECC,2 ]] || count=2
        [[ $fault,$3 != *HELD,1 ]] || used=61000.25 util=93.1
        echo '{"device_index": '$3', "memory": {'
        echo '"used_mib": {"tile_0": {"avg": 120.5, "current": 120.5}, "tile_1": {"avg": '$used', "current": '$used'}},'
        echo '"util_percent": {"tile_0": {"avg": 0.1, "current": 0.1}, "tile_1": {"avg": '$util', "current": '$util'}}}'
        [[ $* != *-r* ]] ||
            echo ', "ras_errors": {"Reset": {"correctable_total": 0, "uncorrectable_total": 9, "total": 9},
                "Mem Errors": {"correctable_total": 7, "uncorrectable_total": '$count', "total": 7}}'
        echo '}' ;;
    *,'stats -d '*)
        count=0 used=241 util=0
        [[ $fault,$3 != *ECC,2 ]] || count=2
        [[ $fault,$3 != *HELD,1 ]] || used=61000.25 util=93
        echo '{"device_id": '$3', "device_level": ['
        metric MEMORY_USED $used; echo ,; metric MEMORY_UTILIZATION $util
        echo '], "tile_level": [{"tile_id": 0, "data_list": ['
        metric RAS_ERROR_CAT_RESET 9; echo ,; metric RAS_ERROR_CAT_CACHE_ERRORS_UNCORRECTABLE 0
        echo ']}, {"tile_id": 1, "data_list": ['
        metric RAS_ERROR_CAT_NON_COMPUTE_ERRORS_CORRECTABLE 7
        echo ,; metric RAS_ERROR_CAT_NON_COMPUTE_ERRORS_UNCORRECTABLE $count
        echo ']}]}' ;;
    *) echo 'Run with --help for more information.'; exit 109 ;;
    esac
}
case $fault,$1 in
*HANG*,* | *STUCK*,health) exec sleep 600 ;;
*TRUNCATED*) answer "$@" | head -c 70 ;;
*) answer "$@" ;;
esac
"""

TOOLS = {"nvidia-smi": SMI, "dcgmi": DCGM, "amd-smi": AMD_SMI, "xpu-smi": XPU_SMI}
