"""Checks of a node's GPUs, for check.py: by nvidia-smi, by the files of AMD's driver, by PyTorch.

Standard library of Python 3.6 or later.
"""

import glob
import json
import os
import re
import subprocess
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER
from hpc_launch.agent.check_host import Result, answer, result, text_of, unknown

Ask = Callable[[List[str], float], Tuple[int, str]]
SMI_S = 30.0
"""nvidia-smi takes this long on a node whose persistence daemon does not run."""
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
RECENT_S = 3600.0
KERNEL_LOG = "/dev/kmsg"
XID = re.compile(
    r"^[0-7],\d+,(\d+),[^;\n]*;NVRM: Xid "
    r"\((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): (48|64|79|95|119|120|140), ",
    re.MULTILINE,
)
"""A record of the kernel itself. The name of a process, with which other messages begin, has no room for an address."""
NVIDIA_FIELDS = "index,count,name,ecc.errors.uncorrected.volatile.total"
REMAPPING = "index,remapped_rows.pending,remapped_rows.failure"
SLOWDOWN = ("clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown")
"""The newer and the older name of one field (nvidia-smi --help-query-gpu)."""


def nvidia(gpus: int, model: str, ask: Ask = answer) -> Result:
    """Number, model and errors of the GPUs by nvidia-smi."""
    code, text = query(NVIDIA_FIELDS, ask)
    rows = rows_of(text, 4)
    if "No devices were found" in text:
        return result(False, "0 of %d GPUs: nvidia-smi finds none" % gpus, promised(0))
    if code != 0:
        return result(False, "nvidia-smi exits with %d: %s" % (code, " ".join(text.split())[:200]))
    if not rows or rows[0][1] != str(len(rows)):  # each line has the number of all GPUs
        return unknown("the answer of nvidia-smi is incomplete")
    models = sorted({row[2] for row in rows})
    value = {"gpus": len(rows), "models": models}
    if len(rows) < gpus:
        return result(False, "%d of %d GPUs" % (len(rows), gpus), promised(len(rows)))
    if model and not all(words_in(model, row[2]) for row in rows):
        return result(False, "the GPUs are %s, not %s" % (", ".join(models), model), value)
    errors = [row for row in rows if row[3].isdigit() and int(row[3])]
    if errors:
        return result(False, "GPU %s: %s uncorrectable memory errors" % (errors[0][0], errors[0][3]))
    return result(True, "%d GPUs" % len(rows), value)


def nvidia_driver(ask: Ask = answer) -> Result:
    """The version of the driver, which is compared between nodes."""
    code, text = query("driver_version", ask)
    found = sorted({row[0] for row in rows_of(text, 1)}) if code == 0 else []
    return result(True, found[0], {"driver": found[0]}) if found else unknown("nvidia-smi gives no driver version")


def promised(found: int) -> Dict[str, int]:
    """The value of a check that found too few GPUs: it is the fault of an only node if Slurm promised more."""
    number = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return {"gpus": found, "promised": int(number) if number.isdigit() else 0}


def query(fields: str, ask: Ask) -> Tuple[int, str]:
    """Exit code and answer of nvidia-smi about each GPU."""
    return ask(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], SMI_S)


def words_in(model: str, name: str) -> bool:
    """Whether the GPU's name has the model of Slurm's type: `h100-80` and `NVIDIA H100 80GB HBM3`."""
    known = re.match(r"(?:nvidia[_-]?)?([a-z]{1,3}\d{2,4})", model.lower())
    return known is None or known.group(1) in name.lower()


def nvidia_state(ask: Ask = answer) -> Result:
    """Rows that wait for a reset, and clocks that the hardware has lowered."""
    code, text = query(REMAPPING, ask)
    checked = []
    for index, pending, failed in rows_of(text, 3) if code == 0 else []:
        checked = ["memory rows"]
        if failed in ("Yes", "1"):
            return result(False, "GPU %s: a memory row could not be remapped" % index)
        if pending in ("Yes", "1"):
            return result(False, "GPU %s: a memory row waits to be remapped; the GPU needs a reset" % index)
    for field in SLOWDOWN:
        code, text = query("index," + field, ask)
        if code == 0:
            rows = rows_of(text, 2)
            checked += ["clocks"] if rows else []
            for index, active in rows:
                if active == "Active":
                    return result(False, "GPU %s: the hardware has lowered the clocks (heat or power)" % index)
            break
    return result(True, ", ".join(checked)) if checked else unknown("nvidia-smi gives no values of these fields")


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
        words = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        code, text = ask(words, SMI_S)
        if code != 0:
            return unknown("nvidia-smi exits with %d" % code)
        others = [row for row in rows_of(text, 2) if row[0].isdigit() and not of_this_job(row[0])]
        code, text = query("index,memory.used,memory.total", ask)
        cards = [row for row in rows_of(text, 3) if row[1].isdigit() and row[2].isdigit()]
        if len(cards) > gpus:
            return unknown("the node has GPUs of other jobs, too")
        full = [row for row in cards if int(row[1]) > max(HELD_MIB, HELD * int(row[2]))]
        if not others and not full:
            return result(True, "no processes on the GPUs") if cards else unknown("the answer is incomplete")
        if time.monotonic() > end:
            text = "process %s holds %s MiB of a GPU" % tuple(others[0]) if others else ""
            return result(False, text or "%s MiB of GPU %s are in use" % (full[0][1], full[0][0]))
        time.sleep(2)


def of_this_job(pid: str) -> bool:
    """Whether a process belongs to this job, as the check's own product on the GPUs does."""
    name = "SLURM_JOB_ID" if "SLURM_JOB_ID" in os.environ else "HPC_LAUNCH_ATTEMPT_DIR"
    job = os.environ.get(name, "")
    return bool(job) and "\0%s=%s\0" % (name, job) in "\0%s\0" % text_of("/proc/%s/environ" % pid)


def rows_of(text: str, columns: int) -> List[List[str]]:
    """The lines of an answer that are complete, as words."""
    rows = ([word.strip() for word in line.split(",")] for line in text.split("\n")[:-1])
    return [row for row in rows if len(row) == columns]


def amd(gpus: int) -> Result:
    """Number and memory errors of the GPUs by the files of the AMD driver; no tool is needed."""
    cards = [os.path.dirname(path) for path in glob.glob("/sys/class/drm/renderD*/device/vendor")]
    cards = [card for card in cards if text_of(card + "/vendor").strip() == "0x1002"]
    if not cards and not os.path.exists("/dev/kfd"):
        return result(False, "0 of %d GPUs: no /dev/kfd" % gpus, {"gpus": 0})
    if len(cards) < gpus:
        return result(False, "%d of %d GPUs" % (len(cards), gpus), promised(len(cards)))
    for card in cards:
        errors = re.search(r"ue:\s*(\d+)", text_of(card + "/ras/umc_err_count"))
        if errors and int(errors.group(1)):
            return result(False, "%s: %s uncorrectable memory errors" % (os.path.realpath(card)[-12:], errors.group(1)))
    return result(True, "%d GPUs" % len(cards), {"gpus": len(cards)})


def amd_errors(gpus: int, ask: Ask = answer) -> Result:
    """Uncorrectable errors of all parts of the GPUs by amd-smi; ROCm 7 wraps the list of earlier versions."""
    code, text = ask(["amd-smi", "metric", "--ecc", "--json"], SMI_S)
    try:
        words = json.loads(text)
        rows = words["gpu_data"] if isinstance(words, dict) else words
        errors = {row["gpu"]: row["ecc"]["total_uncorrectable_count"] for row in rows}
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown("amd-smi exits with %d, and its answer is incomplete" % code)
    if len(errors) > gpus:
        return unknown("the node has GPUs of other jobs, too")
    for gpu, count in errors.items():
        if isinstance(count, int) and count > 0:
            return result(False, "GPU %s: %d uncorrectable errors" % (gpu, count))
    known = [count for count in errors.values() if isinstance(count, int)]  # or "N/A"
    return result(True, "no uncorrectable errors") if known else unknown("amd-smi gives no counts")


def kernel_log(path: str = KERNEL_LOG) -> Result:
    """GPU errors in the kernel's log, which only some sites let users read.

    Not by dmesg: a message with the name of a program can hold line ends, which only /dev/kmsg escapes.
    """
    log = []
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return unknown("no permission to read the kernel's log")
    while True:
        try:
            log.append(os.read(file, 1 << 16))  # one record
        except BlockingIOError:
            break
        except BrokenPipeError:  # the kernel has overwritten the next record
            continue
        except OSError:
            return unknown("no permission to read the kernel's log")
        if not log[-1]:
            break
    os.close(file)
    return xids(b"".join(log).decode("utf-8", "replace"), float((text_of("/proc/uptime").split() or ["0"])[0]))


def xids(log: str, uptime_s: float) -> Result:
    """Xids of the last hour that need a reset; earlier ones may have had it."""
    for when, gpu, number in reversed(XID.findall(log)):
        if int(when) / 1e6 > uptime_s - RECENT_S:
            return result(False, "the kernel's log has Xid %s of GPU %s" % (number, gpu))
    return result(True, "no Xid that needs a reset")


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
        return unknown("no PyTorch")
    if "unavailable" in lines:
        return unknown("PyTorch sees no GPU")
    if code == 0 and "done" in lines:
        return result(True, "each GPU computed")
    said = ([line for line in lines if line] or [""])[-1][:200]
    if any(words in text for words in SOFTWARE):
        return unknown("the training's PyTorch: " + said)
    return result(False, "GPU %s: %s" % (last_device(lines), said))


def last_device(lines: List[str]) -> str:
    """The GPU that was begun last."""
    return ([line.split()[1] for line in lines if line.startswith("device ")] or ["?"])[-1]


DCGM_S = 60.0
HARMLESS = ("Persistence Mode", "Environment Variables", "Environmental Variables")
"""Tests of the node's configuration, which says nothing about its GPUs."""


def dcgm(gpus: int, ask: Ask = answer) -> Result:
    """Level 1 of `dcgmi diag`, which takes a few seconds; it needs a host engine that runs."""
    code, text = ask(["dcgmi", "diag", "-r", "1", "-j"], DCGM_S)
    try:
        words = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    except (ValueError, RecursionError):
        if "{" in text:
            return unknown("the answer of dcgmi is incomplete")
        return unknown("dcgmi exits with %d: %s" % (code, " ".join(text.split())[:200]))
    outcomes = list(outcomes_of(words))
    if len({gpu for _, _, ids in outcomes for gpu in ids}) > gpus:
        return unknown("the node has GPUs of other jobs, too")
    failed = [name for name, status, _ in outcomes if status == "fail" and not name.startswith(HARMLESS)]
    if failed:
        return result(False, "DCGM: %s" % failed[0])
    passed = [name for name, status, _ in outcomes if status == "pass"]
    return result(True, "%d tests passed" % len(passed)) if passed else unknown("DCGM tested nothing")


def outcomes_of(words: Any) -> Iterator[Tuple[str, str, List[str]]]:
    """(name of the test with its first warning, status, GPUs) of each result."""
    for category in children(children_of(words, "DCGM GPU Diagnostic"), "test_categories"):
        for test in children(category, "tests"):
            for one in children(test, "results"):
                warnings = one.get("warnings") or ""
                first = warnings[0] if isinstance(warnings, list) else warnings
                text = str(first.get("warning") if isinstance(first, dict) else first)
                name = "%s%s" % (test.get("name"), ": %s" % text[:200] if text else "")
                ids = str(one.get("gpu_ids", one.get("entity_id", one.get("gpu_id", "")))).split(",")
                yield name, str(one.get("status")).lower(), [gpu.strip() for gpu in ids if gpu.strip()]


def children_of(words: Any, key: str) -> Dict[str, Any]:
    """A mapping inside a mapping."""
    inner = words.get(key) if isinstance(words, dict) else None
    return inner if isinstance(inner, dict) else {}


def children(words: Dict[str, Any], key: str) -> List[Dict[str, Any]]:
    """The mappings of a list inside a mapping: DCGM also writes null."""
    inner = words.get(key)
    return [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
