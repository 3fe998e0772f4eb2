"""Bad input through the real command: refused with code 3, place and hint, nothing submitted, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.forked import hpc_launch_text

COMMAND = str(Path(sys.executable).with_name("hpc-launch"))
SITE = """\
name: here
scheduler: slurm
node_classes: {gpu: {cpus: 32, gpus: 4}}
queues:
  gpu: {node_class: gpu, partition: gpu, memory: omit, limits: [{nodes: 1-4, time: 24:00:00}]}
"""
GOOD = "name: x\nscript: train.py\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)


@dataclass(frozen=True)
class Shell:
    """A folder with a job file and a script, a site of Slurm's, and Slurm commands that only note that they ran."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HPC_LAUNCH_")}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "HPC_LAUNCH_SITE_PATH": str(self.folder / "sites"),
            "HPC_LAUNCH_HOME": str(self.folder / "runs"),
            **{f"XDG_{name}_HOME": str(self.folder / name.lower()) for name in ("STATE", "CONFIG", "CACHE")},
        }

    def call(
        self, *words: str | Path, before: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run hpc-launch; it must not take long, whatever it is given."""
        if not before:
            return hpc_launch_text([*map(str, words)], cwd=self.folder, env={**self.env, **(env or {})}, timeout=90)
        return subprocess.run(
            [*before, COMMAND, *map(str, words)],
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def refused(self, *words: str | Path) -> str:
        """`submit` with these words must be refused with nothing done; hands back what it said."""
        done = self.call("submit", *words)
        assert done.returncode == 3, done.stdout + done.stderr
        assert done.stdout == ""
        assert "hint: " in done.stderr
        self.assert_nothing_done()
        return done.stderr

    def assert_nothing_done(self) -> None:
        runs = self.folder / "runs"
        assert not runs.exists() or not list(runs.iterdir())
        assert not (self.folder / "sbatch.called").exists()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return make_shell(tmp_path)


def make_shell(folder: Path) -> Shell:
    shell = Shell(folder)
    for name in ("bin", "sites", "home"):
        (folder / name).mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct", "scontrol"):
        file = folder / "bin" / name
        file.write_text(f"#!/bin/sh\necho $0 >>{folder}/$(basename $0).called\nexit 1\n")
        file.chmod(0o755)
    (folder / "sites" / "here.yaml").write_text(SITE)
    (folder / "train.py").touch()
    shell.job.write_text(GOOD)
    return shell


@pytest.mark.parametrize(
    ("text", "site", "place", "said"),
    [
        pytest.param(GOOD + "nodse: 2\n", "local", "3:1 HL010", "did you mean `nodes`", id="unknown key"),
        pytest.param(GOOD + "gpus_per_node: 5\n", "here", "3:16 HL401", "has 4", id="too many GPUs"),
        pytest.param("name: x\nscript: train.py\nargs: ['a\0b']\n", "local", "3:10 HL007", "U+0000", id="raw NUL"),
        pytest.param('name: x\nscript: train.py\nargs: ["a\\0b"]\n', "local", "3:8 HL007", "", id="escaped NUL"),
        pytest.param(BOMB, "local", "1: HL006", "aliases", id="alias bomb"),
        pytest.param("a: " + "[" * 100_000, "local", "1: HL006", "levels", id="deep nesting"),
        pytest.param("a: " + "{x: " * 100_000, "local", "1: HL006", "levels", id="deep mappings"),
        pytest.param("", "local", "1:1 HL005", "empty", id="empty file"),
        pytest.param("name: x\n---\nname: y\n", "local", "2:1 HL005", "second document", id="two documents"),
        pytest.param("name: ../x\nscript: train.py\n", "local", "1:7 HL013", "letters", id="a path as name"),
    ],
)
def test_refused_with_its_place(shell: Shell, text: str, site: str | None, place: str, said: str) -> None:
    shell.job.write_text(text)
    told = shell.refused("job.yaml", *(["--site", site] if site else []))
    where, code = place.split()
    assert re.search(rf"^job\.yaml:{where}{'' if where[-1].isdigit() else '[0-9]+'}: {code} ", told, re.MULTILINE), told
    assert said in told


def test_what_is_no_job_file(shell: Shell) -> None:
    (shell.folder / "junk").write_bytes(bytes(range(256)) * 400)
    (shell.folder / "zeros").write_bytes(bytes(1000))
    (shell.folder / "large").write_text("# " + "x" * 10_000_000)
    (shell.folder / "loop").symlink_to("loop")
    (shell.folder / "utf-16").write_text(GOOD, encoding="utf-16")
    wanted = {
        ".": "is a directory",
        "nowhere.yaml": "no such file",
        "junk": "UTF-8",
        "zeros": "U+0000",
        "large": "4 MiB",
        "loop": "too many levels",
        "utf-16": "UTF-8",
        "/dev/zero": "regular file",
        "n" * 300: "too long",
    }
    for name, said in wanted.items():
        told = shell.refused(name, "--site", "local")
        assert said in told.lower() or said in told
        assert told.startswith(name)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(shell: Shell) -> None:
    os.mkfifo(shell.folder / "pipe")
    assert "pipe: HL001 " in shell.refused("pipe", "--site", "local")
    (shell.folder / "sites" / "pipe.yaml").symlink_to("../pipe")
    assert "HL301" in shell.refused("job.yaml", "--site", "pipe")


@pytest.mark.parametrize("verb", ["submit", "validate"])
def test_strange_names_do_not_reach_the_terminal(shell: Shell, verb: str) -> None:
    name = "a\nb\x1b[31m\r\u202ec.yaml"
    (shell.folder / name).write_text("name: x\n'no\x7f\\nde': 1\n'k\u202e': 1\n")
    done = shell.call(verb, name, "--site", "local", "--set", "x\x1b[2J\n=1")
    assert done.returncode == 3
    told = done.stdout + done.stderr
    assert set(told) & set("\x1b\r\x7f\u202e") == set()
    assert all(re.match(r"a\\u000ab\\u001b|--set x|  hint: ", line) for line in told.splitlines()), told


def test_overrides_that_make_no_sense(shell: Shell) -> None:
    for text, code in {
        "nodes": "HL020",
        "=3": "HL020",
        ".=1": "HL020",
        "": "HL020",
        "cpus_per_node=[": "HL011",
        "cpus_per_node=1.5": "HL011",
        "cpus_per_node.x=1": "HL011",
        "a..b=1": "HL010",
        "nodse=2": "HL010",
        "args=*x": "HL011",
        "args.x=[[1]]": "HL212",
        "args.x=${nope}": "HL206",
        "env.=1": "HL204",
        "name=../x": "HL013",
        "time=-1": "HL011",
    }.items():
        told = shell.refused("job.yaml", "--site", "local", "--set", text)
        assert re.match(rf"--set {re.escape(text)}: {code} ", told), told


def test_validate_for_programs(shell: Shell) -> None:
    shell.job.write_text(GOOD + "nodse: 2\ngpus_per_node: 9\n")
    strange = shell.folder / "a,b:c%\nd.yaml"
    strange.write_text("")
    words = ("validate", "job.yaml", "nowhere.yaml", strange.name, "--site", "here", "--format")

    done = shell.call(*words, "json")

    assert (done.returncode, done.stderr) == (3, "")
    found = json.loads(done.stdout)
    assert [(one["file"], one["line"], one["column"], one["code"]) for one in found] == [
        ("job.yaml", 3, 1, "HL010"),
        ("nowhere.yaml", None, None, "HL001"),
        (strange.name, 1, 1, "HL005"),
    ]
    assert all(set(one) == {"code", "severity", "message", "file", "line", "column", "hint"} for one in found)
    assert all(one["severity"] == "error" and one["hint"] for one in found)

    assert shell.call(*words[:-1], "--json").stdout == done.stdout

    done = shell.call(*words, "github")

    assert (done.returncode, done.stderr) == (3, "")
    first, second, third = done.stdout.splitlines()
    assert first.startswith("::error file=job.yaml,line=3,col=1,title=HL010::unknown key `nodse`")
    assert second.startswith("::error file=nowhere.yaml,title=HL001::cannot read the file")
    assert third.startswith("::error file=a%2Cb%3Ac%25%0Ad.yaml,line=1,col=1,title=HL005::the file is empty")
    assert shell.call("validate", "job.yaml", "--site", "here", "--format", "xml").returncode == 2


def test_validate_of_a_file_whose_name_is_no_text(shell: Shell) -> None:
    """Under most locales Python would rather fail than print such a name."""
    strange = shell.folder / os.fsdecode(b"a\xff.yaml")
    strange.write_text("")
    for form in ("text", "json", "github"):
        words = ("validate", strange.name, "--site", "here", "--format", form)
        done = shell.call(*words, before=["env", "PYTHONIOENCODING=utf-8:strict"])
        assert (done.returncode, done.stderr) == (3, "")
        assert r"a\udcff.yaml" in done.stdout


def test_a_mistyped_verb_or_command_names_the_nearest(shell: Shell) -> None:
    for words in ("sttus", "sites lst", "nodes cler", "containers bild", "config deepsped"):
        done = shell.call(*words.split())
        assert done.returncode == 2
        assert re.search(r"No such command '\w+'\. Did you mean '(status|list|clear|build|deepspeed)'\?", done.stderr)


def finished(shell: Shell) -> Path:
    """The folder of a run on this machine that has ended."""
    shell.job.write_text("name: x\ncommand: 'true'\nenvironment: {python: 'true'}\n")
    done = shell.call("submit", "job.yaml", "--site", "local", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["folder"])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, Path]:
    """A shell, and the folder of its run that has ended."""
    shell = make_shell(tmp_path_factory.mktemp("shell"))
    return shell, finished(shell)


STRANGE = {
    "run": "a\x1b[2Jb", "name": "n\x1b[31m\nx", "site": "s\x07", "scheduler": "local", "created": 1e300,
    "job_id": "1\x1b[31m\n", "nodes": "n\x1b[31m[1-999999999]", "exit_code": 10**400, "signal": "\x1b[1m",
    "phase": "\x1b[31m", "by": "\x1b[5m", "overrides": {"\x1b[31m": ["\x1b"]}, "started": "soon", "ended": -1e300,
    "restart": [], "time": {}, "job_name": 3, "pid": "x", "token": None, "state": "\x1b[7m", "submitted": "NaN",
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"null", id="null"),
        pytest.param(bytes(range(256)), id="junk"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"job_id": ' + b"9" * 5000 + b"}", id="a number without end"),
        pytest.param(b"void \x1b[31mred\x1b[0m\n", id="escapes"),
        pytest.param(json.dumps(STRANGE).encode(), id="strange values"),
        pytest.param(None, id="pipes"),
        pytest.param("/dev/zero", id="devices"),
    ],
)
def test_a_damaged_run_folder_hides_no_other_run(good: tuple[Shell, Path], content: bytes | str | None) -> None:
    shell, run = good
    bad = run.with_name("x-damaged")
    shutil.rmtree(bad, ignore_errors=True)  # of the content before
    shutil.copytree(run, bad)
    for path in [path for path in bad.rglob("*") if path.is_file()]:
        path.unlink()
        if content is None:
            os.mkfifo(path)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)

    listed = shell.call("list", "--json")
    answers = [listed, *(shell.call(verb, bad) for verb in ("status", "why", "logs", "cancel", "resubmit"))]

    states = {entry["run"]: entry["state"] for entry in json.loads(listed.stdout)}
    assert states[run.name] == "COMPLETED"
    for answer in answers:
        said = answer.stdout + answer.stderr
        assert answer.returncode in PLAIN_CODES, said
        assert set(said) & set("\x1b\x07") == set()


def test_a_torn_list_of_folders_hides_no_run(shell: Shell) -> None:
    run = finished(shell)
    folders = shell.folder / "state" / "hpc-launch" / "folders"
    for name, content in {"nul": b"/a\0b", "junk": b"\xff", "long": b"/" + b"x" * 5000, "device": None}.items():
        if content is None:
            (folders / name).symlink_to("/dev/zero")
        else:
            (folders / name).write_bytes(content)
    os.mkfifo(folders / "pipe")
    assert [entry["run"] for entry in json.loads(shell.call("list", "--json").stdout)] == [run.name]


def test_a_folder_of_runs_with_two_names_lists_each_run_once(shell: Shell) -> None:
    run = finished(shell)
    (shell.folder / "link").symlink_to("runs")
    there = {"HPC_LAUNCH_HOME": str(shell.folder / "link")}
    for env in ({}, there, {}):
        assert [entry["run"] for entry in json.loads(shell.call("list", "--json", env=env).stdout)] == [run.name]
        assert shell.call("status", run.name, env=env).returncode == 0
    assert shell.call("submit", "job.yaml", "--site", "local", env=there).returncode == 0
    assert len(json.loads(shell.call("list", "--json").stdout)) == 2


PLAIN_CODES = {0, 1, 2, 3, 4}
TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        "render job.yaml --site ~nobody-at-all/x.yaml",
        f"render job.yaml --site ./{TOO_LONG}.yaml",
        f"sites show {TOO_LONG}",
        f"containers check {TOO_LONG}",
        "containers check /",
        "containers check /proc/self/mem",
        "status \udcff",
        "why --log /proc/self/mem",
        "why --log /dev/zero",
    ],
)
def test_names_that_no_file_can_have_are_no_fault_of_ours(shell: Shell, words: str) -> None:
    done = shell.call(*words.split(" "))
    assert done.returncode in PLAIN_CODES, done.stderr
    assert "None" not in done.stderr


@pytest.mark.parametrize("verb", ["render job.yaml --site here", "config deepspeed --bf16 --no-library"])
def test_outputs_that_are_no_files(shell: Shell, verb: str) -> None:
    """A device is written to, as by `>`: a rename onto it would take it away from everybody."""
    script = shell.call(*verb.split()).stdout
    assert shell.call(*verb.split(), "-o", "/dev/stdout").stdout == script
    for name in ("", ".", "/"):
        done = shell.call(*verb.split(), "-o", name)
        assert done.returncode == 2, done.stderr
        assert "is a directory" in done.stderr.lower()
        assert "hint: " in done.stderr
    pipe, taken = shell.folder / "pipe", shell.folder / "taken"
    os.mkfifo(pipe)
    with taken.open("wb") as stream, subprocess.Popen(["cat", pipe], stdout=stream):
        assert shell.call(*verb.split(), "-o", pipe).returncode == 0
    assert taken.read_text() == script
    assert pipe.is_fifo()
    link, file = shell.folder / "link", shell.folder / "file"
    link.symlink_to(file)
    assert shell.call(*verb.split(), "-o", link).returncode == 0
    assert link.is_symlink()
    assert file.read_text() == script


@pytest.mark.slow
def test_an_output_that_is_full_or_closed(shell: Shell) -> None:
    every = (">/dev/full", "</dev/null >&-", "2>&-", "<&-")
    for words, outsides in (
        ("render job.yaml --site here", every),
        ("list --json", every),
        ("sites list", every[:2]),
        ("--help", every[:2]),
    ):
        for outside in outsides:
            shut = ["sh", "-c", f'"$@" {outside}', "sh"]
            done = shell.call(*words.split(), before=shut)
            assert done.returncode == (2 if "full" in outside else 0), (words, outside, done.stderr)
            assert "internal error" not in done.stderr
    assert shell.call("why", "--log", "-", before=["sh", "-c", '"$@" <&-', "sh"]).returncode == 1


@pytest.mark.slow
def test_a_log_through_a_slow_pipe_is_read_to_its_end(shell: Shell) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."
    slow = ["bash", "-c", f'"$@" <(sleep 0.5; echo begun; sleep 0.5; echo "{line}")', "bash"]
    assert shell.call("why", "--log", before=slow).stdout.startswith("cuda_oom, confidence high\n")
    os.mkfifo(shell.folder / "pipe")
    assert shell.call("why", "--log", "pipe").returncode == 1  # nobody writes to it: not waited for


@pytest.mark.slow
def test_a_log_with_a_line_without_an_end_takes_no_memory(shell: Shell) -> None:
    log = shell.folder / "log"
    with log.open("wb") as stream:
        stream.truncate(900 << 20)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.\n")
    done = shell.call("why", "--log", log, before=["bash", "-c", 'ulimit -v 600000; "$@"', "bash"])
    assert done.stdout.startswith("cuda_oom, confidence high\n"), done.stderr


def test_a_folder_whose_name_is_no_text(shell: Shell) -> None:
    folder = shell.folder / os.fsdecode(b"a\xff")
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(GOOD)
    for words in ("render job.yaml --site here", "submit job.yaml --site here", "validate job.yaml --site here"):
        done = shell.call(*words.split(), before=["sh", "-c", f'cd "{folder}" && "$@"', "sh"])
        told = done.stdout + done.stderr
        assert done.returncode == 3, told
        assert "UTF-8" in told
        assert "hint: " in told
    shell.assert_nothing_done()


def test_variables_that_make_no_sense(shell: Shell) -> None:
    slurm = "config slurm --nodes 1 --gpus-per-node 1 --time-limit 1:00:00 --script train.py"
    for words, env, code in (
        (slurm, {"HPC_LAUNCH_HOME": "\udcff"}, 3),
        ("render job.yaml --site here", {"HOME": "\udcff"}, 3),
        ("config hostfile", {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "9" * 5000}, 0),
    ):
        done = shell.call(*words.split(), env=env)
        assert done.returncode == code, done.stderr
        assert ("hint: " in done.stderr) == (code == 3)


def test_a_syntax_fault_always_has_a_hint(shell: Shell) -> None:
    for text in ("a: 1\n  }b: 2\n", "echo 'x'\n# y\na=1\nb: c\n", "a: 'x\n", "%x\n", "a: *b\n", "? [a]\n: b\n"):
        shell.job.write_text(text)
        assert "hint: " in shell.call("validate", "job.yaml", "--site", "here").stdout, text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "device", "large", "bomb"])
def test_rule_files_and_profiles_that_are_no_rules_and_profiles(shell: Shell, kind: str) -> None:
    (shell.folder / "sites" / "rules").mkdir()
    (shell.folder / "log").write_text("x\n")
    for path in (shell.folder / "sites" / "rules" / "r.yaml", shell.folder / "sites" / "odd.yaml"):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.write_text("- x\n" * 2_000_000 if kind == "large" else "- " + BOMB.replace("\n", "\n  "))
    limited = ["bash", "-c", 'ulimit -v 1500000; "$@"', "bash"]
    for words, code in (("why --log log", 1), ("sites detect", 3), ("sites list", 0), ("validate job.yaml", 3)):
        done = shell.call(*words.split(), before=limited)
        assert done.returncode in {code, 0}, done.stderr
        if words.startswith("why"):
            assert "HL690" in done.stderr


def test_a_profile_as_yaml_steers_no_terminal(shell: Shell) -> None:
    (shell.folder / "sites" / "odd.yaml").write_text(
        SITE.replace("here", "odd") + 'title: "a\\u202e\\e[31mb \\U000E0001 é"\n'
    )
    done = shell.call("sites", "show", "odd", "--yaml")
    assert done.returncode == 0, done.stderr
    assert r'"a\u202e\u001b[31mb \U000e0001 é"' in done.stdout
    assert yaml.safe_load(done.stdout)["title"] == "a\u202e\x1b[31mb \U000e0001 é"
