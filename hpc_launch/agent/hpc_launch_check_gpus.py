"""Checks of a node's GPUs, for hpc_launch_check.py: by nvidia-smi, by the files of the drivers, by PyTorch.

Standard library of Python 3.6 or later.
"""

import glob
import os
import re
import shutil
import subprocess
import time
from typing import List

from hpc_launch_check_host import CHECK_S, Result, answer, result, text_of, unknown

SMI_S = 20.0
"""nvidia-smi takes this long on a node whose persistence daemon does not run."""
CLEAR_S = 50.0
"""How long the processes of an earlier job may take to leave the GPUs."""
COMPUTE_S = 90.0
"""Importing PyTorch from a cold parallel file system takes most of it."""
NVIDIA_FIELDS = "index,name,memory.total,memory.used,ecc.errors.uncorrected.volatile.total"
REMAPPING = "index,remapped_rows.pending,remapped_rows.failure"
SLOWDOWN = ("clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown")
"""The newer and the older name of one field (nvidia-smi --help-query-gpu)."""


def nvidia(gpus: int, model: str) -> Result:
    """Number, model and errors of the GPUs by nvidia-smi."""
    code, text = answer(["nvidia-smi", "--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits"], SMI_S)
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [row for row in ([word.strip() for word in line.split(",")] for line in lines) if len(row) == 5]
    if code != 0:
        return result(False, "nvidia-smi exits with %d: %s" % (code, " ".join(lines)[:200]))
    if len(rows) != len(lines) or not text.endswith("\n"):
        return unknown("nvidia-smi's answer is incomplete")
    models = sorted({row[1] for row in rows})
    value = {"gpus": len(rows), "models": models}
    if len(rows) < gpus:
        return result(False, "%d of %d GPUs" % (len(rows), gpus), value)
    if model and not all(words_in(model, row[1]) for row in rows):
        return result(False, "the GPUs are %s, not %s" % (", ".join(models), model), value)
    errors = [row for row in rows if row[4].isdigit() and int(row[4])]
    if errors:
        return result(False, "GPU %s: %s uncorrectable memory errors" % (errors[0][0], errors[0][4]), value)
    return result(True, "%d GPUs" % len(rows), value)


def words_in(model: str, name: str) -> bool:
    """Whether the GPU's name has the model of Slurm's type: `h100-80` and `NVIDIA H100 80GB HBM3`."""
    known = re.match(r"(?:nvidia[_-]?)?([a-z]{1,3}\d{2,4})", model.lower())
    return known is None or known.group(1) in name.lower()


def nvidia_state() -> Result:
    """Rows that wait for a reset, and clocks that the hardware has lowered."""
    code, text = answer(["nvidia-smi", "--query-gpu=" + REMAPPING, "--format=csv,noheader,nounits"], SMI_S)
    checked = []
    if code == 0:
        checked.append("memory rows")
        for index, pending, failed in rows_of(text, 3):
            if failed in ("Yes", "1"):
                return result(False, "GPU %s: a memory row could not be remapped" % index)
            if pending in ("Yes", "1"):
                return result(False, "GPU %s: a memory row waits to be remapped; the GPU needs a reset" % index)
    for field in SLOWDOWN:
        code, text = answer(["nvidia-smi", "--query-gpu=index," + field, "--format=csv,noheader,nounits"], SMI_S)
        if code == 0:
            checked.append("clocks")
            for index, active in rows_of(text, 2):
                if active == "Active":
                    return result(False, "GPU %s: the hardware has lowered the clocks (heat or power)" % index)
            break
    return result(True, ", ".join(checked)) if checked else unknown("nvidia-smi does not know these fields")


def nvidia_links() -> Result:
    """The number of active NVLinks, which is compared between nodes."""
    code, text = answer(["nvidia-smi", "nvlink", "--status"], SMI_S)
    if code != 0:
        return unknown("nvidia-smi nvlink exits with %d" % code)
    up = sum(" GB/s" in line for line in text.splitlines())
    return result(True, "%d links" % up, up)


def nvidia_processes() -> Result:
    """Processes of earlier jobs on the GPUs; they may still be ending."""
    end = time.monotonic() + CLEAR_S
    while True:
        words = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        code, text = answer(words, SMI_S)
        if code != 0:
            return unknown("nvidia-smi exits with %d" % code)
        rows = rows_of(text, 2)
        if not rows:
            return result(True, "no processes on the GPUs")
        if time.monotonic() > end:
            return result(False, "process %s holds %s MiB of a GPU" % (rows[0][0], rows[0][1]))
        time.sleep(2)


def rows_of(text: str, columns: int) -> List[List[str]]:
    """The lines of an answer that are complete, as words."""
    rows = ([word.strip() for word in line.split(",")] for line in text.splitlines())
    return [row for row in rows if len(row) == columns]


def amd(gpus: int) -> Result:
    """Number and memory errors of the GPUs by the files of the AMD driver; no tool is needed."""
    cards = [os.path.dirname(path) for path in glob.glob("/sys/class/drm/renderD*/device/vendor")]
    cards = [card for card in cards if text_of(card + "/vendor").strip() == "0x1002"]
    if not cards and not os.path.exists("/dev/kfd"):
        return result(False, "0 of %d GPUs: no /dev/kfd" % gpus, {"gpus": 0})
    if len(cards) < gpus:
        return result(False, "%d of %d GPUs" % (len(cards), gpus), {"gpus": len(cards)})
    for card in cards:
        errors = re.search(r"ue:\s*(\d+)", text_of(card + "/ras/umc_err_count"))
        if errors and int(errors.group(1)):
            return result(False, "%s: %s uncorrectable memory errors" % (os.path.realpath(card)[-12:], errors.group(1)))
    return result(True, "%d GPUs" % len(cards), {"gpus": len(cards)})


def intel(gpus: int) -> Result:
    """Number of the GPUs by the files of the Intel driver."""
    cards = [path for path in glob.glob("/sys/class/drm/renderD*/device/vendor") if text_of(path).strip() == "0x8086"]
    ok = len(cards) >= gpus
    return result(ok, "%d%s GPUs" % (len(cards), "" if ok else " of %d" % gpus), {"gpus": len(cards)})


def kernel_log() -> Result:
    """GPU errors in the kernel's log, which only some sites let users read."""
    if not shutil.which("dmesg"):
        return unknown("no dmesg")
    code, text = answer(["dmesg"], CHECK_S)
    if code != 0:
        return unknown("no permission to read the kernel's log")
    lost = re.findall(r"NVRM: Xid \((?:PCI:)?([^)]*)\): (48|64|79|95|119|120|140),", text)
    if lost:
        return result(False, "the kernel's log has Xid %s of GPU %s" % (lost[-1][1], lost[-1][0]))
    return result(True, "no Xid that needs a reset")


COMPUTE = """
import sys, time
import torch
gpus = int(sys.argv[1])
print("imported", flush=True)
if gpus and not torch.cuda.is_available():
    print("unavailable", flush=True); raise SystemExit
for gpu in range(gpus):
    print("device", gpu, flush=True)
    a = torch.ones(8192, 8192, device="cuda:%d" % gpu)
    b = a[:2048, :2048] @ a[:2048, :2048]
    assert bool(torch.isfinite(b).all()) and float(b[7, 7]) == 2048.0, "wrong product"
print("done", flush=True)
"""


def compute(python: str, gpus: int) -> Result:
    """A small matrix product on each GPU, with the training's own PyTorch."""
    words = [python, "-c", COMPUTE, str(gpus)]
    try:
        code, text = answer(words, COMPUTE_S)
    except subprocess.TimeoutExpired as late:
        seen = (late.output or b"").decode("utf-8", "replace").split("\n")
        if "imported" not in seen:
            return unknown("PyTorch was not imported within %d s" % COMPUTE_S)
        return result(False, "GPU %s does not finish a matrix product" % last_device(seen))
    lines = text.split("\n")
    if "imported" not in lines:
        return unknown("no PyTorch outside the image")
    if "unavailable" in lines:
        return unknown("PyTorch sees no GPU")
    if code == 0 and "done" in lines:
        return result(True, "each GPU computed")
    return result(False, "GPU %s: %s" % (last_device(lines), ([line for line in lines if line] or [""])[-1][:200]))


def last_device(lines: List[str]) -> str:
    """The GPU that was begun last."""
    return ([line.split()[1] for line in lines if line.startswith("device ")] or ["?"])[-1]
