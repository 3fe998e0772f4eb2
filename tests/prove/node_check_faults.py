"""The faults of nodes that the node check has to name, by job: one job checks four nodes with different faults.

The places that the commands know are BIN, the stand-ins of the tools; SAVED, the folder for checkpoints; DATA, a path
among the arguments; SITE, a folder of Python packages; RUNS, the run folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.prove.node_fault import COMMON, Fault, bind, computes, freeze, shows, slow_network, smi


@dataclass(frozen=True)
class CheckJob:
    """A job on four nodes with its faults."""

    key: str
    faults: tuple[Fault, ...]
    gpus: int = 0
    vendor: str = "nvidia"
    before: str = ""
    """Shell commands on every node, before the faults are planted."""
    undo: str = ""
    waits: bool = False
    """The faults are planted when the run folder exists, before the job starts."""
    full: bool = False
    """The full check: on nodes without GPUs, with the PyTorch of this Python."""


_FUSE = (
    "import os, ctypes, time; fd = os.open('/dev/fuse', os.O_RDWR); "
    "o = ('fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other' % fd).encode(); "
    "ctypes.CDLL(None).mount(b'x', b'$DATA', b'fuse', 0, o); time.sleep(120)"
)
_CLASSES = """\
D=/dev/shm/class; mkdir $D; cp -a /sys/class/. $D/; rm -rf $D/infiniband $D/drm
for card in 128 129 130 131; do
    device=$D/drm/renderD$card/device; mkdir -p $device/ras
    echo 0x1002 >$device/vendor; printf 'ue: 0\\nce: 3\\n' >$device/ras/umc_err_count
done
for adapter in 1 2; do
    port=$D/infiniband/mlx5_$adapter/ports/1; mkdir -p $port
    echo '4: ACTIVE' >$port/state; echo '200 Gb/sec (4X HDR)' >$port/rate
done
mount --bind $D /sys/class"""
_NO_CLASSES = "umount /sys/class; rm -rf /dev/shm/class"


def job(key: str, *faults: Fault, **more: Any) -> CheckJob:
    """A job with these faults."""
    return CheckJob(key, faults, **more)


JOBS = (
    job(
        "gpus",
        smi("a GPU is missing", "n2", "gpus", "3 of 4 GPUs", "MISSING"),
        smi("a memory row waits to be remapped", "n3", "gpu state", "GPU 1: a memory row waits", "PENDING ECC"),
        Fault("uncorrectable memory errors", "n3", "gpus", "GPU 2: 2 uncorrectable memory errors", ""),
        smi(
            "the clocks are throttled by the hardware",
            "n4",
            "gpu state",
            "GPU 3: the hardware has lowered",
            "THROTTLED LINKS",
        ),
        Fault("an NVLink is down", "n4", "gpu links", "88 % of the NVLinks", ""),
        gpus=4,
    ),
    job(
        "tools",
        smi("nvidia-smi hangs", "n2", "gpu links", "gpus: no answer within", "HANG"),
        smi(
            "nvidia-smi ends with 15: a GPU is lost",
            "n3",
            "gpus",
            "nvidia-smi exits with 15: Unable to determine",
            "LOST",
        ),
        computes("a GPU does not finish a product", "n4", "gpu compute", "gpu compute: no answer", "hang"),
        computes(
            "a GPU computes a wrong product", "n1", "gpu compute", "GPU 2: AssertionError: wrong product", "wrong"
        ),
        gpus=4,
    ),
    job(
        "devices",
        smi("a GPU of another model", "n4", "gpus", "NVIDIA H100 80GB HBM3, not a100", "MODEL"),
        smi("nvidia-smi finds no GPU", "n2", "gpus", "0 of 4 GPUs", "NONE"),
        computes("a GPU reports a CUDA error", "n3", "gpu compute", "GPU 2: RuntimeError: CUDA error", "error"),
        Fault(
            "another PyTorch on one node",
            "n2",
            "software",
            "torch is 2.5.1 here and 2.6.0 on the other nodes",
            *bind("$SITE/site/torch-2.6.0.dist-info/METADATA", "printf 'Name: torch\\nVersion: 2.5.1\\n'"),
        ),
        Fault(
            "a module is missing",
            "n1",
            "software",
            "finds no module helper",
            "cp -a $SITE/site /dev/shm/; rm -r /dev/shm/site/helper; mount --bind /dev/shm/site $SITE/site",
            "umount $SITE/site; rm -r /dev/shm/site",
        ),
        gpus=4,
    ),
    job(
        "leftovers",
        smi("nvidia-smi prints half an answer", "n1", "", "", "TRUNCATED"),
        smi(
            "a process of an earlier job holds a GPU", "n2", "gpu processes", "process 4711 holds 70123 MiB", "PROCESS"
        ),
        smi(
            "memory of a GPU is held without a process", "n3", "gpu processes", "61000 MiB of GPU 0 are in use", "HELD"
        ),
        gpus=4,
    ),
    job(
        "amd",
        Fault("a GPU is missing (AMD)", "n2", "gpus", "3 of 4 GPUs", "rm -r /dev/shm/class/drm/renderD131"),
        Fault(
            "uncorrectable memory errors (AMD)",
            "n3",
            "gpu state",
            "uncorrectable errors (umc_err_count: 5)",
            "printf 'ue: 5\\nce: 3\\n' >/dev/shm/class/drm/renderD129/device/ras/umc_err_count",
        ),
        Fault(
            "an InfiniBand port is down",
            "n4",
            "infiniband",
            "50 % of the InfiniBand rate",
            "echo '1: DOWN' >/dev/shm/class/infiniband/mlx5_2/ports/1/state",
        ),
        gpus=4,
        vendor="amd",
        before=_CLASSES,
        undo=_NO_CLASSES,
    ),
    job(
        "host",
        Fault(
            "`/dev/shm` is full",
            "n2",
            "shm",
            "/dev/shm has 0 MiB left",
            "mount -t tmpfs -o size=8m none /dev/shm; head -c 8M /dev/zero >/dev/shm/full",
            "umount /dev/shm",
        ),
        Fault(
            "half of the memory",
            "n3",
            "memory",
            "MiB of memory, not",
            *bind("/proc/meminfo", "awk '/^Mem(Total|Available)/ {$2 = int($2 / 2)} {print}' /proc/meminfo"),
        ),
        Fault(
            "a mount that hangs",
            "n4",
            "path $DATA",
            "path $DATA: no answer",
            f'setsid python3 -c "{_FUSE}" >/dev/null 2>&1 & echo $! >/dev/shm/fuse; sleep 0.5',
            "kill -KILL $(cat /dev/shm/fuse); umount -l $DATA; true",
        ),
        Fault(
            "storage that is read-only on one node",
            "n3",
            "writing to $SAVED",
            "Read-only file system",
            "mount --bind $SAVED $SAVED; mount -o remount,bind,ro $SAVED",
            "umount $SAVED",
        ),
        Fault(
            "an exhausted quota",
            "n1",
            "writing to $SAVED",
            "No space left on device",
            "mount -t tmpfs -o size=1m,mode=1777 none $SAVED; head -c 1M /dev/zero >$SAVED/full",
            "umount $SAVED",
        ),
        Fault(
            "the clock is an hour off",
            "n4",
            "clock",
            "the clock is 3600 s ahead of those of the other nodes",
            *shows("clock"),
        ),
    ),
    job(
        "network",
        Fault(
            "the first node's name resolves to loopback",
            "n2",
            "rendezvous port",
            "(127.0.0.1): ",
            *bind("/etc/hosts", "sed 's/.* n1$/127.0.0.1 n1/' /etc/hosts"),
        ),
        Fault("a port is blocked in one direction", "n3", "rendezvous port", "cannot reach n1 port", "true"),
        Fault("a slow link", "n4", "network", "256 KiB to n1 port", *slow_network("1mbit")),
        Fault("an interface is down", "n4", "interface fast0", "interface fast0 is down", "ip link set fast0 down"),
        Fault(
            "an interface with a lower rate",
            "n2",
            "interface fast0",
            "interface fast0 has 10 % of the rate",
            *bind("/sys/class/net/fast0/speed", "echo 1000"),
        ),
        before="ip link add fast0 type veth peer name peer0; ip link set peer0 up; ip link set fast0 up; "
        "[ $NODE != n1 ] || ip rule add pref 5 to 10.77.0.3 ipproto tcp sport 10000-29999 blackhole",
        undo="ip link del fast0; [ $NODE != n1 ] || ip rule del pref 5",
    ),
    job(
        "start",
        Fault(
            "no python3",
            "n2",
            "start",
            "python3",
            "(echo $BIN/python3; which -a python3) >/dev/shm/pythons; "
            "for one in $(cat /dev/shm/pythons); do mount --bind /dev/null $one; done",
            "for one in $(cat /dev/shm/pythons); do umount $one; done; rm /dev/shm/pythons",
        ),
        Fault(
            "the run folder is not shared",
            "n4",
            "start",
            "the run folder is not shared with this node",
            "mount -t tmpfs -o mode=1777 none $RUNS",
            "umount $RUNS",
        ),
    ),
    job(
        "stale",
        Fault(
            "the run folder is a copy",
            "n3",
            "shared folder $RUNS",
            "is not the folder of the first node",
            "mkdir /dev/shm/copy; cp -a $RUNS/. /dev/shm/copy/; mount --bind /dev/shm/copy $RUNS",
            "umount $RUNS; rm -rf /dev/shm/copy",
        ),
        Fault("the node freezes during the check", "n4", "answer", "stopped answering", *freeze()),
        waits=True,
    ),
    job(
        "measured",
        computes("a slow GPU", "n2", "gpu matrix product", "TFLOP/s on GPU 2; the median of the job is", "slow"),
        computes(
            "an all-reduce with other nodes fails",
            "n3",
            "pairs",
            "RuntimeError: NCCL error: unhandled system error",
            "reduce error",
        ),
        computes(
            "NCCL falls back to sockets",
            "n4",
            "nccl network",
            "NCCL uses Socket, although the site has InfiniBand",
            "socket",
        ),
        gpus=4,
        full=True,
    ),
    job(
        "intel",
        Fault("a GPU is missing (Intel)", "n2", "gpus", "3 of 4 GPUs", "rm -r /dev/shm/class/drm/renderD131"),
        gpus=4,
        vendor="intel",
        before=_CLASSES.replace("0x1002", "0x8086"),
        undo=_NO_CLASSES,
    ),
    job(
        "slow-pair",
        Fault("a slow network of one node", "n4", "pairs", "the median of the pairs is", *slow_network("20mbit")),
        full=True,
    ),
    job(
        "blocked-pair",
        Fault(
            "slow products of matrices on a CPU",
            "n2",
            "cpu matrix product",
            "GFLOP/s on process 0; the median of the job is",
            *shows("slow"),
        ),
        Fault(
            "the ports between two nodes are blocked",
            COMMON,
            "link",
            "although both work with other nodes",
            "ip route add blackhole 10.77.0.4",
            "ip route del blackhole 10.77.0.4",
            at="n3",
        ),
        full=True,
    ),
)
