"""Broken profiles: each says what is wrong, where, and what to do; and none of them stops a job on another site."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.sites.search_path import find_profile
from tests.sites.conftest import BODY, Plan, Refusing, Write

HEAD = "name: here\n"
ROW = "default_time: 1h"


def queue(more: str) -> str:
    return HEAD + BODY.replace(ROW, f"{ROW}, {more}")


def node(more: str) -> str:
    return HEAD + BODY.replace("gpus: 4", f"gpus: 4, {more}")


def top(line: str) -> str:
    return f"{HEAD}{line}\n{BODY}"


TOKEN = f"hf_{'a' * 30}"
BROKEN: dict[str, tuple[dict[str, str], str, str]] = {
    # How the file is written.
    "no YAML": ({"here": "name: [\n"}, "HL002", "here.yaml:2:1"),
    "empty": ({"here": ""}, "HL005", "here.yaml:1:1"),
    # Keys and types.
    "unknown key": ({"here": top("quues: {}")}, "HL010", "here.yaml:2:1"),
    "text for a number": ({"here": HEAD + BODY.replace("gpus: 4", "gpus: four")}, "HL011", "here.yaml:5:39"),
    "two dialects for GPUs": ({"here": node("gpu_request: [gres, gpus]")}, "HL011", "here.yaml:5:55"),
    "nothing that must be": ({"here": f"{HEAD}scheduler: slurm\n"}, "HL012", "here.yaml:1:1"),
    "a name with a slash": ({"here": f"name: a/b\n{BODY}"}, "HL013", "here.yaml:1:7"),
    "negative CPUs": ({"here": HEAD + BODY.replace("cpus: 64", "cpus: -1")}, "HL013", "here.yaml:5:15"),
    "a variable's name": ({"here": top("env: [{set: {'A B': 1}}]")}, "HL013", "here.yaml:2:14"),
    "a condition": ({"here": top("env: [{when: {nodes: many}}]")}, "HL011", "here.yaml:2:22"),
    "a mark of a mapping": ({"here": top("sbatch+: {add: {a: 1}}")}, "HL021", "here.yaml:2:1"),
    "a key of jobs": ({"here": top("defaults: {tmie: 1h}")}, "HL010", "here.yaml:2:12"),
    "an option with dashes": ({"here": top("sbatch: {add: {--mem: 1}}")}, "HL013", "here.yaml:2:16"),
    # Layers.
    "a circle of one": ({"here": top("extends: [x, here]"), "x": "kind: base\n"}, "HL308", "here.yaml:2:14"),
    "a number for a base": ({"here": top("extends: [3]")}, "HL309", "here.yaml:2:11"),
    "a base with a wrong key": ({"here": top("extends: a"), "a": "kind: base\nquues: {}\n"}, "HL010", "a.yaml:2:1"),
    "a value that a layer hides": (
        {"here": top("extends: a"), "a": "kind: base\nqueues: {gpu: {default_time: soon}}\n"},
        "HL011",
        "a.yaml:2:30",
    ),
    "a kind that is none": ({"here": top("extends: a"), "a": "kind: bse\n"}, "HL013", "a.yaml:1:7"),
    "a link to nowhere": ({"here": top("extends: gone")}, "HL308", "here.yaml:2:10"),
    # Parameters.
    "a parameter that is not there": ({"here": top("title: '${param.x}'")}, "HL311", "here.yaml:2:8"),
    "a value for no parameter": ({"here": top("values: {x: 1}")}, "HL311", "here.yaml:2:13"),
    "a value that does not fit": (
        {"here": top("parameters: {x: {pattern: '[a-z]+'}}\nvalues: {x: 1}")},
        "HL311",
        "here.yaml:3:13",
    ),
    # Facts and steps.
    "facts of nothing": ({"here": top("facts: {quues: me}")}, "HL312", "here.yaml:2:9"),
    "a step that does nothing": ({"here": top("prelude: [{why: nothing}]")}, "HL314", "here.yaml:2:11"),
    "a step where it cannot be": (
        {"here": top("prelude: [{module_load: [a], where: container}]")},
        "HL314",
        "here.yaml:2:11",
    ),
    # Queues and requests.
    "a row that goes backwards": ({"here": queue("limits: [{nodes: 9-5, time: 1h}]")}, "HL315", "here.yaml:7:77"),
    "a row of no number": ({"here": queue("limits: [{nodes: few, time: 1h}]")}, "HL013", "here.yaml:7:77"),
    "GPUs asked for twice": ({"here": top("sbatch: {add: {gres: 'gpu:4'}}")}, "HL316", "here.yaml:2:22"),
    "a type that is not said": ({"here": node("gpu_request: gres-type")}, "HL316", "here.yaml:5:55"),
    "no such queue": ({"here": top("default_queue: gpus")}, "HL302", "here.yaml:2:16"),
    # What must not be in it.
    "a token": ({"here": top(f"title: {TOKEN}")}, "HL317", "here.yaml:2:8"),
    "a secret's step": ({"here": top("prelude: [{set: {A_TOKEN: abc}}]")}, "HL317", "here.yaml:2:27"),
}


@pytest.mark.parametrize(("texts", "code", "position"), BROKEN.values(), ids=BROKEN)
def test_a_broken_profile_says_what_where_and_what_to_do(  # noqa: PLR0917 - the columns of the table above
    texts: dict[str, str], code: str, position: str, write: Write, refused: Refusing, plan: Plan, tmp_path: Path
) -> None:
    write(**texts, there=f"name: there\n{BODY}")
    (tmp_path / "shared" / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    found = refused()
    assert (code, position) in [(one.code, str(one.place).rsplit("/", 1)[-1]) for one in found]
    assert plan("there").plan.site == "there"


def test_a_team_whose_folder_is_gone_is_named(write: Write, refused: Refusing, plan: Plan, tmp_path: Path) -> None:
    write(there=f"name: there\n{BODY}")
    team = tmp_path / "config" / "hpc-launch" / "teams" / "ours"
    team.mkdir(parents=True)
    (team / "team.json").write_text(json.dumps({"name": "ours", "url": str(tmp_path / "unmounted")}))
    found = refused()
    assert [(one.code, str(one.place)) for one in found] == [("HL301", "--site")]
    assert "the profiles of shared ours are missing" in str(found[0].hint)
    write(mine=f"name: mine\nextends: centre\n{BODY}")
    assert [(one.code, str(one.place).rsplit("/", 1)[-1]) for one in refused("mine")] == [("HL308", "mine.yaml:2:10")]
    assert plan("there").plan.site == "there"


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder that all may read, and rights of a user who may not read everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        os.seteuid(os.getuid())


def test_no_rights(
    as_nobody: Path, write: Write, refused: Refusing, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, open_ = as_nobody / "closed", as_nobody / "open"
    for folder in (closed, open_):
        folder.mkdir()
    for name in ("here", "there"):
        (open_ / f"{name}.yaml").write_text(f"name: {name}\n{BODY}")
    (open_ / "job.yaml").write_text("name: tiny\nscript: train.py\n")
    (open_ / "train.py").touch()
    (closed / "base.yaml").write_text("kind: base\n")
    (open_ / "mine.yaml").write_text(f"name: mine\nextends: base\n{BODY}")
    closed.chmod(0)
    (open_ / "here.yaml").chmod(0)
    monkeypatch.chdir(open_)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", f"{closed}:{open_}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(as_nobody))
    if os.getuid() == 0:
        os.seteuid(65534)

    def codes(site: str) -> list[tuple[str, str, str]]:
        with pytest.raises(Refused) as caught:
            prepare_job(open_ / "job.yaml", site=site)
        return [(one.code, Path(str(one.place)).name, str(one.hint)) for one in caught.value.findings]

    assert prepare_job(open_ / "job.yaml", site="there").plan.site == "there"
    assert codes("here")[0][:2] == ("HL001", "here.yaml")
    assert codes("mine")[0][:2] == ("HL308", "mine.yaml:2:10")
    code, place, hint = codes("base")[0]
    assert (code, place) == ("HL301", "--site")
    assert hint.startswith(f"no permission to read {closed}; ")


def test_a_profile_that_is_a_folder_or_a_broken_link_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    (tmp_path / "mine.yaml").mkdir()
    (tmp_path / "ours.yaml").symlink_to("nowhere")
    for name in ("mine", "ours"):
        with pytest.raises(Refused) as caught:
            find_profile(name, None)
        assert caught.value.findings[0].message == f"site profile {tmp_path / name}.yaml is not a file"


def test_only_a_similar_name_is_suggested() -> None:
    with pytest.raises(Refused) as caught:
        find_profile("nosuch", None)
    assert "did you mean" not in (caught.value.findings[0].hint or "")
