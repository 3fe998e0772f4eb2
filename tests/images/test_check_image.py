"""What `containers check` looks at: PyTorch and the GPUs, the driver, the network, the script's imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_launch.images.check_image import (
    check_driver,
    check_fabric,
    check_nccl,
    check_torch,
    minimum_driver,
    required_libraries,
)
from hpc_launch.images.probe import probe_image
from hpc_launch.images.training_source import top_imports

CUDA = {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None}
ROCM = {"version": "2.10.0", "cuda": None, "hip": "6.2.41133"}
CPU = {"version": "2.13.0+cpu", "cuda": None, "hip": None}


@pytest.mark.parametrize(
    ("torch", "vendor", "declared", "level"),
    [
        (CUDA, "nvidia", None, "ok"),
        (CUDA, "nvidia", "2.13", "ok"),
        (CUDA, "nvidia", "2.9", "fail"),
        (CUDA, "amd", None, "fail"),
        (ROCM, "amd", None, "ok"),
        (ROCM, "nvidia", None, "fail"),
        (CPU, "nvidia", None, "fail"),
        (CPU, None, None, "ok"),
        ({}, None, None, "fail"),
    ],
)
def test_pytorch_has_to_be_for_the_gpus_of_the_nodes(
    torch: dict[str, str | None], vendor: str | None, declared: str | None, level: str
) -> None:
    assert check_torch(torch, vendor, needed=True, declared=declared).level == level


def test_without_a_launcher_of_its_own_an_image_need_not_have_pytorch() -> None:
    assert check_torch({}, None, needed=False, declared=None).level == "warn"


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [("13.2", "580"), ("12.8", "525"), ("11.8", "450"), ("10.2", "440.33"), ("9.0", None), ("14.0", None)],
)
def test_each_cuda_has_its_oldest_driver(cuda: str, driver: str | None) -> None:
    assert minimum_driver(cuda) == driver


@pytest.mark.parametrize(
    ("torch", "vendor", "driver", "compat", "level"),
    [
        (CUDA, "nvidia", "580.65.06", False, "ok"),
        (CUDA, "nvidia", "570.86.15", False, "fail"),
        (CUDA, "nvidia", "570.86.15", True, "warn"),
        (CUDA, "nvidia", None, False, "skip"),
        (CPU, None, "570.86.15", False, "skip"),
        (ROCM, "amd", "6.4.1", False, "skip"),
    ],
)
def test_the_driver_has_to_be_new_enough(
    torch: dict[str, str | None], vendor: str | None, driver: str | None, compat: bool, level: str
) -> None:
    assert check_driver(torch, vendor, driver, compat=compat).level == level


@pytest.mark.parametrize(
    ("words", "vendor", "level"),
    [
        ({"fault": None, "nccl": "2.27.5", "gloo": True}, "nvidia", "ok"),
        ({"fault": None, "nccl": None, "gloo": True}, "nvidia", "fail"),
        ({"fault": None, "nccl": None, "gloo": True}, None, "ok"),
        ({"fault": "OSError: libcudart.so.13", "nccl": None}, "nvidia", "fail"),
    ],
)
def test_gpus_want_an_nccl_that_loads(words: dict[str, object], vendor: str | None, level: str) -> None:
    assert check_nccl(words, vendor).level == level


@pytest.mark.parametrize(
    ("kind", "plugin", "asked", "there", "must", "level"),
    [
        ("slingshot", None, None, ["libnccl-net", "libfabric.so.1"], False, "ok"),
        ("slingshot", None, None, ["libfabric.so.1"], False, "warn"),
        ("slingshot", None, None, ["libfabric.so.1"], True, "fail"),
        ("slingshot", "none", None, [], True, "ok"),
        ("slingshot", "aws", None, ["libnccl-net-aws", "libfabric.so.1"], False, "ok"),
        ("infiniband", None, None, [], False, "warn"),
        ("ethernet", None, None, [], False, "ok"),
        (None, None, None, [], False, "skip"),
        (None, None, ["libucp.so.0"], ["libucp.so.0"], False, "ok"),
        ("ethernet", None, ["libucp.so.0"], [], False, "warn"),
    ],
)
def test_the_fast_network_has_to_find_its_libraries(  # noqa: PLR0917 - the columns of the table above
    kind: str | None, plugin: str | None, asked: list[str] | None, there: list[str], must: bool, level: str
) -> None:
    groups = required_libraries(kind, plugin, asked)
    found: dict[str, str | None] = {name: f"/usr/lib/{name}" for name in there}
    assert check_fabric(kind, groups, found, must=must).level == level


def test_imports_are_those_without_which_the_script_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from __future__ import annotations\nimport os, torch.distributed as dist\nfrom engines import fast\n"
        "import pack.part\nfrom typing import TYPE_CHECKING\n"
        "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"
        "if TYPE_CHECKING:\n    import pandas\n"
        "if os.name == 'posix':\n    import yaml\n"
        "def f():\n    import wandb\n"
    )
    (tmp_path / "engines.py").write_text("import deepspeed\nimport train\n")  # a circle is no trouble
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import einops\nfrom . import part\n")
    wanted = top_imports(tmp_path / "train.py")
    assert wanted == {"__future__", "os", "torch", "typing", "yaml", "deepspeed", "einops"}


def test_a_script_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("not python at all\n")
    with pytest.raises(SyntaxError):
        top_imports(tmp_path / "train.py")


def test_the_look_inside_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    asked = {
        "imports": ["json", "beside", "no_such_module", "sys"],
        "folders": [str(tmp_path)],
        "libraries": ["libc.so.6", "libno-such.so"],
        "program": "sh",
        "writable": [str(tmp_path), "/proc"],
    }
    said = probe_image(["env", "-i", "PATH=/usr/bin:/bin"], sys.executable, asked)
    assert said["missing"] == ["no_such_module"]
    assert said["libraries"]["libc.so.6"]
    assert said["libraries"]["libno-such.so"] is None
    assert said["program"].endswith("/sh")
    assert said["writable"] == {str(tmp_path): True, "/proc": False}
    assert said["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_variable_and_a_step_reach_the_look_inside(tmp_path: Path) -> None:
    (tmp_path / "module_of_the_step.py").write_text("")
    asked = {"imports": ["module_of_the_step"]}
    prelude = f"export PYTHONPATH={tmp_path}\n"
    assert probe_image(["env"], sys.executable, asked, prelude=prelude)["missing"] == []
    assert probe_image(["env"], sys.executable, asked)["missing"] == ["module_of_the_step"]


def test_what_is_inside_runs_on_old_pythons_too() -> None:
    text = (Path(__file__).parents[2] / "hpc_launch" / "images" / "probe_script.py").read_text()
    code = "import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))"
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True)
