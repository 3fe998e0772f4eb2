"""`hpc-launch sites`: profiles shown, compared, checked, and those of a team kept at their revision."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Finding
from hpc_launch.diagnose.node_health import NodeReport
from hpc_launch.runs.collect_evidence import rulebook
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.site_tools import check_profile
from hpc_launch.site_tools.check_profile import check_all
from hpc_launch.site_tools.team_sources import add
from hpc_launch.sites.trust import digest
from tests.forked import hpc_launch_text, inherited

PROFILE = """name: mine
extends: [infiniband, nvidia]
status: documented
contact: us
url: https://example.org
source: its pages
as_of: 2026-11-01
grade: A
scheduler: slurm
node_classes: {gpu: {cpus: 64, memory: 256G, gpus: 4, gpu_vendor: nvidia}}
queues: {gpu: {node_class: gpu, partition: gpu, default_time: 1h}}
"""
RULE = """- id: our-robot
  cause: fs_stale_or_io
  order: 20
  match: 'tape robot (?P<node>\\S+) is busy'
  advice: wait for the robot
  source: our wiki
  examples: ['ERROR: tape robot t3 is busy']
"""
JOB = "name: tiny\nscript: train.py\nsite: mine\n"
WRITTEN_BY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


class Desk:
    """A user's folder with a job file, and a team's repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = folder / "sites.git"
        self.teams = folder / "config" / "hpc-launch" / "teams"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            **inherited(),
            **WRITTEN_BY,
        }
        (folder / "work").mkdir()
        (folder / "work" / "train.py").touch()
        (folder / "work" / "job.yaml").write_text(JOB)
        self.repository.mkdir()
        self.git("init", "--quiet", ".")
        self.commit("v1", mine=PROFILE)

    def git(self, *words: str) -> str:
        ran = subprocess.run(
            ["git", *words], cwd=self.repository, env=self.environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def commit(self, tag: str, **texts: str) -> str:
        for name, text in texts.items():
            (self.repository / f"{name}.yaml").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", tag)
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def call(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        ran = hpc_launch_text(words, cwd=self.folder / "work", env={**self.environment, **more})
        assert ran.returncode == code, ran.stderr + ran.stdout
        return ran

    def sites(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        return self.call("sites", *words, code=code, **more)

    def add(self, *words: str, code: int = 0) -> str:
        return self.sites("add", str(self.repository), *words, code=code).stderr


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- list and show ---


def test_the_list(desk: Desk) -> None:
    own = desk.folder / "config" / "hpc-launch" / "sites"
    own.mkdir(parents=True)
    (own / "broken.yaml").write_text("name: [\n")
    (own / "lumi-g.yaml").write_text(PROFILE)
    lines = [line.split() for line in desk.sites("list").stdout.splitlines()]
    assert lines[0] == ["NAME", "KIND", "STATUS", "BASIS", "GRADE", "AS", "OF", "LAYER", "TITLE"]
    kinds = {line[0]: line[1] for line in lines[1:]}
    assert (kinds["lumi-g"], kinds["aws-p5"], "slingshot" in kinds) == ("system", "template", False)
    assert ["slingshot", "base"] in [line.split()[:2] for line in desk.sites("list", "--all").stdout.splitlines()]
    found = {(one["name"], one["kind"]): one for one in json.loads(desk.sites("list", "--json").stdout)}
    keys = ["name", "kind", "title", "grade", "as_of", "status", "layer", "basis"]
    assert all(list(one) == keys for one in found.values())
    assert found["broken", "system"]["status"] == "broken"
    assert (found["lumi-g", "system"]["layer"], found["nvidia", "base"]["layer"]) == ("user", "shipped")
    assert found["perlmutter", "system"]["status"] == "documented"
    rests_on = {name: one["basis"] for (name, _), one in found.items()}
    assert (rests_on["perlmutter"], rests_on["frontier"], rests_on["broken"]) == ("others", "centre", None)


def test_a_large_folder_of_a_team_is_listed_without_reading_all_of_it(desk: Desk) -> None:
    team = desk.folder / "team"
    team.mkdir()
    for number in range(300):
        (team / f"site-{number:03d}.yaml").write_text("title: read\n")
    (team / "large.yaml").write_text("title: read\n" + "#" * (1 << 20))
    listed = json.loads(desk.sites("list", "--json", HPC_LAUNCH_SITE_PATH=str(team)).stdout)
    found = {one["name"]: one for one in listed if one["layer"] == "HPC_LAUNCH_SITE_PATH"}
    assert len(found) == 256, "each counts as a block of 4 KiB"
    assert "large" not in found
    assert {one["status"] for one in listed if one["layer"] == "shipped"}.isdisjoint({"broken"})


def test_a_profile_is_shown_with_the_place_of_each_value(desk: Desk) -> None:
    lines = desk.sites("show", "isambard-ai", "fabric").stdout.splitlines()
    kind = next(line for line in lines if line.startswith("fabric.kind = slingshot   [base slingshot] "))
    assert "slingshot.yaml:" in kind
    assert "did you mean `fabric.kind`?" in desk.sites("show", "isambard-ai", "fabric.knd", code=2).stderr
    assert "hint: without KEY, all keys are listed" in desk.sites("show", "isambard-ai", "zzz", code=2).stderr
    first = json.loads(desk.sites("show", "nvidia", "--json").stdout)[0]
    assert list(first) == ["kind", "key", "value", "layer", "file", "line", "note"]
    assert "${param.partition}" in desk.sites("show", "aws-p5", "queues").stdout


def test_what_a_profile_holds_does_not_reach_the_terminal_raw(desk: Desk) -> None:
    evil = PROFILE + 'title: "\\e[31m"\nenv: [{set: {A: "\\e[2J"}, why: "\\e]0;x\\a"}]\npaths: {"\\e[0m": /x}\n'
    for name in ("a", "b"):
        (desk.folder / "work" / f"{name}.yaml").write_text(evil.replace("[31m", f"[3{len(name)}m{name}"))
    for words in (("show", "./a.yaml"), ("diff", "./a.yaml", "./b.yaml"), ("check", "./a.yaml")):
        ran = desk.sites(*words, code=3 if words[0] == "check" else 0)
        assert ran.stdout
        assert "\x1b" not in ran.stdout + ran.stderr


def test_what_cannot_be_rendered_is_said(desk: Desk) -> None:
    assert "no script can be rendered: " in desk.sites("diff", "aws-p5", "oci-h100").stdout
    (desk.folder / "work" / "x.yaml").write_text("name: [\n")
    assert "HL002" in desk.sites("diff", "mahti", "./x.yaml", code=3).stderr


def test_a_profile_as_one_file_means_the_same(desk: Desk) -> None:
    copy = desk.folder / "work" / "copy.yaml"
    copy.write_text(desk.sites("show", "mahti", "--yaml").stdout)
    assert "extends" not in copy.read_text()
    assert desk.sites("diff", "mahti", "./copy.yaml").stdout.count("script of") == 1  # only lines' numbers
    changes = json.loads(desk.sites("diff", "mahti", "./copy.yaml", "--json").stdout)[0]["changes"]
    assert changes == []


# --- the search path ---


def test_the_nearest_profile_wins(desk: Desk) -> None:
    def origin(path: str = "") -> str:
        shown = desk.call("render", "job.yaml", HPC_LAUNCH_SITE_PATH=path).stdout
        return next(line for line in shown.splitlines() if line.startswith("#SBATCH --partition=")).split()[1]

    def put(folder: Path, partition: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.yaml").write_text(PROFILE.replace("partition: gpu", f"partition: {partition}"))
        return folder

    desk.sites("add", str(put(desk.folder / "storage", "shared")), "--name", "a")
    assert origin() == "--partition=shared"
    desk.add("--revision", "v1", "--name", "z")
    assert origin() == "--partition=gpu"
    put(desk.folder / "path", "path")
    path = str(desk.folder / "path")
    assert origin(path) == "--partition=path"
    put(desk.folder / "work" / ".hpc-launch" / "sites", "project")
    assert origin(path) == "--partition=project"
    put(desk.folder / "config" / "hpc-launch" / "sites", "own")
    assert origin(path) == "--partition=own"
    (desk.folder / "config" / "hpc-launch" / "user.yaml").write_text(
        "profiles: {mine: {queues: {gpu: {partition: overlay}}}}\n"
    )
    assert origin(path) == "--partition=overlay"


def test_the_users_own_keys_count_for_verbs_without_a_job(desk: Desk) -> None:
    """The ledger of a team, an image and a queue that only `profiles:` of user.yaml names."""
    own = desk.folder / "config" / "hpc-launch"
    (own / "sites").mkdir(parents=True)
    (own / "sites" / "mine.yaml").write_text(PROFILE)
    team = desk.folder / "team"
    note = NodeReport(time=time.time(), node="n7", run="tiny", attempt=1, failure_class="gpu_hardware")
    NodeHealthStore("mine", str(team)).write([note])
    assert desk.call("nodes", "list", "--site", "mine", "--json").stdout == "[]\n"
    keys = {"paths": {"ledger": str(team)}, "containers": {"images": {"tools": "/images/tools.sif"}}}
    (own / "user.yaml").write_text(json.dumps({"profiles": {"mine": keys}}))
    assert json.loads(desk.call("nodes", "list", "--site", "mine", "--json").stdout)[0]["node"] == "n7"
    said = desk.call("containers", "pull", "tools", "--site", "mine", code=2).stderr
    assert "image `tools` of the profile has no `uri`" in said
    (own / "user.yaml").write_text("profiles: {mine: {queues: {gpu: {partition: [1]}}}}\n")
    for words in (("nodes", "list", "--site"), ("sites", "check", "--live")):
        assert "user.yaml:1:" in desk.call(*words, "mine", code=3).stderr


def test_nodes_finds_the_site_as_submit_does(desk: Desk) -> None:
    assert "HL300" in desk.call("nodes", "list", code=3).stderr or not shutil.which("scontrol")
    sites = desk.folder / "work" / ".hpc-launch" / "sites"
    sites.mkdir(parents=True)
    team = desk.folder / "team"
    team.mkdir()
    text = (
        f"{PROFILE.replace('name: mine', 'name: ours')}detect: [{{path: {desk.folder}}}]\npaths: {{ledger: {team}}}\n"
    )
    (sites / "ours.yaml").write_text(text)
    (desk.folder / "config" / "hpc-launch").mkdir(parents=True, exist_ok=True)
    (desk.folder / "config" / "hpc-launch" / "trusted-profiles").write_text(f"{digest(text)} ours\n")
    note = NodeReport(time=time.time(), node="n7", run="tiny", attempt=1, failure_class="gpu_hardware")
    NodeHealthStore("ours", str(team)).write([note])
    said = desk.call("nodes", "list")
    assert said.stdout.splitlines()[1].split()[0] == "n7"
    assert "site ours:" in said.stderr
    assert desk.call("nodes", "clear", "n7").stdout == "cleared: n7\n"
    assert desk.call("nodes", "report").stdout == ""


def test_a_project_keeps_profiles_at_the_top_of_its_repository(desk: Desk) -> None:
    (desk.folder / ".git").mkdir()
    sites = desk.folder / ".hpc-launch" / "sites"
    sites.mkdir(parents=True)
    (sites / "mine.yaml").write_text(PROFILE)
    assert "--partition=gpu" in desk.call("render", "job.yaml").stdout
    if os.getuid() == 0:  # somebody else's folder does not count
        os.chown(sites, 65534, 65534)
        assert "HL301" in desk.call("render", "job.yaml", code=3).stderr
        os.chown(sites, 0, 0)
    (desk.folder / ".git").rmdir()
    assert "HL301" in desk.call("render", "job.yaml", code=3).stderr


# --- a team's repository ---


@pytest.mark.slow
def test_a_repository_is_taken_at_a_revision_and_stays_there(desk: Desk) -> None:
    commit = desk.git("rev-parse", "HEAD")
    assert f"at {commit}; profiles: mine" in desk.add("--revision", "v1")
    before = desk.call("render", "job.yaml").stdout
    desk.commit("v2", mine=PROFILE.replace("default_time: 1h", "default_time: 1h, qos: fast"), other=PROFILE)
    assert desk.call("render", "job.yaml").stdout == before
    shown = desk.sites("diff", "sites", "--revision", "v2").stdout
    assert "queues.gpu.qos\n    + fast" in shown
    assert "+#SBATCH --qos=fast" in shown
    assert "default_time" not in shown
    assert "other: added" in shown
    desk.sites("update", "sites", "--revision", "v2")
    assert "--qos=fast" in desk.call("render", "job.yaml").stdout
    both = json.loads(desk.sites("diff", "sites", "--revision", "v1", "--revision", "v2", "--json").stdout)
    assert [(one["profile"], [change["key"] for change in one["changes"]]) for one in both] == [
        ("mine", ["queues.gpu.qos"]),
        ("other", []),
    ]
    desk.sites("update", "sites", "--revision", "HEAD")
    desk.commit("v3", mine=PROFILE.replace("default_time: 1h", "default_time: 1h, qos: slow"))
    assert "+#SBATCH --qos=slow" in desk.sites("diff", "sites").stdout
    desk.sites("update", "sites")
    assert "--qos=slow" in desk.call("render", "job.yaml").stdout
    desk.sites("update", "sites", "--revision", "v2")
    shutil.rmtree(desk.repository)
    assert "--qos=fast" in desk.call("render", "job.yaml").stdout
    gone = desk.sites("update", "sites", "--revision", "v3", code=2).stderr
    assert "cannot clone" in gone
    assert "--qos=fast" in desk.call("render", "job.yaml").stdout
    desk.sites("remove", "sites")
    assert "HL301" in desk.call("render", "job.yaml", code=3).stderr
    desk.sites("remove", "sites", code=2)


def test_a_commit_is_trusted_until_its_profiles_change_or_are_removed(desk: Desk) -> None:
    commit = desk.commit("v2", mine=f"{PROFILE}prelude: [{{raw: 'echo hi'}}]\n")
    said = desk.add("--revision", "v2")
    assert "mine.yaml:12:1: HL313 the profile is not trusted, and sets more than facts: `prelude`" in said
    assert f"hpc-launch sites update sites --trust {commit}" in said
    assert "HL313" in desk.call("render", "job.yaml", code=3).stderr
    other = desk.git("rev-parse", "v1")
    assert "is not the requested revision" in desk.add("--revision", "v2", "--trust", other, code=2)
    for tag in ("v2", commit[:12], "HEAD"):
        assert "requires a full commit" in desk.add("--revision", "v2", "--trust", tag, code=2)
    assert "HL313" not in desk.sites("update", "sites", "--trust", commit).stderr
    assert "echo hi\n" in desk.call("render", "job.yaml").stdout
    desk.commit("v3", mine=f"{PROFILE}prelude: [{{raw: 'echo other'}}]\n")
    assert "HL313" in desk.sites("update", "sites", "--revision", "v3").stderr
    assert "HL313" in desk.call("render", "job.yaml", code=3).stderr
    desk.sites("update", "sites", "--revision", "v2", "--trust", commit)
    desk.sites("remove", "sites")
    assert "HL313" in desk.add("--revision", "v2"), "removal withdraws the trust"


def test_trust_in_a_commit_is_no_trust_in_later_ones(desk: Desk) -> None:
    """Of two files that were trusted together, a later commit may keep one that is wrong without the other."""
    commit = desk.commit("v2", mine=f"{PROFILE}prelude: [{{raw: 'echo hi'}}]\n", other=PROFILE)
    desk.add("--revision", "v2", "--trust", commit)
    desk.commit("v3", other=PROFILE.replace("1h", "2h"))
    desk.sites("update", "sites", "--revision", commit)
    assert "echo hi\n" in desk.call("render", "job.yaml").stdout
    assert "HL313" in desk.sites("update", "sites", "--revision", "v3").stderr
    assert "HL313" in desk.call("render", "job.yaml", code=3).stderr


def test_removal_ends_the_trust_in_files_of_a_team(desk: Desk) -> None:
    commit = desk.commit("v2", mine=f"{PROFILE}prelude: [{{raw: 'echo hi'}}]\n")
    desk.add("--revision", "v2")
    copy = desk.teams / "sites" / commit / "mine.yaml"
    desk.sites("add", str(copy), "--trust", digest(copy.read_text()))
    assert "echo hi\n" in desk.call("render", "job.yaml").stdout
    desk.sites("remove", "sites")
    assert "HL313" in desk.add("--revision", "v2")


def test_failure_rules_of_a_team_are_shown_and_which_shipped_profiles_it_replaces(desk: Desk) -> None:
    folder = desk.folder / "shared"
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / "ours.yaml").write_text(RULE)
    for path in (folder, folder / "rules", folder / "rules" / "ours.yaml"):
        path.chmod(path.stat().st_mode | 0o002)
    (folder / "mine.yaml").write_text(PROFILE)
    (folder / "lumi-g.yaml").write_text(PROFILE)
    said = desk.sites("add", str(folder), "--name", "team").stderr
    assert "; in place of shipped ones: lumi-g; failure rules: ours.yaml\n" in said
    found = json.loads(desk.sites("add", str(folder), "--name", "team", "--json").stdout)
    assert found["rules"] == ["ours.yaml"]


def test_a_file_of_others_is_trusted_by_its_digest(desk: Desk) -> None:
    sites = desk.folder / "work" / ".hpc-launch" / "sites"
    sites.mkdir(parents=True)
    profile = sites / "mine.yaml"
    profile.write_text(f"{PROFILE}prelude: [{{raw: 'echo hi'}}]\n")
    hint = next(one for one in desk.call("render", "job.yaml", code=3).stderr.splitlines() if "hint: review it" in one)
    words = hint.rpartition("`hpc-launch sites ")[2].rstrip("`").split()
    assert "then specify this digest" in desk.sites(*words[:2], code=2).stderr
    assert "profiles: mine" in desk.sites(*words).stderr
    assert "echo hi\n" in desk.call("render", "job.yaml").stdout
    desk.sites("remove", str(profile))
    assert "HL313" in desk.call("render", "job.yaml", code=3).stderr
    desk.sites("remove", str(profile), code=2)
    desk.sites(*words)
    profile.write_text(f"{PROFILE}prelude: [{{raw: 'echo other'}}]\n")
    assert "HL313" in desk.call("render", "job.yaml", code=3).stderr
    assert "has the digest" in desk.sites(*words, code=2).stderr


def test_profiles_may_lie_in_the_folder_sites_with_their_bases_and_rules(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.repository / "mine.yaml").unlink()
    (desk.repository / "sites" / "bases").mkdir(parents=True)
    (desk.repository / "sites" / "bases" / "centre.yaml").write_text("kind: base\nname: centre\nlogin_shell: true\n")
    (desk.repository / "sites" / "rules").mkdir()
    (desk.repository / "sites" / "rules" / "ours.yaml").write_text(RULE)
    commit = desk.commit("v2", **{"sites/mine": PROFILE.replace("[infiniband, nvidia]", "[centre, nvidia]")})
    desk.add("--revision", "v2", "--name", "team", "--trust", commit)
    assert desk.call("render", "job.yaml").stdout.startswith("#!/bin/bash -l\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", desk.environment["XDG_CONFIG_HOME"])
    faults: list[Finding] = []
    assert "our-robot" in rulebook(faults).rules
    assert not faults


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ext::sh -c touch% /tmp/x", "--revision", "v1"), "cannot clone ext::"),
        (("http://example.org/x.git", "--revision", "v1"), "cannot clone http:"),
        (("git://example.org/x.git", "--revision", "v1"), "cannot clone git:"),
        (("ssh://-oProxyCommand=touch x/y", "--revision", "v1"), "cannot clone ssh:"),
        (("-u./x", "--revision", "v1"), "cannot clone -u./x"),
        (("/no/such/folder", "--revision", "v1"), "cannot clone /no/such/folder"),
        (("https://me:pass@example.org/x.git", "--revision", "v1"), "must not contain credentials"),
        (("REPOSITORY", "--revision", "--upload-pack=x"), "has no revision --upload-pack=x"),
        (("REPOSITORY", "--revision", "v1..v2"), "has no revision v1..v2"),
        (("REPOSITORY", "--revision", "nowhere"), "has no revision nowhere"),
        (("REPOSITORY", "--revision", "v1", "--name", "../x"), "is not a valid team name"),
        (("REPOSITORY", "--trust", "v1"), "cannot be trusted"),
    ],
)
def test_what_cannot_be_added(words: tuple[str, ...], said: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", desk.environment["XDG_CONFIG_HOME"])
    monkeypatch.chdir(desk.folder / "work")
    options = dict(zip(words[1::2], words[2::2], strict=True))
    source = str(desk.repository) if words[0] == "REPOSITORY" else words[0]
    with pytest.raises(UsageError) as caught:
        add(source, *(options.get(name) for name in ("--revision", "--trust", "--name")))
    assert said in str(caught.value)
    assert caught.value.hint
    assert "pass" not in f"{caught.value} {caught.value.hint}"
    assert not (desk.folder / "work" / "x").exists()
    assert not desk.teams.exists()


def test_only_plain_yaml_files_are_taken(desk: Desk) -> None:
    secret = desk.folder / "secret.yaml"
    secret.write_text("name: secret\n")
    (desk.repository / "link.yaml").symlink_to(secret)
    (desk.repository / "hook.sh").write_text("touch /tmp/x")
    (desk.repository / ".hidden.yaml").write_text(PROFILE)
    commit = desk.commit("v2")
    desk.add("--revision", "v2")
    copy = desk.teams / "sites" / commit
    assert sorted(path.name for path in copy.iterdir()) == ["link.yaml", "mine.yaml"]
    assert (copy / "link.yaml").read_text() == str(secret), "a link is a file with the name of its target"


def test_one_name_is_one_repository(desk: Desk) -> None:
    desk.add("--revision", "v1")
    other = desk.folder / "other" / "sites.git"
    shutil.copytree(desk.repository, other)
    assert "use another --name" in desk.sites("add", str(other), "--revision", "v1", code=2).stderr
    (desk.folder / "storage").mkdir()
    desk.sites("add", str(desk.folder / "storage"), "--name", "folder")
    assert "no revisions" in desk.sites("diff", "folder", "--revision", "v1", code=2).stderr


# --- check ---

Check = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def check(desk: Desk) -> Check:
    """(code, place) of what `sites check` finds in a profile."""

    def run(text: str = PROFILE, *words: str, code: int = 3) -> list[tuple[str, str]]:
        folder = desk.folder / "work" / "sites"
        folder.mkdir(exist_ok=True)
        (folder / "mine.yaml").write_text(text)
        found = json.loads(desk.sites("check", "sites", "--json", *words, code=code).stdout)
        assert all(one["hint"] for one in found)
        return [(one["code"], f"{one['file'].removeprefix('sites/')}:{one['line']}") for one in found]

    return run


def test_a_good_profile_has_no_fault(desk: Desk, check: Check) -> None:
    assert check(code=0) == []
    assert desk.sites("check", "sites").stderr == "1 profile checked, no errors\n"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("grade: A\n", ""), ("HL312", "mine.yaml:8")),
        (("contact: us\n", ""), ("HL312", "mine.yaml:1")),
        (("source: its pages", "facts: {env: {source: s}}\nenv+: []"), ("HL312", "mine.yaml:10")),
        (("name: mine", "name: other"), ("HL321", "mine.yaml:1")),
        (("queues:", "defaults: {account: proj1}\nqueues:"), ("HL321", "mine.yaml:11")),
        (("queues:", "sbatch: {add: {account: proj1}}\nqueues:"), ("HL321", "mine.yaml:11")),
        (("queues:", "env: [{set: {HF_TOKEN: abc}}]\nqueues:"), ("HL317", "mine.yaml:11")),
        (("gpus: 4", "gpus: four"), ("HL011", "mine.yaml:10")),
        (("[infiniband, nvidia]", "infinband"), ("HL308", "mine.yaml:2")),
        (("contact: us", "contact: ["), ("HL002", "mine.yaml:6")),
    ],
)
def test_what_is_not_fit_to_be_shared(
    change: tuple[str, str], found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILE.replace(*change))
    faults = check_profile.check(path, update_golden=False)
    assert all(one.hint for one in faults)
    assert found in [(one.code, f"{path.name}:{one.place.line}") for one in faults if one.place]
    assert check_all([str(path)], update_golden=False) == (1, faults)


def test_what_only_deserves_a_word(check: Check) -> None:
    more = "paths: {data: /home/me/data}\nprelude: [{raw: echo}]\n"
    assert check(PROFILE.replace("2026-11-01", "2020-01-01") + more, code=0)[-2:] == [
        ("HL321", "mine.yaml:12"),
        ("HL313", "mine.yaml:13"),
    ]


@pytest.mark.slow
def test_golden_scripts_are_made_held_and_made_anew(desk: Desk, check: Check) -> None:
    needy = PROFILE + "account: {required: true, pattern: 'p\\d+'}\n"
    assert check(needy, "--update-golden") == [("HL303", "golden/torchrun.yaml:2")]
    golden = desk.folder / "work" / "sites" / "golden"
    (golden / "user.yaml").write_text("sites: {mine: {account: p1}}\n")
    assert check(needy, "--update-golden", code=0) == []
    script = golden / "mine" / "torchrun.sh"
    assert "#SBATCH --account=p1 " in script.read_text()
    assert str(desk.folder) not in script.read_text()
    assert check(needy, code=0) == []
    assert check(needy.replace("gpus: 4", "gpus: 8")) == [("HL322", "golden/mine/torchrun.sh:3")]
    shown = desk.sites("check", "--format", "github", "sites", code=3).stdout
    assert shown.startswith("::error file=sites/golden/mine/torchrun.sh,line=3,col=1,title=HL322::")
    script.unlink()
    assert check(needy) == [("HL322", "golden/mine/torchrun.sh:None")]


def test_a_template_is_checked_with_its_examples(check: Check) -> None:
    template = PROFILE.replace("grade: A\n", "grade: A\nkind: template\nparameters: {cpus: {example: '64'}}\n")
    assert check(template.replace("cpus: 64", "cpus: '${param.cpus}'"), code=0) == []
    assert ("HL311", "mine.yaml:10") in check(template.replace("{example: '64'}", "{about: it}"))
