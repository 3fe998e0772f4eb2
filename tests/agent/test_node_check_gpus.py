"""GPUs in the node check: the outputs of nvidia-smi, the files of the other drivers, and a product with PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent import check_gpus as gpus
from tests.prove.node_check_tools import SMI

Ask = Callable[[list[str], float], tuple[int, str]]
CHECKS: dict[str, Callable[[Ask], dict[str, Any]]] = {
    "gpus": lambda ask: gpus.nvidia(4, "a100", ask),
    "gpu state": lambda ask: gpus.nvidia_state(ask),
    "gpu links": lambda ask: gpus.nvidia_links(4, ask),
    "gpu processes": lambda ask: gpus.nvidia_processes(4, ask, 0.0),
}


class Smi:
    """A stand-in for nvidia-smi, which reads its fault from a file beside it; its answers are kept."""

    def __init__(self, folder: Path) -> None:
        self.path, self.note = folder / "nvidia-smi", folder / "node.smi"
        self.path.write_text(SMI.replace("$(hostname)", "node"))
        self.known: dict[tuple[str, ...], tuple[int, str]] = {}

    def with_fault(self, fault: str = "", size: int = 10_000) -> Ask:
        """It with this fault; its answers end after so many characters."""

        def ask(words: list[str], _limit: float) -> tuple[int, str]:
            asked = (fault, *words)
            if asked not in self.known:
                self.note.write_text(f"fault={fault!r}\n")
                done = subprocess.run(["bash", self.path, *words[1:]], check=False, capture_output=True, text=True)
                self.known[asked] = done.returncode, done.stdout
            code, text = self.known[asked]
            return code, text[:size]

        return ask


@pytest.fixture(scope="module")
def smi(tmp_path_factory: pytest.TempPathFactory) -> Smi:
    return Smi(tmp_path_factory.mktemp("smi"))


def test_healthy_gpus_pass(smi: Smi) -> None:
    found = {name: check(smi.with_fault()) for name, check in CHECKS.items()}
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(CHECKS, True)
    assert found["gpu links"]["value"] == 8
    assert found["gpus"]["value"] == {"the GPU model": "NVIDIA A100-SXM4-80GB", "the GPU driver": "550.90.07"}


@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ("MISSING", "gpus", "3 of 4 GPUs"),
        ("NONE", "gpus", "0 of 4 GPUs: nvidia-smi finds none"),
        ("ECC", "gpus", "GPU 2: 2 uncorrectable memory errors"),
        ("MODEL", "gpus", "the GPUs are NVIDIA H100 80GB HBM3, not a100"),
        ("LOST", "gpus", "nvidia-smi exits with 15: Unable to determine the device handle for GPU"),
        ("PENDING", "gpu state", "GPU 1: a memory row waits to be remapped; the GPU needs a reset"),
        ("THROTTLED", "gpu state", "GPU 3: the hardware has lowered the clocks (heat or power)"),
        ("PROCESS", "gpu processes", "process 4711 holds 70123 MiB of a GPU"),
        ("HELD", "gpu processes", "61000 MiB of GPU 0 are in use"),
    ],
)
def test_a_fault_of_a_gpu_is_found(smi: Smi, fault: str, check: str, text: str) -> None:
    found = CHECKS[check](smi.with_fault(fault))
    assert found["ok"] is False
    assert found["text"].startswith(text)


def test_a_link_that_is_down_counts(smi: Smi) -> None:
    assert gpus.nvidia_links(4, smi.with_fault("LINKS"))["value"] == 7


@pytest.mark.parametrize("check", CHECKS)
def test_an_answer_truncated_at_any_byte_blames_nobody(smi: Smi, check: str) -> None:
    for size in range(500):
        found = CHECKS[check](smi.with_fault(size=size))
        assert found["ok"] is not False, (size, found)
        if check == "gpu links" and found["ok"]:
            assert found["value"] == 8, size


@pytest.mark.parametrize("check", CHECKS)
@given(st.text(), st.integers(0, 2))
def test_garbage_breaks_no_check(check: str, text: str, code: int) -> None:
    assert CHECKS[check](lambda _words, _limit: (code, text))["ok"] in (True, False, None)


def test_processes_of_this_job_are_no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with subprocess.Popen(["sh", "-c", "echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdout is not None
        own.stdout.readline()  # /proc is empty just after the start
        assert gpus.of_this_job(str(own.pid))
        monkeypatch.setenv("SLURM_JOB_ID", "78")
        assert not gpus.of_this_job(str(own.pid))


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    """The folders of four GPUs."""
    for number in range(128, 132):
        (tmp_path / f"renderD{number}" / "device").mkdir(parents=True)
    return tmp_path


def by_files(cards: Path, vendor: str, number: str) -> dict[str, tuple[Any, str]]:
    for card in cards.iterdir():
        (card / "device" / "vendor").write_text(f"{number}\n")
    return {one["check"]: (one["ok"], one["text"]) for one in gpus.by_files(4, vendor, f"{cards}/renderD*/device")}


@pytest.mark.parametrize(("vendor", "number"), [("amd", "0x1002"), ("intel", "0x8086")])
def test_missing_gpus_are_counted_by_the_files_of_the_driver(cards: Path, vendor: str, number: str) -> None:
    assert by_files(cards, vendor, "0x10de")["gpus"] == (False, "0 of 4 GPUs")
    found = by_files(cards, vendor, number)
    assert found["gpus"] == (True, "4 of 4 GPUs")
    assert found["gpu state"][0] is None
    shutil.rmtree(cards / "renderD131")
    assert by_files(cards, vendor, number)["gpus"] == (False, "3 of 4 GPUs")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ue: 5\nce: 3\n", "uncorrectable errors (umc_err_count: 5)"),
        ("ue: 0\nce: 3\n", ""),
        ("garbage", None),
    ],
)
def test_what_the_driver_counts_is_named(cards: Path, text: str, says: str | None) -> None:
    file = cards / "renderD130" / "device" / "ras" / "umc_err_count"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    ok, said = by_files(cards, "amd", "0x1002")["gpu state"]
    assert ok is {None: None, "": True}.get(says, False)
    assert not says or said == f"device: {says}"


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
