"""Run by a Python inside an image (3.8 or later, standard library only): prints as JSON what the image contains.

Its argument is a JSON object: {"imports": [...], "folders": [...], "libraries": [...], "program": ...}.
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
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None


def torch_build() -> dict[str, str | None]:
    """PyTorch's version and GPU platform, from its version.py: importing torch is slow and may fail."""
    try:
        spec = importlib.util.find_spec("torch")
        folder = os.path.dirname(spec.origin)  # type: ignore[union-attr,arg-type]
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as stream:
            text = stream.read()
    except Exception:
        return {}
    values: dict[str, str | None] = {}
    for key in ("__version__", "cuda", "hip"):
        value = re.search(rf"^{key}\s*(?::[^=]*)?=\s*['\"]([^'\"]+)", text, re.MULTILINE)
        values[key.strip("_")] = value.group(1) if value else None
    return values


def torch_import() -> dict[str, Any]:
    """Import torch and report errors and the available backends."""
    try:
        import torch
        import torch.distributed as dist
    except BaseException as error:
        return {"fault": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    answer: dict[str, Any] = {"fault": None, "nccl": None, "gloo": False}
    try:
        answer["gloo"] = dist.is_available() and dist.is_gloo_available()
        if dist.is_available() and dist.is_nccl_available():
            answer["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception as error:
        answer["nccl_fault"] = str(error)
    return answer


def missing(names: list[str], folders: list[str]) -> list[str]:
    """The modules that cannot be found, searching the script's folders first, as Python does."""
    sys.path[:0] = folders
    missing_names = []
    for name in names:
        try:
            if name not in sys.builtin_module_names and importlib.util.find_spec(name) is None:
                missing_names.append(name)
        except Exception as error:
            # Importing its parent package fails.
            missing_names.append(f"{name} ({type(error).__name__})")
    return missing_names


def libraries(names: list[str]) -> dict[str, str | None]:
    """The path of each library, from LD_LIBRARY_PATH, the usual folders and the loader's cache."""
    folders = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part] + list(LIBRARY_FOLDERS)
    folders += glob.glob("/usr/lib/*-linux-gnu") + glob.glob("/opt/cray/libfabric/*/lib64")
    values: dict[str, str | None] = {}
    for name in names:
        hits = [path for folder in folders for path in glob.glob(os.path.join(folder, name + "*"))]
        stem = re.match(r"lib(.+?)\.so", name)
        known = ctypes.util.find_library(stem.group(1)) if stem and not hits else None
        values[name] = hits[0] if hits else known
    return values


def writable(path: str) -> bool:
    """Whether a file can be created in a folder."""
    probe = os.path.join(path, f".hpc-launch-probe-{os.urandom(16).hex()}")
    try:
        with open(probe, "x", encoding="ascii"):
            pass
        os.unlink(probe)
    except OSError:
        return False
    return True


def main() -> None:
    """Print the answer after a marker, because the image may print other text."""
    request = json.loads(sys.argv[1])
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
    answer = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "packages": {name: known for name in PACKAGES for known in [version(name)] if known},
        "torch": torch_build(),
        "bash": shutil.which("bash"),
        "program": shutil.which(request["program"]) if request.get("program") else None,
        "missing": missing(request.get("imports", []), request.get("folders", [])),
        "libraries": libraries(request.get("libraries", [])),
        "compat": bool(glob.glob("/usr/local/cuda*/compat/libcuda.so*")),
        "writable": {path: writable(path) for path in request.get("writable", [])},
    }
    if request.get("import_torch") and answer["torch"]:
        answer["torch_import"] = torch_import()
    print("HPC-LAUNCH-PROBE " + json.dumps(answer))


main()
