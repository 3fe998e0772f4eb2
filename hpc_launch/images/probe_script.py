"""Run by a Python inside an image (3.8 and later, standard library alone): says in JSON what is there.

Its words are what to look for: a JSON object {"imports": [...], "folders": [...], "libraries": [...], "program": ...}.
"""

from __future__ import annotations

import ctypes.util
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from typing import Any

PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "numpy", "megatron-core", "flash-attn")
LIBRARY_FOLDERS = (
    "/usr/lib /usr/lib64 /usr/local/lib /usr/local/lib64 /lib /lib64 /.singularity.d/libs /opt/amazon/ofi/lib "
    "/opt/amazon/efa/lib /opt/aws-ofi-nccl/lib /opt/amazon/ofi-nccl/lib /usr/local/aws-ofi-nccl/lib /opt/rocm/lib "
    "/opt/hpcx/ucx/lib /opt/hpcx/nccl_rdma_sharp_plugin/lib /usr/local/cuda/lib64 /usr/local/ucx/lib"
).split()


def version(name: str) -> str | None:
    """The release of an installed package."""
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None


def torch_build() -> dict[str, str | None]:
    """PyTorch's release and what it was built for, from its version.py: importing torch takes long, and may fail."""
    try:
        spec = importlib.util.find_spec("torch")
        folder = os.path.dirname(spec.origin)  # type: ignore[union-attr,arg-type]
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as stream:
            text = stream.read()
    except Exception:
        return {}
    found: dict[str, str | None] = {}
    for key in ("__version__", "cuda", "hip"):
        value = re.search(rf"^{key}\s*(?::[^=]*)?=\s*['\"]([^'\"]+)", text, re.MULTILINE)
        found[key.strip("_")] = value.group(1) if value else None
    return found


def torch_words() -> dict[str, Any]:
    """What torch itself says once it is imported: whether it is whole, and its NCCL."""
    try:
        import torch
        import torch.distributed as dist
    except BaseException as error:
        return {"fault": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    said: dict[str, Any] = {"fault": None, "nccl": None, "gloo": False}
    try:
        said["gloo"] = dist.is_available() and dist.is_gloo_available()
        if dist.is_available() and dist.is_nccl_available():
            said["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception as error:
        said["nccl_fault"] = str(error)
    return said


def missing(names: list[str], folders: list[str]) -> list[str]:
    """Those of the modules that cannot be found, with the script's folders first as Python itself has them."""
    sys.path[:0] = folders
    lost = []
    for name in names:
        try:
            if name not in sys.builtin_module_names and importlib.util.find_spec(name) is None:
                lost.append(name)
        except Exception as error:
            # The package above it fails by itself.
            lost.append(f"{name} ({type(error).__name__})")
    return lost


def libraries(names: list[str]) -> dict[str, str | None]:
    """Where each library lies; the loader's cache is asked, then LD_LIBRARY_PATH and the usual folders."""
    folders = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part] + list(LIBRARY_FOLDERS)
    folders += glob.glob("/usr/lib/*-linux-gnu") + glob.glob("/opt/cray/libfabric/*/lib64")
    found: dict[str, str | None] = {}
    for name in names:
        hits = [path for folder in folders for path in glob.glob(os.path.join(folder, name + "*"))]
        stem = re.match(r"lib(.+?)\.so", name)
        known = ctypes.util.find_library(stem.group(1)) if stem and not hits else None
        found[name] = hits[0] if hits else known
    return found


def writable(path: str) -> bool:
    """Whether a file can be made in a folder."""
    probe = os.path.join(path, f".hpc-launch-probe-{os.getpid()}")
    try:
        with open(probe, "w", encoding="ascii"):
            pass
        os.unlink(probe)
    except OSError:
        return False
    return True


def main() -> None:
    """Print what was asked for, behind a mark: the image may print more."""
    asked = json.loads(sys.argv[1])
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
    said = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "packages": {name: known for name in PACKAGES for known in [version(name)] if known},
        "torch": torch_build(),
        "bash": shutil.which("bash"),
        "program": shutil.which(asked["program"]) if asked.get("program") else None,
        "missing": missing(asked.get("imports", []), asked.get("folders", [])),
        "libraries": libraries(asked.get("libraries", [])),
        "compat": bool(glob.glob("/usr/local/cuda*/compat/libcuda.so*")),
        "writable": {path: writable(path) for path in asked.get("writable", [])},
        "home": os.path.expanduser("~"),
        "seen": {path: os.path.exists(path) for path in asked.get("seen", [])},
    }
    if asked.get("import_torch") and said["torch"]:
        said["torch_words"] = torch_words()
    print("HPC-LAUNCH-PROBE " + json.dumps(said))


main()
