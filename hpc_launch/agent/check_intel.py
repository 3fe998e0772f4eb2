"""Checks of Intel GPUs, for check.py: by the files of the drivers i915 and xe, and by xpu-smi.

The JSON of xpu-smi differs between versions 1 and 2 (intel/xpumanager: cli/src/core_stub of 1.3.7, ial/cmn of 2.0).
Standard library of Python 3.6 or later.
"""

import glob
import json
import os
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Tuple

from hpc_launch.agent.check_gpus import CLEAR_S, HELD, HELD_MIB, SMI_S, Ask, of_this_job, promised
from hpc_launch.agent.check_host import Result, answer, result, text_of, unknown

CARDS = "/sys/class/drm/renderD*/device"
THROTTLED = ("thermal", "prochot", "ratl", "vr_thermalert", "vr_tdc")
"""Reasons of heat and of the power supply. A power limit (pl1, pl2, pl4) is normal under load."""
EXCURSION = re.compile(r"throttled due to (thermal excursion|current excursion|power supply assertion)")
"""The same reasons in the words of xpu-smi health."""
FATAL = re.compile(r"(?:^|_)fatal(?:_|$)")
PROCESS_KIB = 256 * 1024
"""Less of a GPU's memory is what a monitor of the site holds."""
UNCORRECTABLE = ("CACHE_ERRORS_UNCORRECTABLE", "NON_COMPUTE_ERRORS_UNCORRECTABLE")
RAS = "XPUM_STATS_RAS_ERROR_CAT_"


def intel(gpus: int, model: str = "", ask: Ask = answer, cards: str = CARDS) -> Result:
    """Number and fatal errors of the GPUs by the files of the driver, and their model by xpu-smi, if there is one."""
    found = folders(cards)
    if not found:
        return result(False, "0 of %d GPUs" % gpus, {"gpus": 0})  # perhaps not Intel's
    if len(found) < gpus:
        return result(False, "%d of %d GPUs" % (len(found), gpus), promised(len(found)))
    for card in found:
        for path in sorted(glob.glob(card + "/drm/card*/gt/gt*/error_counter/*")):
            count = text_of(path).strip()
            if FATAL.search(os.path.basename(path)) and count.isdigit() and int(count):
                words = (os.path.basename(os.path.realpath(card)), count, os.path.basename(path))
                return result(False, "%s: %s fatal errors (%s)" % words)
    value = {"gpus": len(found)}  # type: Dict[str, Any]
    if shutil.which("xpu-smi"):
        _, listed = said(["discovery", "-j"], ask)
        names = [str(one.get("device_name", "")) for one in rows(listed, "device_list")]
        value["models"] = sorted(set(names))
        wrong = [name for name in names if not fits(model, name)]
        if wrong:
            return result(False, "the GPUs are %s, not %s" % (", ".join(sorted(set(wrong))), model), value)
    return result(True, "%d GPUs" % len(found), value)


def folders(cards: str) -> List[str]:
    """The PCI folder of each Intel GPU."""
    return sorted(card for card in glob.glob(cards) if text_of(card + "/vendor").strip() == "0x8086")


def fits(model: str, name: str) -> bool:
    """Whether a GPU may have the model of Slurm's type, `max1550` and `Intel(R) Data Center GPU Max 1550`."""
    expected, known = re.search(r"\d{4}", model), re.search(r"Max (\d{4})", name)
    return expected is None or known is None or expected.group() == known.group(1)


def said(words: List[str], ask: Ask) -> Tuple[int, Any]:
    """Exit code and JSON of xpu-smi; None if it is incomplete. The variable would hide GPUs from it."""
    os.environ.pop("ZE_AFFINITY_MASK", None)
    code, text = ask(["xpu-smi", *words], SMI_S)
    try:
        return code, json.loads(text)
    except (ValueError, RecursionError):
        return code, None


def rows(words: Any, key: str) -> List[Dict[str, Any]]:
    """The mappings of a list in an answer."""
    inner = words.get(key) if isinstance(words, dict) else None
    return [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []


def failure(code: int, words: Any) -> str:
    """Why an answer has nothing to judge."""
    if isinstance(words, dict) and "error" in words:
        return "xpu-smi: %s" % str(words["error"])[:200]
    return "xpu-smi exits with %d, and its answer is incomplete" % code


def intel_state(ask: Ask = answer, cards: str = CARDS) -> Result:
    """Clocks that the hardware has lowered by the driver's files; memory, heat and links by `xpu-smi health`."""
    checked = []
    for card in folders(cards):
        for reason in THROTTLED:
            paths = ("/drm/card*/gt/gt*/throttle_reason_", "/tile*/gt*/freq*/throttle/reason_")  # i915, xe
            for path in (path for pattern in paths for path in glob.glob(card + pattern + reason)):
                checked = ["clocks"]
                if text_of(path).strip() == "1":
                    words = (os.path.basename(os.path.realpath(card)), reason)
                    return result(False, "%s: the hardware has lowered the clocks (%s)" % words)
    if not shutil.which("xpu-smi"):
        return result(True, ", ".join(checked)) if checked else unknown("no xpu-smi")
    code, words = said(["health", "-l", "-j"], ask)
    devices = rows(words, "device_list")
    for device in devices:
        for part, one in device.items():
            if isinstance(one, dict) and unhealthy(part, one):
                return result(False, "GPU %s: %s" % (device.get("device_id"), str(one.get("description"))[:200]))
    known = {str(one.get("status")) for device in devices for one in device.values() if isinstance(one, dict)}
    if known - {"Unknown", "None"}:
        checked.append("health")
    return result(True, ", ".join(checked)) if checked else unknown(failure(code, words))


def unhealthy(part: str, one: Dict[str, Any]) -> bool:
    """Whether a part of a GPU needs a reset or a replacement, or slows it down."""
    if part.startswith("frequency"):
        return bool(EXCURSION.search(str(one.get("description"))))
    if part.startswith("power"):
        return one.get("status") == "Critical"  # the power limit is reached under load
    if part == "xe_link_port":  # also a warning: links that the site has turned off
        return one.get("status") == "Critical" or "degradation" in str(one.get("description"))
    return one.get("status") in ("Warning", "Critical")


def intel_errors(gpus: int, ask: Ask = answer) -> Result:
    """Uncorrectable errors of the caches and the memory by `xpu-smi stats`."""
    code, listed = said(["discovery", "-j"], ask)
    devices = [one.get("device_id") for one in rows(listed, "device_list")]
    if not devices:
        return unknown(failure(code, listed))
    if len(devices) > gpus:
        return unknown("the node has GPUs of other jobs, too")
    reason = ""
    for device in devices:
        code, words = said(["stats", "-d", str(device), "-r", "-j"], ask)
        counts = list(uncorrectable(words))
        if max(counts, default=0) > 0:
            return result(False, "GPU %s: %d uncorrectable errors" % (device, sum(counts)))
        if not counts:
            reason = "GPU %s has no counts" % device if words is not None else failure(code, words)
    return unknown(reason) if reason else result(True, "no uncorrectable errors")


def uncorrectable(words: Any) -> Iterator[int]:
    """The counts of a GPU; version 1 names each kind of error, version 2 each kind of part."""
    values = metrics(words)
    for name in UNCORRECTABLE:
        if RAS + name in values:
            yield int(values[RAS + name])
    parts = words.get("ras_errors") if isinstance(words, dict) else None
    for name in ("Cache Errors", "Mem Errors"):
        one = parts.get(name) if isinstance(parts, dict) else None
        count = one.get("uncorrectable_total") if isinstance(one, dict) else None
        if isinstance(count, int):
            yield count


def metrics(words: Any) -> Dict[str, float]:
    """The values of version 1: the largest of the GPU and of its tiles, as some are given for tiles only."""
    found = {}  # type: Dict[str, float]
    tiles = [one for tile in rows(words, "tile_level") for one in rows(tile, "data_list")]
    for one in [*rows(words, "device_level"), *tiles]:
        name, value = str(one.get("metrics_type")), one.get("value")
        if isinstance(value, (int, float)) and 0 <= value < 1e18:
            found[name] = max(found.get(name, 0), value)
    return found


def intel_processes(gpus: int, ask: Ask = answer, clear_s: float = CLEAR_S) -> Result:
    """Processes of earlier jobs on the GPUs, and memory still held; both may still be ending."""
    end = time.monotonic() + clear_s
    while True:
        code, words = said(["ps", "-j"], ask)
        if code != 0 or not isinstance(words, dict) or "device_util_by_proc_list" not in words:
            return unknown(failure(code, words))
        others = [row for row in rows(words, "device_util_by_proc_list") if is_leftover(row)]
        code, listed = said(["discovery", "-j"], ask)
        devices = [one.get("device_id") for one in rows(listed, "device_list")]
        if len(devices) > gpus:
            return unknown("the node has GPUs of other jobs, too")
        full = [(device, used) for device in devices for used in held(said(["stats", "-d", str(device), "-j"], ask)[1])]
        if not others and not full:
            return result(True, "no processes on the GPUs") if devices else unknown(failure(code, listed))
        if time.monotonic() > end:
            if others:
                words = (others[0]["process_id"], others[0]["mem_size"] // 1024)
                return result(False, "process %s holds %d MiB of a GPU" % words)
            return result(False, "%d MiB of GPU %s are in use" % (full[0][1], full[0][0]))
        time.sleep(2)


def is_leftover(row: Dict[str, Any]) -> bool:
    """Whether a process of another job holds memory of a GPU."""
    pid, kib = row.get("process_id"), row.get("mem_size")
    return isinstance(pid, int) and isinstance(kib, int) and kib > PROCESS_KIB and not of_this_job(str(pid))


def held(words: Any) -> Iterator[int]:
    """The memory in use, where it is more than an unused GPU holds."""
    values = metrics(words)
    pairs = [(values.get("XPUM_STATS_MEMORY_USED", 0), values.get("XPUM_STATS_MEMORY_UTILIZATION", 0))]
    memory = words.get("memory") if isinstance(words, dict) else None
    if isinstance(memory, dict):
        pairs += zip(tiles(memory, "used_mib"), tiles(memory, "util_percent"))
    for mib, percent in pairs:
        if mib > HELD_MIB and percent > 100 * HELD:
            yield int(mib)


def tiles(memory: Dict[str, Any], key: str) -> List[float]:
    """A value of each tile, by version 2."""
    by_tile = memory.get(key)
    found = sorted(by_tile.items()) if isinstance(by_tile, dict) else []
    values = [one.get("current") if isinstance(one, dict) else None for _, one in found]
    return [value for value in values if isinstance(value, (int, float)) and 0 <= value < 1e18]
