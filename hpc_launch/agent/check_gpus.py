"""Checks of a node's GPUs, for check.py: by nvidia-smi, by the files of the other vendors' drivers, by PyTorch."""

import glob
import os
import re
import subprocess
import time
from typing import List

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER
from hpc_launch.agent.check_host import Result, result, unknown
from hpc_launch.agent.describe_host import SMI_S, Ask, answer, ask_nvidia, rows_of
from hpc_launch.agent.job_processes import text_of

CLEAR_S = 50.0
"""How long the processes of an earlier job may take to leave the GPUs."""
HELD_MIB, HELD = 3072, 0.06
"""Memory that an unused GPU may hold: the driver takes up to 1 GiB, and the check's own product less than 1 GiB."""
COMPUTE_S = 90.0
"""Importing PyTorch from a cold parallel file system takes most of it."""
SOFTWARE = (
    *("no kernel image", "invalid device ordinal"),
    *("driver version is insufficient", "not compiled with", "ImportError"),
)
"""Errors of PyTorch that are no fault of a GPU, on whichever node."""
NVIDIA_FIELDS = "index,count,name,ecc.errors.uncorrected.volatile.total,driver_version"
SLOWED = "the hardware has lowered the clocks (heat or power)"
STATES = (
    ("remapped_rows.failure", "a memory row could not be remapped"),
    ("remapped_rows.pending", "a memory row waits to be remapped; the GPU needs a reset"),
    ("clocks_event_reasons.hw_slowdown", SLOWED),
    ("clocks_throttle_reasons.hw_slowdown", SLOWED),  # its older name
)
"""Fields of nvidia-smi (--help-query-gpu), and what they mean if they are set."""
SET = ("Yes", "1", "Active")


def nvidia(gpus: int, model: str, ask: Ask = answer) -> Result:
    """Number, model and errors of the GPUs by nvidia-smi; model and driver are compared between nodes."""
    code, text = ask_nvidia(NVIDIA_FIELDS, ask)
    rows = rows_of(text, 5)
    if "No devices were found" in text:
        return result(False, "0 of %d GPUs: nvidia-smi finds none" % gpus, promised(0))
    if code != 0:
        return result(False, "nvidia-smi exits with %d: %s" % (code, " ".join(text.split())[:200]))
    if not rows or rows[0][1] != str(len(rows)):  # each line has the number of all GPUs
        return unknown("the output of nvidia-smi is incomplete")
    if len(rows) < gpus:
        return result(False, "%d of %d GPUs" % (len(rows), gpus), promised(len(rows)))
    models = ", ".join(sorted({row[2] for row in rows}))
    if model and not all(words_in(model, row[2]) for row in rows):
        return result(False, "the GPUs are %s, not %s" % (models, model), False)
    errors = [row for row in rows if row[3].isdigit() and int(row[3])]
    if errors:
        return result(False, "GPU %s: %s uncorrectable memory errors" % (errors[0][0], errors[0][3]))
    return result(True, "%d GPUs" % len(rows), {"the GPU model": models, "the GPU driver": rows[0][4]})


def promised(found: int) -> bool:
    """Whether Slurm has promised more GPUs: they lack by the fault of the node, even if it is the only one."""
    number = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return found < (int(number) if number.isdigit() else 0)


def words_in(model: str, name: str) -> bool:
    """Whether the GPU's name has the model of Slurm's type: `h100-80` and `NVIDIA H100 80GB HBM3`."""
    known = re.match(r"(?:nvidia[_-]?)?([a-z]{1,3}\d{2,4})", model.lower())
    return known is None or known.group(1) in name.lower()


def nvidia_state(ask: Ask = answer) -> Result:
    """Rows that wait for a reset, and clocks that the hardware has lowered."""
    checked = []
    for field, text in STATES:
        code, said = ask_nvidia("index," + field, ask)
        rows = rows_of(said, 2) if code == 0 else []
        checked += [field] if rows else []
        for index, state in rows:
            if state in SET:
                return result(False, "GPU %s: %s" % (index, text))
    return result(True, ", ".join(checked)) if checked else unknown("nvidia-smi reports no values for these fields")


def nvidia_links(gpus: int, ask: Ask = answer) -> Result:
    """The number of active NVLinks, which is compared between nodes."""
    code, text = ask(["nvidia-smi", "nvlink", "--status"], SMI_S)
    if code != 0:
        return unknown("nvidia-smi nvlink exits with %d" % code)
    cards = re.split(r"^GPU ", text, flags=re.MULTILINE)[1:]
    links = [re.findall(r"^\s*Link \d+: (.*)\n", card, re.MULTILINE) for card in cards]
    if not text.endswith("\n") or len(links) < max(2, gpus) or len({len(one) for one in links}) > 1:
        return unknown("nvidia-smi nvlink does not list all links")  # a GPU lists inactive links too
    up = sum(" GB/s" in line for one in links for line in one)
    return result(True, "%d links" % up, up)


def nvidia_processes(gpus: int, ask: Ask = answer, clear_s: float = CLEAR_S) -> Result:
    """Processes of earlier jobs on the GPUs, and memory still held; both may still be ending."""
    end = time.monotonic() + clear_s
    while True:
        code, text = ask_nvidia("pid,used_memory", ask, "compute-apps")
        if code != 0:
            return unknown("nvidia-smi exits with %d" % code)
        others = [row for row in rows_of(text, 2) if row[0].isdigit() and not of_this_job(row[0])]
        cards = [row for row in rows_of(ask_nvidia("index,memory.used,memory.total", ask)[1], 3) if row[2].isdigit()]
        if not cards or len(cards) > gpus:
            return unknown("the node has GPUs of other jobs, too" if cards else "the answer is incomplete")
        full = [row for row in cards if int(row[1]) > max(HELD_MIB, HELD * int(row[2]))]
        if not others and not full:
            return result(True, "no processes on the GPUs")
        if time.monotonic() > end:
            text = "process %s holds %s MiB of a GPU" % tuple(others[0]) if others else ""
            return result(False, text or "%s MiB of GPU %s are in use" % (full[0][1], full[0][0]))
        time.sleep(2)


def of_this_job(pid: str) -> bool:
    """Whether a process belongs to this job, as the check's own product on the GPUs does."""
    name = "SLURM_JOB_ID" if "SLURM_JOB_ID" in os.environ else "HPC_LAUNCH_ATTEMPT_DIR"
    job = os.environ.get(name, "")
    return bool(job) and "\0%s=%s\0" % (name, job) in "\0%s\0" % text_of("/proc/%s/environ" % pid)


VENDORS = {"amd": "0x1002", "intel": "0x8086"}
"""The number in the files of a GPU's driver."""
ERRORS, COUNT = "ras/*_err_count", re.compile(r"ue:\s*(\d+)")
"""The files of AMD's driver below a GPU's folder, and the uncorrectable errors in them."""
CARDS = "/sys/class/drm/renderD*/device"


def by_files(gpus: int, vendor: str, cards: str = CARDS) -> List[Result]:
    """Number and state of the GPUs by the files of their driver; no tool is needed."""
    found = [card for card in sorted(glob.glob(cards)) if text_of(card + "/vendor").strip() == VENDORS[vendor]]
    number = result(len(found) >= gpus, "%d of %d GPUs" % (len(found), gpus))
    number["value"] = bool(found) and promised(len(found))
    state = unknown("the driver has no files about errors")
    for card in found:
        for path in sorted(glob.glob(os.path.join(card, ERRORS))):
            count = COUNT.search(text_of(path))
            if count and state["ok"] is not False:
                words = os.path.basename(os.path.realpath(card)), os.path.basename(path), count.group(1)
                state = result(not int(count.group(1)), "%s: uncorrectable errors (%s: %s)" % words)
    return [dict(number, check="gpus"), dict(state, check="gpu state")]


COMPUTE = (
    WITHOUT_CURRENT_FOLDER
    + """
import sys, time
import torch
gpus = int(sys.argv[1])
print("imported", flush=True)
kind = "cuda"
if gpus and not torch.cuda.is_available() and hasattr(torch, "xpu") and torch.xpu.is_available():
    kind, gpus = "xpu", torch.xpu.device_count()  # a GPU of two tiles can be two devices
elif gpus and not torch.cuda.is_available():
    print("unavailable", flush=True); raise SystemExit
for gpu in range(gpus):
    print("device", gpu, flush=True)
    a = torch.ones(8192, 8192, device="%s:%d" % (kind, gpu))
    b = a[:2048, :2048] @ a[:2048, :2048]
    assert bool(torch.isfinite(b).all()) and float(b[7, 7]) == 2048.0, "wrong product"
print("done", flush=True)
"""
)


def compute(python: str, gpus: int) -> Result:
    """A small matrix product on each GPU, with the training's own PyTorch."""
    try:
        code, text = answer([python, "-c", COMPUTE, str(gpus)], COMPUTE_S)
    except subprocess.TimeoutExpired as late:
        text = (late.output or b"").decode("utf-8", "replace") + "\nno answer within %d s" % COMPUTE_S
        code = 1
    lines = text.split("\n")
    said = ([line for line in lines if line] or [""])[-1][:200]
    if "imported" not in lines or any(words in text for words in SOFTWARE):
        return unknown("the training's PyTorch: " + said)
    if "unavailable" in lines:
        return unknown("PyTorch sees no GPU")
    if code == 0 and "done" in lines:
        return result(True, "each GPU computed")
    begun = [line.split()[1] for line in lines if line.startswith("device ")]
    return result(False, "GPU %s: %s" % ((begun or ["?"])[-1], said))
