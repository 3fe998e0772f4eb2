"""The GPUs of a node: usage, NVLinks and faults, by nvidia-smi or the AMD driver. For watch.py.

Self-contained: standard library of Python 3.6 or later.
"""

import glob
import os
import shutil
import subprocess
from typing import Any, Dict, List, Optional

from hpc_launch.agent.watch_processes import text_of

NVIDIA_FIELDS = (
    "index,utilization.gpu,memory.used,temperature.gpu,power.draw,clocks.sm,clocks_throttle_reasons.active,"
    "ecc.errors.uncorrected.volatile.total"
)
SMI_S = 10.0
"""Time limit of one call of nvidia-smi."""
SMI_LOST = 15
"""nvidia-smi's exit code if a GPU has fallen off the bus (man nvidia-smi)."""
NVIDIA_KEYS = ("index", "util", "mem_mib", "temp_c", "power_w", "sm_mhz", "throttle", "ecc")


class Gpus:
    """The GPUs of the node, from a looping nvidia-smi or the files of the AMD driver."""

    def __init__(self, every_s: float) -> None:
        self.latest = {}  # type: Dict[str, Dict[str, Any]]
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.asked_links = None  # type: Optional[subprocess.Popen[bytes]]
        self.links_up = None  # type: Optional[int]
        self.ecc = {}  # type: Dict[str, int]
        self.rest = ""
        if shutil.which("nvidia-smi"):
            words = [
                "nvidia-smi",
                "--query-gpu=" + NVIDIA_FIELDS,
                "--format=csv,noheader,nounits",
                "-l",
                str(int(max(every_s, 5))),
            ]
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                if self.process.stdout is not None:
                    os.set_blocking(self.process.stdout.fileno(), False)
                self.asked_links = subprocess.Popen(
                    ["nvidia-smi", "nvlink", "--status"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                pass

    def links(self) -> Optional[int]:
        """The number of active NVLinks on the node; None if unknown. Queried once, at the start."""
        asked = self.asked_links
        if asked is not None and asked.poll() is not None:
            self.asked_links = None
            text = asked.stdout.read().decode("ascii", "replace") if asked.stdout else ""
            if asked.returncode == 0:
                self.links_up = sum(" GB/s" in line for line in text.splitlines())
        return self.links_up

    def sample(self) -> List[Dict[str, Any]]:
        """One object per GPU; empty without GPUs."""
        if self.process is not None:
            data = (self.process.stdout.read() if self.process.stdout else b"") or b""
            lines = (self.rest + data.decode("ascii", "replace")).split("\n")
            self.rest = lines.pop()
            for line in lines:
                values = [word.strip() for word in line.split(",")]
                if len(values) == len(NVIDIA_KEYS):
                    gpu = self.latest[values[0]] = {key: number(value) for key, value in zip(NVIDIA_KEYS, values)}
                    if isinstance(gpu["ecc"], int):
                        self.ecc.setdefault(values[0], gpu["ecc"])
            return list(self.latest.values())
        samples = []  # type: List[Dict[str, Any]]
        for busy in sorted(glob.glob("/sys/class/drm/card*/device/gpu_busy_percent")):
            folder = os.path.dirname(busy)
            heat = [text_of(path).strip() for path in glob.glob(folder + "/hwmon/hwmon*/temp1_input")]
            used = text_of(folder + "/mem_info_vram_used").strip()
            samples.append({
                "index": len(samples),
                "util": number(text_of(busy).strip()),
                "mem_mib": int(used) // 2**20 if used.isdigit() else None,
                "temp_c": int(heat[0]) // 1000 if heat and heat[0].isdigit() else None,
            })  # fmt: skip
        return samples

    def faults(self) -> List[str]:
        """The GPUs that broke since the first sample or the last call, by nvidia-smi now. Takes up to some seconds."""
        if self.process is None:
            return []
        self.sample()
        words = ["nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
        try:
            asked = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            text = asked.communicate(timeout=SMI_S)[0].decode("ascii", "replace")
        except (OSError, subprocess.TimeoutExpired):
            return []
        if asked.returncode == SMI_LOST:
            return ["nvidia-smi: " + (text.strip() or "a GPU is lost")[:200]]
        found = []
        for line in text.splitlines():
            index, _, count = (word.strip() for word in line.partition(","))
            before = self.ecc.get(index)
            if before is not None and count.isdigit() and int(count) > before:
                self.ecc[index] = int(count)
                found.append("GPU %s: %s uncorrectable memory errors, %d at the start" % (index, count, before))
        return found

    def close(self) -> None:
        for process in (self.process, self.asked_links):
            if process is not None:
                process.kill()
                process.wait()


def number(word: str) -> Any:
    """The number in a field, else its text; None for 'not available'."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None if word.startswith("[") or word in ("", "N/A") else word
