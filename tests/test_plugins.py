"""Launchers, container runtimes and schedulers of other packages, installed as pip does it: what their users see."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.base.errors import Refused, SubmitUnknown, Unreachable
from hpc_launch.base.findings import Finding
from hpc_launch.prepare.prepare import prepare_job, validate_job
from hpc_launch.schedulers.scheduler import Submission, scheduler_for
from tests.here import launch
from tests.plugin_package import EXAMPLE, install, install_example, on_path

JOB = "name: tiny\nlauncher: mine\nscript: train.py\n"
LAUNCHERS = "[hpc_launch.launchers]\nmine = mine:DESCRIPTOR\n"
MINE = """\
from hpc_launch.plugins.api import API, LauncherDescriptor, options_only

TEXT = "on_each_node() { :; }\\n"
DESCRIPTOR = LauncherDescriptor(name="mine", api=API, tasks="node", plan=options_only, template=TEXT)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    """A folder on the path of this process, for packages."""
    (tmp_path / "packages").mkdir()
    with on_path(tmp_path / "packages") as folder:
        yield folder


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., list[Finding]]:
    def found(job: str, site: str = "local") -> list[Finding]:
        (tmp_path / "train.py").touch()
        (tmp_path / "job.yaml").write_text(job)
        return validate_job(tmp_path / "job.yaml", site=site)

    return found


BROKEN = {
    "it does not import": ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    "it exits": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "it has no descriptor": ("", "AttributeError: module 'mine' has no attribute 'DESCRIPTOR'"),
    "it is something else": ("DESCRIPTOR = 1\n", "mine:DESCRIPTOR is not a descriptor of a launcher"),
    "it is of another group": (
        "import hpc_launch.plugins.api as hl\nDESCRIPTOR = hl.RuntimeDescriptor(name='mine', api=hl.API, wrap=print)\n",
        "mine:DESCRIPTOR is not a descriptor of a launcher",
    ),
    "it has another name": (MINE.replace('"mine"', '"yours"'), "its descriptor has the name `yours`"),
    "it is for another version": (
        MINE.replace("api=API", "api=API + 1"),
        "it is written for version 2 of the API, and this is version 1",
    ),
    "it states no version": (MINE.replace("api=API, ", ""), "it is written for version 0 of the API"),
    "it has an unknown field": (MINE.replace("tasks=", "task="), "TypeError"),
    "it fails where it plans": (MINE.replace("plan=options_only", "plan=lambda _: 1 / 0"), "ZeroDivisionError"),
    "its template is no template": (MINE.replace("{ :; }", "{% if %}"), "TemplateSyntaxError"),
    "its template wants what is not there": (MINE.replace("{ :; }", "{{ nothing }}"), "'nothing' is undefined"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_launcher_that_does_not_work_is_a_finding(packages: Path, check: Any, case: str) -> None:
    module, said = BROKEN[case]
    install(packages, "Their-Launchers", "2.1", LAUNCHERS, {"mine": module})
    (finding,) = check(JOB)
    assert finding.code == "HL323"
    assert finding.message.startswith("the launcher `mine` of Their-Launchers 2.1 does not work: ")
    assert said in finding.message
    assert "pip install --upgrade Their-Launchers" in (finding.hint or "")
    if "template" not in case:  # that is found when the whole script is written
        assert (finding.place and finding.place.line) == 2


def test_what_a_package_prints_is_not_taken_for_the_answer(packages: Path, check: Any, capfd: Any) -> None:
    install(packages, "loud", "1", LAUNCHERS, {"mine": f"print('hello')\n{MINE}"})
    assert check(JOB) == []
    assert capfd.readouterr() == ("", "hello\n")


def test_two_packages_cannot_have_the_same_name(packages: Path, check: Any) -> None:
    for name in ("one", "two"):
        install(packages, name, "1", LAUNCHERS, {"mine": MINE})
    (finding,) = check(JOB)
    assert re.search(r"of (one 1 and two 1|two 1 and one 1) does not work: only one package may", finding.message)


def test_the_first_of_two_versions_on_the_path_counts_as_for_python(packages: Path, check: Any, tmp_path: Path) -> None:
    install(packages, "one", "1", LAUNCHERS, {"mine": "1 / 0\n"})
    with on_path(install(tmp_path / "newer", "one", "2", LAUNCHERS, {"mine": MINE})):
        assert check(JOB) == []


def test_no_package_takes_a_name_of_hpc_launch(packages: Path, check: Any) -> None:
    entries = "[hpc_launch.launchers]\ntorchrun = mine:X\n[hpc_launch.schedulers]\nlocal = mine:X\n"
    install(packages, "taker", "1", f"{entries}[hpc_launch.runtimes]\napptainer = mine:X\nnone = mine:X\n")
    assert check(JOB.replace("mine", "torchrun")) == []
    (finding,) = check(JOB.replace("mine", "mpiexec"))
    assert finding.message.count("torchrun") == 1


def test_a_package_whose_own_files_are_broken_harms_no_other(packages: Path, check: Any) -> None:
    install(packages, "broken", "1", "[hpc_launch.launchers]\nno equals sign\n")
    (packages / "empty-1.dist-info").mkdir()
    install(packages, "whole", "1", LAUNCHERS, {"mine": MINE})
    assert check(JOB) == []


def test_names_of_packages_are_among_the_choices(packages: Path, check: Any, tmp_path: Path) -> None:
    install_example(packages)
    (finding,) = check(JOB.replace("mine", "spwan"))
    assert (finding.code, finding.hint) == ("HL013", "did you mean `spawn`?")
    assert "`ray`, `spawn`, not the text 'spwan'" in finding.message
    (finding,) = check(JOB.replace("mine", "torchrun") + "container: {image: x, runtime: prot}\n")
    assert finding.hint == "did you mean `proot`?"
    (tmp_path / "site.yaml").write_text((EXAMPLE / "site.yaml").read_text().replace("spool", "spoil"))
    (finding,) = check(JOB.replace("mine", "torchrun"), site=str(tmp_path / "site.yaml"))
    assert (finding.code, finding.hint) == ("HL013", "did you mean `spool`?")
    (tmp_path / "site.yaml").write_text(
        (EXAMPLE / "site.yaml").read_text() + "launchers: {spawn: discouraged, x: discouraged}\n"
    )
    found = check(JOB.replace("mine", "spawn"), site=str(tmp_path / "site.yaml"))
    assert [one.message.partition(" must")[0] for one in found] == ["the key `launchers.x`"]


def test_an_image_is_entered_by_the_runtime_of_a_package(packages: Path, tmp_path: Path) -> None:
    install_example(packages)
    (tmp_path / "image").mkdir()
    image = {"image": str(tmp_path / "image"), "runtime": "proot", "binds": [f"{tmp_path}:/b"], "options": ["-v", "1"]}
    values = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(json.dumps({**values, "container": image, "script": str(EXAMPLE / "count.py")}))
    script = prepare_job(tmp_path / "job.yaml", site=str(EXAMPLE / "site.yaml")).script
    words = " ".join(script.replace("\\\n", "").split())
    assert f"proot -r {tmp_path}/image -w {tmp_path} -b " in words
    assert f"-b {tmp_path}:/b -v 1 /bin/sh -c" in words


def test_the_example_is_as_small_as_it_can_be_and_what_the_page_shows() -> None:
    texts = {path.name: path.read_text() for path in (EXAMPLE / "hpc_launch_example").iterdir() if path.is_file()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    assert lines["launcher.py"] + lines["spawn.sh.j2"] <= 40
    assert lines["spool.py"] + lines["queue.sh"] <= 200
    page = (EXAMPLE.parent.parent / "docs" / "how-to" / "plugins.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    assert not [block for block in shown if not any(block in text for text in texts.values())]


SCHEDULER = """
from hpc_launch.plugins.api import API, Scheduler, SchedulerDescriptor

class Mine(Scheduler):
    def submit(self, submission): BODY
    def query(self, job_ids, *, fresh=False): BODY
    def find(self, job_name): BODY
    def cancel(self, job_id): BODY

DESCRIPTOR = SchedulerDescriptor(name="mine", api=API, open=Mine)
"""


@pytest.mark.parametrize("body", ["return 1 / 0", "return None", "return no_such_name"])
def test_what_a_scheduler_does_wrong_is_an_error_that_its_callers_expect(packages: Path, body: str) -> None:
    install(
        packages,
        "theirs",
        "3",
        "[hpc_launch.schedulers]\nmine = mine:DESCRIPTOR\n",
        {"mine": SCHEDULER.replace("BODY", body)},
    )
    scheduler = scheduler_for("mine")
    with pytest.raises(SubmitUnknown, match=r"`submit` of theirs 3 failed: \w+Error: "):
        scheduler.submit(Submission("", packages, "a.b.1"))
    for ask in (lambda: scheduler.query(["1"]), lambda: scheduler.find("a.b.1")):
        with pytest.raises(Unreachable, match=" of theirs 3 failed: "):
            ask()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("    def cancel(self, job_id): BODY\n", "TypeError: Can't instantiate abstract class Mine"),
        ("open=Mine", "TypeError: Missing required argument 'open'"),
    ],
)
def test_a_scheduler_that_lacks_what_is_required_is_not_opened(packages: Path, wrong: str, said: str) -> None:
    entry = "[hpc_launch.schedulers]\nmine = mine:DESCRIPTOR\n"
    install(packages, "theirs", "3", entry, {"mine": SCHEDULER.replace(wrong, "").replace("BODY", "pass")})
    with pytest.raises(Refused) as refused:
        scheduler_for("mine")
    assert f"the scheduler `mine` of theirs 3 does not work: {said}" in str(refused.value)


def test_a_scheduler_that_nobody_has_is_said_to_be_missing() -> None:
    with pytest.raises(Refused, match="HL323 no installed package has the scheduler `gone`"):
        scheduler_for("gone")


# --- Runs on the scheduler of the example ---


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def example(tmp_path: Path, installed: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return launch(tmp_path, *words, **{"PYTHONPATH": str(installed), **environment})

    return run


def status(example: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(example("status", "@last", "--json").stdout)
    return found


def until(example: Any, *states: str) -> dict[str, Any]:
    end = time.monotonic() + 150
    while (found := status(example))["state"] not in states:
        assert time.monotonic() < end, found
        time.sleep(0.3)
    return found


def by_name(answer: str) -> dict[str, tuple[str, str]]:
    """State and reason of the newest run of each name."""
    return {one["name"]: (one["state"], one["reason"] or "") for one in reversed(json.loads(answer))}


SUBMIT = ("submit", str(EXAMPLE / "job.yaml"), "--site", str(EXAMPLE / "site.yaml"))


def test_a_job_runs_on_the_scheduler_of_a_package(example: Any) -> None:
    done = example(*SUBMIT, "--wait", "--set", "args.steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    found = status(example)
    seen = (found["state"], found["job_id"], found["progress"]["step"])
    assert seen == ("COMPLETED", "spool-1", 3), (done.stderr, found)
    assert "step 3 of 3" in example("logs", "@last", "--node", "0").stdout


@pytest.mark.slow
def test_a_job_waits_in_the_queue_and_is_cancelled_there_and_where_it_runs(example: Any) -> None:
    for _ in range(2):
        assert example(*SUBMIT, "--set", "args.steps=6000").returncode == 0
    end = time.monotonic() + 60  # until the scheduler has answered
    while (waiting := status(example))["state_source"] != "scheduler" and time.monotonic() < end:
        time.sleep(0.3)
    assert waiting["state"] == "PENDING"
    assert example("cancel", "@last").returncode == 0
    assert until(example, "CANCELLED")["attempts"][0]["exit_code"] is None
    (running,) = (one for one in json.loads(example("list", "--json").stdout) if one["run"] != waiting["run"])
    assert running["state"] in ("STARTING", "RUNNING")
    assert example("cancel", running["run"]).returncode == 0
    end = time.monotonic() + 60
    while json.loads(example("status", running["run"], "--json").stdout)["state"] != "CANCELLED":
        assert time.monotonic() < end
        time.sleep(0.3)


@pytest.mark.slow
def test_a_failure_is_retried_by_the_job_itself(example: Any, tmp_path: Path) -> None:
    sets = ("--set", "args.fail-at-step=3", "--set", "args.steps=4", "--set", "retry.backoff=1s")
    assert example(*SUBMIT, *sets).returncode == 0
    end = time.monotonic() + 150  # nobody looks: the first attempt submits the second one
    while not (ends := list(tmp_path.glob("runs/*/attempts/002/end.json"))):
        assert time.monotonic() < end
        time.sleep(0.2)
    second = json.loads(ends[0].read_text())
    assert second["exit_code"] == 0
    found = until(example, "COMPLETED")
    assert [(one["class"], one["job_id"]) for one in found["attempts"]] == [
        ("filesystem_error", "spool-1"),
        ("success", "spool-2"),
    ]
    # The rank that saves may be a step ahead of the one that failed, or behind it.
    assert second["resumed_step"] >= 1
    assert f"begins after step {second['resumed_step']}\n" in example("logs", "@last").stdout


@pytest.mark.slow
def test_a_package_that_is_gone_or_fails_hides_no_other_run(example: Any, tmp_path: Path) -> None:
    (tmp_path / "local.yaml").write_text("name: here\nsite: local\nlauncher: none\ncommand: ['true']\n")
    assert example(*SUBMIT, "--wait", "--set", "args.steps=1").returncode == 0
    assert example(*SUBMIT, "--set", "args.steps=6000").returncode == 0
    assert example("submit", "local.yaml", "--wait").returncode == 0
    gone = example("list", "--json", PYTHONPATH="")
    assert gone.returncode == 0, gone.stderr
    states = by_name(gone.stdout)
    assert states["here"][0] == "COMPLETED"
    assert "no installed package has the scheduler `spool`" in states["counted"][1]
    failing = install_example(tmp_path / "failing")
    spool = failing / "hpc_launch_example" / "spool.py"
    spool.write_text(spool.read_text().replace("del fresh  #", "1 / 0  #"))
    fails = example("list", "--json", PYTHONPATH=str(failing))
    assert fails.returncode == 0, fails.stderr
    states = by_name(fails.stdout)
    assert states["here"][0] == "COMPLETED"
    assert "`query` of hpc-launch-example 1.0 failed: ZeroDivisionError" in states["counted"][1]
    for run in json.loads(example("list", "--json").stdout):
        example("cancel", run["run"])
