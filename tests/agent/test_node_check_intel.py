"""Intel GPUs in the node check: the outputs of xpu-smi 1 and 2, and the files of the drivers i915 and xe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent import check_gpus as gpus
from hpc_launch.agent import check_intel as checks
from tests.agent.gpu_tool import Ask, Tool
from tests.prove.node_check_tools import XPU_SMI


class Intel(Tool):
    """xpu-smi, and the files of four GPUs."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        super().__init__(folder / "bin" / "xpu-smi", XPU_SMI, "xpu")
        self.folder = folder
        for number in range(128, 132):
            card = folder / "drm" / f"renderD{number}" / "device"
            card.mkdir(parents=True)
            (card / "vendor").write_text("0x8086\n")
        self.cards = str(folder / "drm" / "renderD*" / "device")

    def check(self, name: str, ask: Ask, model: str = "max1550") -> dict[str, Any]:
        found: dict[str, Any] = {
            "gpus": lambda: checks.intel(4, model, ask, self.cards),
            "gpu state": lambda: checks.intel_state(ask, self.cards),
            "gpu processes": lambda: checks.intel_processes(4, ask, 0.0),
            "gpu errors": lambda: checks.intel_errors(4, ask),
        }[name]()
        return found

    def write(self, path: str, text: str) -> None:
        file = self.folder / "drm" / "renderD130" / "device" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


CHECKS = ["gpus", "gpu state", "gpu processes", "gpu errors"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Intel:
    made = Intel(tmp_path)
    monkeypatch.setenv("PATH", f"{made.path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0")
    return made


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("check", CHECKS)
def test_healthy_gpus_pass(tool: Intel, version: str, check: str) -> None:
    found = tool.check(check, tool.faulty(version))
    assert found["ok"] is True
    assert check != "gpus" or found["value"] == {"gpus": 4, "models": ["Intel(R) Data Center GPU Max 1550"]}


@pytest.mark.parametrize("version", ["", "V2 "])
@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ("MODEL", "gpus", "the GPUs are Intel(R) Data Center GPU Max 1100, not max1550"),
        ("DEGRADED", "gpu state", "GPU 0: Excessive correctable errors have been detected on one or more channels."),
        ("REPLACE", "gpu state", "GPU 0: Device should be replaced due to excessive uncorrectable errors."),
        ("HEAT", "gpu state", "GPU 0: Tile 0 frequency throttled due to thermal excursion."),
        ("PROCESS", "gpu processes", "process 4711 holds 70124 MiB of a GPU"),
        ("HELD", "gpu processes", "61000 MiB of GPU 1 are in use"),
        ("ECC", "gpu errors", "GPU 2: 2 uncorrectable errors"),
    ],
)
def test_a_fault_of_a_gpu_is_found(tool: Intel, version: str, fault: str, check: str, text: str) -> None:
    found = tool.check(check, tool.faulty(version + fault))
    assert found["ok"] is False
    assert found["text"].startswith(text)


def test_a_failed_xe_link_is_found(tool: Intel) -> None:
    assert tool.check("gpu state", tool.faulty("LINK"))["text"].startswith("GPU 0: Ports Tile0-1 connection")


@pytest.mark.parametrize("state", ["POWER", "CLOSED"])
def test_a_power_limit_and_links_that_are_turned_off_are_no_faults(tool: Intel, state: str) -> None:
    assert tool.check("gpu state", tool.faulty(state))["ok"] is True


@pytest.mark.parametrize("check", CHECKS)
def test_an_error_of_the_tool_is_no_fault_of_a_gpu(tool: Intel, check: str) -> None:
    found = tool.check(check, tool.faulty("ERROR"))
    assert found["ok"] is (True if check == "gpus" else None)  # the driver's files have the number
    assert check == "gpus" or "Level Zero Initialization Error" in found["text"]


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("check", CHECKS)
def test_an_answer_truncated_at_any_byte_blames_nobody(tool: Intel, version: str, check: str) -> None:
    for size in range(0, 1500, 3):
        assert tool.check(check, tool.cut(size, version))["ok"] is not False, size


@pytest.mark.parametrize("check", CHECKS)
def test_a_tool_that_hangs_raises(tool: Intel, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SMI_S", 0.2)
    tool.note.write_text("HANG")
    with pytest.raises(subprocess.TimeoutExpired):
        tool.check(check, gpus.answer)


KEYS = (
    "device_list device_id device_util_by_proc_list process_id mem_size status memory tile_level device_level "
    "data_list metrics_type value ras_errors used_mib"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), one, max_size=4),
    max_leaves=12,
)


@given(JSON, st.integers(0, 2))
def test_no_answer_breaks_a_check(words: Any, code: int) -> None:
    text = json.dumps(words)

    def ask(_words: list[str], _limit: float) -> tuple[int, str]:
        return code, text

    for found in (
        checks.intel_state(ask, "/nonexistent"),
        checks.intel_processes(4, ask, 0.0),
        checks.intel_errors(4, ask),
    ):
        assert found["ok"] in (True, False, None)


def test_missing_gpus_are_counted_by_the_files_of_the_driver(tool: Intel) -> None:
    (tool.folder / "drm" / "renderD131" / "device" / "vendor").write_text("0x1002\n")
    found = tool.check("gpus", tool.faulty(""))
    assert (found["ok"], found["text"]) == (False, "3 of 4 GPUs")
    assert checks.intel(4, "", tool.faulty(""), "/nonexistent")["text"] == "0 of 4 GPUs"


@pytest.mark.parametrize(("name", "ok"), [("fatal_guc", False), ("sgunit_fatal", False), ("sgunit_nonfatal", True)])
def test_fatal_errors_that_the_driver_counts_are_named(tool: Intel, name: str, ok: bool) -> None:
    tool.write(f"drm/card2/gt/gt1/error_counter/{name}", "3\n")
    found = tool.check("gpus", tool.faulty(""))
    assert found["ok"] is ok
    assert ok or found["text"] == f"device: 3 fatal errors ({name})"


@pytest.mark.parametrize(
    ("path", "ok"),
    [
        ("drm/card2/gt/gt0/throttle_reason_thermal", False),
        ("tile1/gt0/freq0/throttle/reason_prochot", False),
        ("tile1/gt0/freq0/throttle/reason_pl1", True),
    ],
)
def test_lowered_clocks_are_found_without_the_tool(
    tool: Intel, monkeypatch: pytest.MonkeyPatch, path: str, ok: bool
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert tool.check("gpu state", tool.faulty(""))["text"] == "no xpu-smi"
    tool.write("tile0/gt0/freq0/throttle/reason_thermal", "0\n")
    assert tool.check("gpu state", tool.faulty(""))["ok"] is True
    tool.write(path, "1\n")
    found = tool.check("gpu state", tool.faulty(""))
    assert found["ok"] is ok
    assert ok or found["text"].startswith("device: the hardware has lowered the clocks (")


@pytest.mark.parametrize(
    ("fault", "ok", "text"),
    [("", True, "each GPU computed"), ("wrong", False, "GPU 5: AssertionError: wrong product")],
)
def test_each_tile_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, ok: bool, text: str) -> None:
    """Four GPUs of two tiles are eight devices of torch.xpu."""
    (tmp_path / "torch.py").write_text(
        "class Tensor:\n"
        "    def __init__(self, device): self.device = device\n"
        "    def __getitem__(self, place): return self\n"
        "    def __matmul__(self, other): return self\n"
        "    def all(self): return True\n"
        f"    def __float__(self): return 1.0 if self.device == 'xpu:5' and {fault!r} else 2048.0\n"
        "def ones(*size, device): return Tensor(device)\n"
        "def isfinite(tensor): return tensor\n"
        "class cuda: is_available = staticmethod(lambda: False)\n"
        "class xpu:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 8)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = gpus.compute(sys.executable, 4)
    assert (found["ok"], found["text"]) == (ok, text)
