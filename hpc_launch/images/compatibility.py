"""Compatibility of an image with the machine: PyTorch's build and the GPUs, the driver, NCCL, the network. Pure.

The CPU architecture of a SIF file, read from its header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.files import open_regular
from hpc_launch.sites.job_settings import version_numbers

SIF_MAGIC = b"SIF_MAGIC\0"
SIF_MAGIC_AT = 32
SIF_ARCH_AT = 45
SIF_ARCHITECTURES = {
    b"01": "i386",
    b"02": "x86_64",
    b"03": "arm",
    b"04": "aarch64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"11": "s390x",
    b"12": "riscv64",
    b"13": "loongarch64",
}
SIF_DATA_AT = 112
"""The global header of a SIF file: 32 bytes for the first line, 10 for the magic, 3 for the version, the architecture
as two digits and a zero, an id, and eight numbers, the last two of which are the offset and size of the data
(github.com/apptainer/sif, pkg/sif/sif.go `header` and arch.go, e306d8b)."""


def architecture(image: Path) -> str | None:
    """The architecture of a SIF file, as in `uname -m`; None if unknown. Raises OSError if it cannot be read."""
    head = b"" if os.path.isdir(image) else _head(image)
    return SIF_ARCHITECTURES.get(head[SIF_ARCH_AT : SIF_ARCH_AT + 2]) if is_sif(head) else None


def cut_short(image: Path) -> bool:
    """Whether a SIF file is shorter than its header says: after a truncated download or a full disk."""
    head = _head(image)
    if not is_sif(head) or len(head) < SIF_DATA_AT + 16:
        return is_sif(head)
    offset, size = struct.unpack_from("<qq", head, SIF_DATA_AT)
    return image.stat().st_size < int(offset) + int(size)


def _head(image: Path) -> bytes:
    with open_regular(image) as stream:
        return stream.read(SIF_DATA_AT + 16)


def is_sif(head: bytes) -> bool:
    """Whether a file that starts with `head` is a SIF image."""
    return head[SIF_MAGIC_AT : SIF_MAGIC_AT + len(SIF_MAGIC)] == SIF_MAGIC


Level = Literal["ok", "warn", "fail", "skip"]


class Check(Struct, frozen=True):
    """The result of one check, an object of `containers check --json`.

    `skip`: it could not be made, for the reason in the message.
    """

    name: str
    level: Level
    message: str
    hint: str | None = None


CUDA_DRIVERS = (((13, 0), "580"), ((12, 0), "525"), ((11, 0), "450"), ((10, 2), "440.33"), ((10, 1), "418.39"))
"""The oldest Linux driver by CUDA release; since 11, one per major release ("minor version compatibility",
docs.nvidia.com/deploy/cuda-compatibility, tables 1 and 2)."""

NETWORK_LIBRARIES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "slingshot": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "efa": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "gcp": (("libnccl-net",),),
    "infiniband": (("libibverbs.so.1",),),
    "roce": (("libibverbs.so.1",),),
    "omni-path": (),
    "ethernet": (),
}
"""Libraries that NCCL needs for each network: one of each group. InfiniBand support is built into NCCL, which loads
libibverbs (NCCL's ibvwrap.cc); Slingshot and EFA need aws-ofi-nccl over libfabric (its README), GCP's networks their
own plugin."""


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA release; None if the table has none."""
    wanted = version_numbers(cuda)
    for release, driver in CUDA_DRIVERS:
        if wanted >= release:
            return driver if wanted[0] <= CUDA_DRIVERS[0][0][0] else None
    return None


def check_torch(torch: Mapping[str, str | None], vendor: str | None, *, needed: bool, declared: str | None) -> Check:
    """Whether the image has PyTorch, built for these GPUs. `vendor` is None for a job without GPUs."""
    installed = torch.get("version")
    if not installed:
        if needed:
            hint = "use an image with PyTorch, or a venv in `container.prelude`"
            return Check("torch", "fail", "PyTorch, which contains the launcher, not found in the image", hint)
        return Check("torch", "warn", "PyTorch not found in the image")
    cuda, hip = torch.get("cuda"), torch.get("hip")
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    summary = f"PyTorch {installed} for {build}"
    wrong = {"nvidia": cuda is None, "amd": hip is None}.get(vendor or "", False)
    if wrong:
        platform = "CUDA" if vendor == "nvidia" else "ROCm"
        message = f"{summary}, but the nodes' GPUs need {platform}"
        return Check("torch", "fail", message, f"use an image built for {platform}")
    if declared is not None and version_numbers(declared)[:2] != version_numbers(installed)[:2]:
        hint = "fix `torch` of the image in the site profile, or of `environment` in the job: it selects options"
        return Check("torch", "fail", f"{summary}, but {declared} is declared", hint)
    return Check("torch", "ok", summary)


def check_driver(torch: Mapping[str, str | None], vendor: str | None, driver: str | None, *, compat: bool) -> Check:
    """Whether the nodes' driver is new enough. `compat`: the image has CUDA's forward compatibility libraries."""
    cuda, hip = torch.get("cuda"), torch.get("hip")
    if vendor is None or not (cuda or hip):
        return Check("driver", "skip", "no GPUs, so no driver needed")
    if driver is None:
        hint = "set it in the profile: `node_classes: {NAME: {versions: {driver: '580.65'}}}`"
        return Check("driver", "skip", "the nodes' driver is unknown, and this machine has none", hint)
    minimum = minimum_driver(cuda or "") if vendor == "nvidia" else None
    if minimum is None:
        known = f"CUDA {cuda}" if cuda else f"ROCm {hip}"
        return Check("driver", "skip", f"the minimum driver for {known} is unknown")
    if version_numbers(driver) >= version_numbers(minimum):
        return Check("driver", "ok", f"driver {driver}; CUDA {cuda} needs {minimum} or newer")
    message = f"driver {driver} is too old for CUDA {cuda}, which needs {minimum} or newer"
    if compat:
        hint = "test it on one node: the image has CUDA's compatibility libraries, which work on data center GPUs"
        return Check("driver", "warn", message, hint)
    return Check("driver", "fail", message, "use an image with an older CUDA")


def check_nccl(imported: Mapping[str, object] | None, vendor: str | None) -> Check:
    """The communication backends that PyTorch reports after `import torch`."""
    if imported is None:
        return Check("nccl", "skip", "PyTorch not found")
    if imported.get("fault"):
        hint = "check for a library missing in the image; on a login node it may only be the GPU driver"
        return Check("nccl", "fail", f"`import torch` fails: {imported['fault']}", hint)
    if imported.get("nccl"):
        return Check("nccl", "ok", f"{'RCCL' if vendor == 'amd' else 'NCCL'} {imported['nccl']}, according to PyTorch")
    if vendor is not None:
        return Check("nccl", "fail", "this PyTorch has no NCCL, which training on several GPUs needs")
    gloo = bool(imported.get("gloo"))
    return Check("nccl", "ok" if gloo else "warn", f"no GPUs; Gloo is {'available' if gloo else 'not available'}")


def required_libraries(
    kind: str | None, plugin: str | None, libraries: Iterable[str] | None
) -> tuple[tuple[str, ...], ...]:
    """Groups of shared libraries, one of each of which the image needs, from the site profile or its network kind."""
    if libraries is not None:
        return tuple((name,) for name in libraries)
    if plugin == "none":
        return ()
    groups = NETWORK_LIBRARIES.get(kind or "", ())
    if not plugin:
        return groups
    named = (plugin,) if plugin.startswith("lib") else (f"libnccl-net-{plugin}", "libnccl-net")
    return (named, *(group for group in groups if not group[0].startswith("libnccl-net")))


def check_fabric(
    kind: str | None, groups: tuple[tuple[str, ...], ...], paths: Mapping[str, str | None], *, must: bool
) -> Check:
    """Whether the image has the fast network's libraries. `must`: NCCL_NET forces this network."""
    if not groups:
        known = f"{kind} needs no library besides NCCL" if kind else "the site profile names no fast network"
        return Check("fabric", "ok" if kind else "skip", known)
    absent = [" or ".join(group) for group in groups if not any(paths.get(name) for name in group)]
    if not absent:
        present = ", ".join(str(next(paths[name] for name in group if paths.get(name))) for group in groups)
        return Check("fabric", "ok", f"{kind or 'the network'}: {present}")
    message = f"{kind or 'the network'}: {', '.join(absent)} not found in the image"
    hint = "bind the site's libraries with `binds` and LD_LIBRARY_PATH, or use an image that has them"
    if must:
        return Check("fabric", "fail", f"{message}, and NCCL_NET allows no other network", hint)
    return Check("fabric", "warn", f"{message}; NCCL would silently fall back to TCP", hint)
