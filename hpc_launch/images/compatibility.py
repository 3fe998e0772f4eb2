"""What must fit between an image and the machine: processor, PyTorch's build and the GPUs, the driver, the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, to_builtins

Level = Literal["ok", "warn", "fail", "skip"]


class Check(Struct, frozen=True):
    """One thing that was looked at. `skip`: it could not be, and the message says why."""

    name: str
    level: Level
    message: str
    hint: str | None = None

    def as_json(self) -> dict[str, object]:
        """An object of the list in `containers check --json`."""
        builtins: dict[str, object] = to_builtins(self)
        return builtins


CUDA_DRIVERS = (((13, 0), "580"), ((12, 0), "525"), ((11, 0), "450"), ((10, 2), "440.33"), ((10, 1), "418.39"))
"""The oldest Linux driver for programs built with a CUDA release: from 11 on one for all of a major release, "minor
version compatibility" (docs.nvidia.com/deploy/cuda-compatibility, minor-version-compatibility, tables 1 and 2)."""

ROCM_RELEASES = ("5.2 5.3 5.4 5.5 5.6 5.7 6.0 6.1 6.2 6.3 6.4").split()
ROCM_REACH = 2
"""AMD tests a kernel driver with the ROCm of two releases before and after (rocm.docs.amd.com, install-on-linux,
user-kernel-space-compat-matrix); releases after 6.4 count their drivers otherwise and are not judged."""

NETWORK_LIBRARIES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "slingshot": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "efa": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "gcp": (("libnccl-net",),),
    "infiniband": (("libibverbs.so.1",),),
    "roce": (("libibverbs.so.1",),),
    "omni-path": (),
    "ethernet": (),
}
"""What NCCL needs beside itself: one library of each group. InfiniBand is built into NCCL, which loads libibverbs
(NCCL's ibvwrap.cc); Slingshot and EFA want aws-ofi-nccl over libfabric (its README), GCP's
networks a plugin of theirs."""


def version_of(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: `2.13.0+cu130` gives (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def least_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA release; None where the table does not say."""
    wanted = version_of(cuda)
    for release, driver in CUDA_DRIVERS:
        if wanted >= release:
            return driver if wanted[0] <= CUDA_DRIVERS[0][0][0] else None
    return None


def check_torch(torch: Mapping[str, str | None], vendor: str | None, *, needed: bool, declared: str | None) -> Check:
    """Whether PyTorch is there, and for these GPUs. `vendor` is None for a job without GPUs."""
    found = torch.get("version")
    if not found:
        if needed:
            hint = "use an image with PyTorch, or a venv in `container.prelude`"
            return Check("torch", "fail", "there is no PyTorch in the image, and the launcher is a part of it", hint)
        return Check("torch", "warn", "there is no PyTorch in the image")
    cuda, hip = torch.get("cuda"), torch.get("hip")
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the CPU alone"
    said = f"PyTorch {found} for {build}"
    wrong = {"nvidia": cuda is None, "amd": hip is None}.get(vendor or "", False)
    if wrong:
        wants = "CUDA" if vendor == "nvidia" else "ROCm"
        return Check("torch", "fail", f"{said}, and the nodes' GPUs want {wants}", f"use an image built for {wants}")
    if declared is not None and version_of(declared)[:2] != version_of(found)[:2]:
        hint = "mend `torch` of the image in the site profile, or of `environment` in the job: options are chosen by it"
        return Check("torch", "fail", f"{said}, and {declared} is declared", hint)
    return Check("torch", "ok", said)


def check_driver(torch: Mapping[str, str | None], vendor: str | None, driver: str | None, *, compat: bool) -> Check:
    """Whether the nodes' driver is new enough. `compat`: the image brings CUDA's forward compatibility libraries."""
    cuda, hip = torch.get("cuda"), torch.get("hip")
    if vendor is None or not (cuda or hip):
        return Check("driver", "skip", "no GPUs, so no driver")
    if driver is None:
        hint = "say it in the profile: `node_classes: {NAME: {versions: {driver: '580.65'}}}`"
        return Check("driver", "skip", "the nodes' driver is not known, and this machine has none", hint)
    if vendor == "amd":
        return _check_amd(hip or "", driver)
    least = least_driver(cuda or "")
    if least is None:
        return Check("driver", "skip", f"the driver for CUDA {cuda} is not in our table")
    if version_of(driver) >= version_of(least):
        return Check("driver", "ok", f"driver {driver}; CUDA {cuda} wants {least} or newer")
    message = f"driver {driver} is too old for CUDA {cuda}, which wants {least} or newer"
    if compat:
        hint = "its compatibility libraries do on data centre GPUs what the driver cannot; try it on one node"
        return Check("driver", "warn", message, hint)
    return Check("driver", "fail", message, "use an image with an older CUDA")


def _check_amd(hip: str, driver: str) -> Check:
    image, nodes = (".".join(map(str, version_of(text)[:2])) for text in (hip, driver))
    if image not in ROCM_RELEASES or nodes not in ROCM_RELEASES:
        return Check("driver", "skip", f"ROCm {image} with the driver of {nodes} is not in our table")
    apart = abs(ROCM_RELEASES.index(image) - ROCM_RELEASES.index(nodes))
    if apart <= ROCM_REACH:
        return Check("driver", "ok", f"ROCm {image} with the driver of ROCm {nodes}")
    message = f"ROCm {image} and the driver of ROCm {nodes} are {apart} releases apart; AMD tests {ROCM_REACH}"
    return Check("driver", "warn", message, "try it on one node first")


def check_nccl(words: Mapping[str, object] | None, vendor: str | None) -> Check:
    """PyTorch's own word, once it was imported."""
    if words is None:
        return Check("nccl", "skip", "PyTorch is not there to be asked")
    if words.get("fault"):
        hint = "a library that it needs is not seen inside; on a login node without a driver it may be that alone"
        return Check("nccl", "fail", f"`import torch` fails: {words['fault']}", hint)
    if words.get("nccl"):
        return Check("nccl", "ok", f"{'RCCL' if vendor == 'amd' else 'NCCL'} {words['nccl']}, as PyTorch has it")
    if vendor is not None:
        return Check("nccl", "fail", "this PyTorch has no NCCL, which GPUs of several processes need")
    gloo = bool(words.get("gloo"))
    return Check("nccl", "ok" if gloo else "warn", f"no GPUs: Gloo is {'there' if gloo else 'not there'}")


def wanted_libraries(kind: str | None, plugin: str | None, asked: Iterable[str] | None) -> tuple[tuple[str, ...], ...]:
    """Groups of shared libraries of which one each must be inside, by what the site says or by its kind of network."""
    if asked is not None:
        return tuple((name,) for name in asked)
    if plugin == "none":
        return ()
    named = (
        (plugin,) if plugin and plugin.startswith("lib") else (f"libnccl-net-{plugin}", "libnccl-net") if plugin else ()
    )
    groups = NETWORK_LIBRARIES.get(kind or "", ())
    if not named:
        return groups
    return (named, *(group for group in groups if not group[0].startswith("libnccl-net")))


def check_fabric(
    kind: str | None, groups: tuple[tuple[str, ...], ...], found: Mapping[str, str | None], *, must: bool
) -> Check:
    """Whether the fast network's libraries are inside. `must`: NCCL was told to take no other network."""
    if not groups:
        known = f"{kind} needs no library beside NCCL" if kind else "the site says nothing of a fast network"
        return Check("fabric", "ok" if kind else "skip", known)
    lost = [" or ".join(group) for group in groups if not any(found.get(name) for name in group)]
    if not lost:
        there = ", ".join(str(next(found[name] for name in group if found.get(name))) for group in groups)
        return Check("fabric", "ok", f"{kind or 'the network'}: {there}")
    message = f"{kind or 'the network'}: {', '.join(lost)} not found inside"
    hint = "bind the site's own with `binds` and LD_LIBRARY_PATH, or use an image that has it"
    if must:
        return Check("fabric", "fail", f"{message}, and NCCL_NET allows no other network", hint)
    return Check("fabric", "warn", f"{message}: NCCL would fall back to TCP without a word", hint)
