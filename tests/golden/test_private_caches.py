"""Caches are below a private folder; what the user, a module or a cache in the home says comes first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_launch.script.parts import part

CACHES = {"HF_HOME": "huggingface", "TORCH_HOME": "torch", "TRITON_CACHE_DIR": "triton"}
CACHES |= {"PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv"}
NAMES = tuple(CACHES)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def chosen(folder: Path, home: Path, **variables: str) -> tuple[dict[str, str], str]:
    """The variables after the script has set the caches, as they differ from before, and what it said."""
    words = " ".join(f"{variable}={name}" for variable, name in CACHES.items())
    text = f'{part("in_place")}{part("private_folder")}\nprivate_caches "$0" {words}\nenv -0\n'
    before = {"PATH": "/usr/bin:/bin", "HOME": str(home), **variables}
    done = subprocess.run(["bash", "-c", text, folder], env=before, capture_output=True, text=True, check=True)
    after = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    return {name: after[name] for name in after.keys() - before.keys() - {"PWD", "SHLVL", "_"}}, done.stderr


def test_a_private_folder_of_all_caches(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "scratch" / ".cache-alice"
    expected = {variable: f"{folder}/{name}" for variable, name in CACHES.items()}
    assert chosen(folder, home) == (expected, "")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_value_of_the_user_wins(tmp_path: Path, home: Path) -> None:
    found, _ = chosen(tmp_path / "c", home, HF_HOME="/mine", PIP_CACHE_DIR="")
    assert found.keys() == set(NAMES) - {"HF_HOME", "PIP_CACHE_DIR"}
    found, _ = chosen(tmp_path / "c", home, XDG_CACHE_HOME="/mine")
    assert found.keys() == {"TRITON_CACHE_DIR"}, "the others follow the user's folder"


def test_models_in_the_home_stay_in_use(tmp_path: Path, home: Path) -> None:
    """A node without internet access could not load them again."""
    (home / ".cache" / "huggingface" / "hub").mkdir(parents=True)
    found, _ = chosen(tmp_path / "c", home)
    assert found.keys() == set(NAMES) - {"HF_HOME"}


def test_a_login_of_hugging_face_stays_valid(tmp_path: Path, home: Path) -> None:
    token = home / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_x")
    found, _ = chosen(tmp_path / "c", home)
    assert found["HF_TOKEN_PATH"] == str(token)
    assert found["HF_HOME"] == f"{tmp_path}/c/huggingface"


def test_a_folder_that_cannot_be_made_is_no_failure(tmp_path: Path, home: Path) -> None:
    (tmp_path / "file").write_text("")
    found, said = chosen(tmp_path / "file" / "c", home)
    assert found == {}
    assert said.endswith(f"no folder {tmp_path}/file/c for caches: libraries choose their own\n")
