"""The job's own part comes first and is short; below it stands static shell, the same bytes in every script."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc_launch.base.installed import shipped
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.runtimes.container_runtimes import wrap_command
from hpc_launch.script.parts import MARKER, part, part_names
from hpc_launch.script.render import render
from tests.shellcheck import shellcheck

HERE = Path(__file__).parent
SCRIPTS = sorted([*HERE.glob("expected/*.sh"), *HERE.glob("shipped/*/*.sh")])
PARTS = sorted((shipped("slurm_templates") / "parts").glob("*.sh"))
HEADER = re.compile(r"\n# --- [^\n]* ---\n")
MOST_LINES, MOST_OF_ALL = 95, 115


@pytest.fixture(scope="module")
def used() -> dict[Path, list[str]]:
    """The parts that each golden script names; those of its roles come first."""
    return {
        path: [
            name
            for found in re.findall(r"^job_parts=\(\n(.*?)\)", path.read_text(), re.DOTALL | re.MULTILINE)
            for name in found.split()
        ]
        for path in SCRIPTS
    }


def test_what_stands_below_the_marker_is_the_same_in_every_script(used: dict[Path, list[str]]) -> None:
    assert len(used) > 100
    assert all(names[0] == "messages" and names[-1] == "exit" for names in used.values())
    assert len({script.read_text().partition(MARKER)[2] for script in SCRIPTS}) == 1


def test_every_part_is_in_a_golden_script(used: dict[Path, list[str]]) -> None:
    assert {name for names in used.values() for name in names} == {path.stem for path in PARTS}


def test_shellcheck_finds_nothing_in_the_parts() -> None:
    assert shellcheck([*PARTS, shipped("slurm_templates") / "successor.sh"]) == ""


def test_a_script_runs_no_other_runtime_than_its_own(tmp_path: Path) -> None:
    script = next(path for path in SCRIPTS if path.stem == "local_torchrun").read_text()
    for folder in ("attempts/001", "hooks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "script.sh").write_text(script)
    for text in (None, "echo PWNED\n"):
        if text is not None:
            (tmp_path / "hooks" / "runtime.sh").write_text(text)
        words = ["bash", str(tmp_path / "script.sh"), str(tmp_path / "attempts" / "001")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "runtime.sh is missing, or not the file that this script was made for" in done.stderr


def test_parts_need_no_rendering() -> None:
    for path in PARTS:
        text = path.read_text()
        assert part(path.stem) == text
        assert len(HEADER.findall(text)) == 1, path
        assert "{{" not in text, path
        assert "{% " not in text, path


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PreparedJob:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    # What is copied of the code depends on whether it is in a git work tree.
    job = shutil.copytree(shipped("examples/tiny-gpt"), tmp_path / "tiny-gpt") / "job.yaml"
    return prepare_job(job, site="lumi-g", sets=["account=project_465000001"])


def test_the_own_part_of_the_example_on_lumi_is_short(example: PreparedJob) -> None:
    own, _, _ = example.script.partition(MARKER)
    assert own.count("\n") <= MOST_LINES
    assert example.script.count("\n") <= MOST_OF_ALL
    titles = ["Slurm options", "Environment", "Rendezvous", "What runs on each node", "How the nodes are started"]
    assert re.findall(r"^# === (.*) ===$", own, re.MULTILINE) == [*titles, "Values for the part below"]


def test_the_page_has_the_lines_of_each_part(example: PreparedJob, request: pytest.FixtureRequest) -> None:
    own, _, below = example.script.partition(f"{MARKER}\n")
    static = render(example.plan, standalone=True).partition(f"{MARKER}\n")[2]
    pieces = re.split(r"^# === (.*) ===$", own, flags=re.MULTILINE)
    rows = [("Head", pieces[0].count("\n"))]
    rows += [(title, text.count("\n")) for title, text in zip(pieces[1::2], pieces[2::2], strict=True)]
    rows.append(("**The job's own part**", own.count("\n")))
    rows.append(("Start of `runtime.sh`", below.count("\n")))
    rows += [
        (f"`{name}.sh`", part(name).count("\n"))
        for name in part_names(example.plan, descriptor(example.plan.launcher), wrap_command(example.plan.container))
    ]
    rows.append(("**The static part**", static.count("\n")))
    path = HERE.parents[1] / "docs" / "reference" / "script-parts.md"
    page = path.read_text("utf-8")
    if request.config.getoption("--update-golden"):
        for name, lines in rows:
            page = re.sub(rf"^(\| {re.escape(name)} \| \**)\d+", rf"\g<1>{lines}", page, flags=re.MULTILINE)
        path.write_text(page, "utf-8")
    table = re.findall(r"^\| ([^|]+) \| \**(\d+)\** \|", page, re.MULTILINE)
    assert [(name, int(lines)) for name, lines in table] == rows


@pytest.mark.parametrize("line", ["declare -x GIVEN=1", "declare -A GIVEN=([a]=1)", "typeset GIVEN=1"])
def test_a_declare_of_a_sourced_file_reaches_the_job(line: str, tmp_path: Path) -> None:
    """In a function, `declare` would set a local variable."""
    (tmp_path / "setup.sh").write_text(f"{line}\n")
    text = f"""die() {{ exit 1; }}
job_environment() {{
    . {tmp_path}/setup.sh || die
}}
job_workdir={tmp_path}
{part("environment")}
declare -p GIVEN >/dev/null
"""
    subprocess.run(["bash", "-c", text], check=True)


def test_a_variable_of_the_job_may_have_any_name(tmp_path: Path) -> None:
    names = ["name", "body", "host", "code"]
    exports = "".join(f"    export {name}=given\n" for name in names)
    text = f"""job_environment() {{
{exports}}}
job_workdir={tmp_path} job_secrets=(name body) job_image_prefix=IMAGE_ job_image_variables=(name host)
{part("environment")}{part("secrets")}{part("image_variables")}
printenv {" ".join(names)} IMAGE_name IMAGE_host
"""
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["given"] * 6


def test_a_copy_that_hangs_is_given_up_and_signals_are_handled_meanwhile() -> None:
    (function,) = re.findall(r"(?ms)^stage_within\(\).*?^\}\n", part("stage"))
    text = f"""{function}
trap 'echo warned' USR1
(sleep 0.5; kill -s USR1 $$) &
stage_within 2 sleep 60
echo "$?"
stage_within 2 false
echo "$?"
"""
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.split() == ["warned", "124", "1"]


def ended(attempt: Path, text: str) -> subprocess.CompletedProcess[str]:
    """The end of a script, behind the parts that note it."""
    stubs = 'now() { date +%s; }\nsay() { echo "$*"; }\nenter() { phase=$1; }\njob_id=7 restart=0 nodes=n1\n'
    text = f"{stubs}attempt_dir={attempt}\n{part('records')}{part('signals')}{text}"
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("code", [0, 143])
def test_a_signal_while_the_script_exits_does_not_keep_the_end_hook_from_running(code: int, tmp_path: Path) -> None:
    """Slurm may end the step of a preempted job before it signals the batch script."""
    late = 'saved_checkpoint() { kill -s TERM $$; sleep 0.2; }\ncall_after() { echo "hook after $1, $ended_by"; }\n'
    done = ended(tmp_path, f"{late}phase=ended\nexit {code}\n")
    assert (done.returncode, done.stdout.splitlines()) == (code, ["ended by SIGTERM", f"hook after {code}, TERM"])
    record = json.loads((tmp_path / "end.json").read_text())
    assert (record["exit_code"], record["signal"]) == (code, "TERM")


def test_a_signal_before_the_result_is_known_is_no_success(tmp_path: Path) -> None:
    """The starter has ended with 0, and what the nodes left is still being looked at."""
    stubs = "saved_checkpoint() { :; }\ncall_after() { echo hook; }\n"
    done = ended(tmp_path, f"{stubs}phase=ended code=0\nkill -s TERM $$\nexit 0\n")
    assert (done.returncode, done.stdout) == (143, "ended by SIGTERM\nhook\n")
    assert json.loads((tmp_path / "end.json").read_text())["exit_code"] == 143


def test_the_time_of_the_end_stays_when_the_checkpoint_is_found_late(tmp_path: Path) -> None:
    """A run that has been seen to end would end once more."""
    keep = 'cp "$attempt_dir/end.json" "$attempt_dir/first.json"; sleep 1.1'
    stubs = f'saved_checkpoint() {{ {keep}; saved=7; record end.json "$1"; }}\ncall_after() {{ :; }}\n'
    ended(tmp_path, f"{stubs}phase=ended\nexit 0\n")
    first, last = (json.loads((tmp_path / name).read_text()) for name in ("first.json", "end.json"))
    assert (first["saved_step"], last["saved_step"]) == (None, 7)
    assert first["ended"] == last["ended"]


def test_an_image_that_is_a_folder_is_not_staged_like_an_environment(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "agent.pyz").write_text("raise SystemExit('packed')\n")
    folder = tmp_path / "image"
    folder.mkdir()
    stubs = 'say() { echo "$*"; }\nenter() { :; }\njob_stage=node node_functions=() run_dir=$PWD attempt_dir=$PWD\n'
    done = subprocess.run(
        ["bash", "-c", stubs + part("stage") + part("stage_software")],
        env={**os.environ, "HPC_LAUNCH_RUN_DIR": str(tmp_path), "HPC_LAUNCH_IMAGE": str(folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"not staged: {folder} is not a file\n", "")


@pytest.mark.parametrize(
    ("files", "code", "asked", "said"),
    [
        ([], 0, "setstripe -E 64M -c 1 {0}", ""),
        (["step-1"], 0, "", ""),
        (
            [],
            1,
            "setstripe -E 64M -c 1 {0}",
            "warning: cannot stripe {0} as the site recommends (lfs setstripe -E 64M -c 1)",
        ),
    ],
    ids=["new", "in use", "refused"],
)
def test_only_a_checkpoint_folder_without_files_is_striped(
    files: list[str], code: int, asked: str, said: str, tmp_path: Path
) -> None:
    """`lfs` is a stand-in: the tests have no Lustre."""
    folder = tmp_path / "check points"
    for name in files:
        (folder / name).mkdir(parents=True)
    (tmp_path / "lfs").write_text(f'#!/bin/sh\necho "$*" >asked\nexit {code}\n')
    (tmp_path / "lfs").chmod(0o755)
    stubs = f"say() {{ echo \"$*\"; }}\ncheckpoints='{folder}' job_stripe=(-E 64M -c 1)\n"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["bash", "-ec", stubs + part("stripe")]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (said.format(folder), "")
    found = (tmp_path / "asked").read_text().strip() if (tmp_path / "asked").exists() else ""
    assert found == asked.format(folder)
    assert folder.is_dir()
