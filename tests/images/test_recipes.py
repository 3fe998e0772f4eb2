"""The shipped recipes name every version, and say the same for Apptainer and for others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_launch.base.errors import UsageError
from hpc_launch.base.installed import shipped
from hpc_launch.images.pull_image import find_recipe, recipes

FOLDER = shipped("containers")


def arguments(recipe: str) -> dict[str, str]:
    section = (FOLDER / f"{recipe}.def").read_text().split("%arguments\n")[1].split("\n%")[0]
    return dict(re.findall(r"^ +([A-Z]+)=(.*)$", section, re.MULTILINE))


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert recipes() == ["cpu", "cuda", "rocm"]


@pytest.mark.parametrize("recipe", recipes())
def test_every_version_is_named(recipe: str) -> None:
    text, values = (FOLDER / f"{recipe}.def").read_text(), arguments(recipe)
    tag = values["BASE"].rpartition(":")[2]
    assert re.search(r"\d+\.\d+", tag)
    installs = re.findall(r"pip install (.*(?:\\\n.*)*)", text)
    assert installs
    for line in installs:
        packages = re.findall(r'"([^"]+)"|\$(packages)', line)
        assert packages
        assert all("==" in pinned or variable for pinned, variable in packages)
    assert all("==" in package for package in values.get("PACKAGES", "").split())
    assert '"' not in "".join(values.values())  # quotes would be a part of the value
    used = set(re.findall(r"{{ ([A-Z]+) }}", text))
    assert used == set(values)


@pytest.mark.parametrize("recipe", ["cuda", "rocm"])
def test_the_containerfile_says_the_same(recipe: str) -> None:
    text, values = (FOLDER / f"{recipe}.Containerfile").read_text(), arguments(recipe)
    assert f"FROM {values.pop('BASE')}\n" in text
    values.pop("BOOTSTRAP")
    assert dict(re.findall(r"^ARG ([A-Z]+)=(.*)$", text, re.MULTILINE)) == values
    recipe_text = (FOLDER / f"{recipe}.def").read_text()
    for command in ("apt-get install", "rm -rf"):
        (line,) = re.findall(rf"^ *({command}[^;\\\n]*)", recipe_text, re.MULTILINE)
        assert line.strip() in text


@pytest.mark.parametrize("recipe", recipes())
def test_the_shell_of_each_section_is_sound(recipe: str) -> None:
    text = re.sub(r"{{ [A-Z]+ }}", "value", (FOLDER / f"{recipe}.def").read_text())
    for section in ("post", "environment", "test"):
        body = text.split(f"%{section}\n")[1].split("\n%")[0]
        command = [str(Path(sys.executable).with_name("shellcheck")), "--shell=sh", "--exclude=SC2086", "-"]
        done = subprocess.run(command, input=f"#!/bin/sh\n{body}\n", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "not found"),
        ("just some words\n", "is not a definition file"),
    ],
)
def test_what_is_no_recipe_is_said_to_be_none(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "Recipe"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        find_recipe(str(path))


def test_a_recipe_in_the_folder_goes_before_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe("cuda") == FOLDER / "cuda.def"
    monkeypatch.chdir(tmp_path)
    Path("cuda").write_text("Bootstrap: docker\nFrom: x:1\n")
    assert find_recipe("cuda") == Path("cuda")
