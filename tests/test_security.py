"""Attacks that once succeeded, and their variations. docs/evidence/threats.md lists each threat with its test."""

from __future__ import annotations

import ast
import grp
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpc_launch.agent.checkpoints import CheckpointFound, CheckpointRule, newest_first, why_incomplete
from hpc_launch.agent.job_processes import pid_space, start_of
from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import make_own_folder, open_regular, refuse_replaceable, user, write_output
from hpc_launch.base.findings import Finding
from hpc_launch.base.installed import module_command
from hpc_launch.base.json_records import file_lines
from hpc_launch.base.patterns import compiled
from hpc_launch.base.run_program import not_ignored
from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.evidence import EndFacts, Evidence
from hpc_launch.diagnose.node_health import BadNode, NodeReport
from hpc_launch.diagnose.scan_log import scan as scan_log
from hpc_launch.job.type_hints import fields_of
from hpc_launch.job.yaml_source import read_document
from hpc_launch.plan.environment import is_script_variable
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.prepare import attempts
from hpc_launch.prepare.attempts import attempt_of, first_attempt
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.retry.context import left_alone
from hpc_launch.runs.collect_evidence import rulebook
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.runs.records.plan_record import PlanRecord
from hpc_launch.runs.records.run_info import changeable_by_others, refuse_foreign
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.code_snapshot import take_snapshot
from hpc_launch.runs.submitting.run_store import create_run, new_folder
from hpc_launch.schedulers.local import supervisor
from hpc_launch.schedulers.local.local_jobs import LocalState
from hpc_launch.script.parts import part
from hpc_launch.service.check import write_dry_run
from hpc_launch.site_tools.check_profile import check
from hpc_launch.sites import detect_profile
from hpc_launch.sites.detect_profile import Machine, candidates
from hpc_launch.sites.profile import DetectionRule, SchedulerProperties, SiteProfile
from hpc_launch.sites.queues import NodeClass, Queue
from hpc_launch.sites.this_machine import listed_nodes
from hpc_launch.sites.trust import FACTS, digest, is_trusted, trust, withdraw
from tests.acl import GROUP, GROUP_OBJ, MASK, OTHERS, USER, USER_OBJ, set_acl, set_default_acl
from tests.runs.fake import FakeScheduler
from tests.runs.samples import prepared as prepared_attempt

REPOSITORY = Path(__file__).parents[1]

SITE = """
scheduler: slurm
node_classes: {gpu: {cpus: 64, memory: 256G, gpus: 4}}
queues: {gpu: {node_class: gpu, partition: gpu, default_time: 1h}}
"""

Plan = Callable[..., PreparedJob]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the search path in which teammates can change every file."""
    folder = tmp_path / "team"
    folder.mkdir()
    for name in ("HPC_LAUNCH_SITE", "HPC_LAUNCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return folder


@pytest.fixture
def plan(team: Path, tmp_path: Path) -> Plan:
    """Plans a small job on a site with these keys, of which the team is the author."""

    def make(keys: str = "", *, site: str = SITE, job: str = "", folder: Path = team) -> PreparedJob:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "here.yaml").write_text(f"name: here\n{keys}\n{site}")
        (folder / "here.yaml").chmod(0o666 if folder == team else 0o644)
        (tmp_path / "job.yaml").write_text(f"name: tiny\nscript: train.py\n{job}")
        return prepare_job(tmp_path / "job.yaml", site="here")

    return make


@pytest.fixture
def own(plan: Plan, tmp_path: Path) -> Plan:
    """Plans the same on a site of the user's own."""
    return partial(plan, folder=tmp_path / "config" / "hpc-launch" / "sites")


def refused(plan: Plan, *arguments: str, **more: str) -> list[Finding]:
    with pytest.raises(Refused) as caught:
        plan(*arguments, **more)
    return list(caught.value.findings)


def codes(plan: Plan, keys: str, site: str = SITE) -> set[str]:
    try:
        plan(keys, site=site)
    except Refused as error:
        return {str(one.code) for one in error.findings}
    return set()


# --- Profiles ---


@pytest.mark.parametrize(
    "keys",
    [
        r'prelude: [{"\x72aw": touch /tmp/P}]',
        r'prelude: [{"r\u0061w": touch /tmp/P}]',
        '"prel\\x75de": [{raw: touch /tmp/P}]',
        "prelude+: [{raw: touch /tmp/P}]",
        "+prelude: [{raw: touch /tmp/P}]",
        "prelude: [{? raw : touch /tmp/P}]",
        "title: &a raw\nprelude: [{*a : touch /tmp/P}]",
        "options: {x: {prelude: [{raw: touch /tmp/P}]}}",
        "options: {x: {prelude+: [{raw: touch /tmp/P}]}}",
    ],
)
def test_a_raw_line_is_found_in_every_spelling_of_yaml(keys: str, plan: Plan) -> None:
    assert "HL313" in {one.code for one in refused(plan, keys)}


CODE = {
    "a file to source": "prelude: [{source: /project/team/init.sh}]",
    "LD_PRELOAD": "env: [{set: {LD_PRELOAD: /project/team/x.so}}]",
    "a variable of a rule": "rules: [{needs: {env: {LD_PRELOAD: x.so}}, add: true}]",
    "a step of an option": "options: {x: {prelude: [{raw: id}]}}",
    "a program": "defaults: {command: [/project/team/x]}",
    "a receiver of messages": "defaults: {notify: {command: [/project/team/x]}}",
    "another host for the rendezvous": "network: {master: {suffix: '0'}}",
    "a program for srun": "launch: {srun_options: [/project/team/x]}",
    "a step of other tasks by the options of all steps": "srun: {add: {ntasks: 1}}",
    "an image": "containers: {images: {pytorch: /project/team/x.sif}}",
    "a proxy": "internet: {compute: proxy, proxy: 'http://example.org:3128'}",
    "a password in an address": "paths: {x: '/tmp/${env.MONGODB_URI}'}",
    "hosts that get the job": "scheduler: {type: ssh, hosts: {n1: 8}}",
}


def keys_of(finding: Finding) -> list[str]:
    return re.findall(r"`([^`]*)`", finding.message)


@pytest.mark.parametrize("keys", CODE.values(), ids=CODE)
def test_a_team_s_profile_cannot_choose_what_runs(keys: str, plan: Plan, team: Path) -> None:
    site = SITE.replace("scheduler: slurm\n", "") if keys.startswith("scheduler") else SITE
    (finding,) = [one for one in refused(plan, keys, site=site) if one.code == "HL313"]
    assert [key.partition(".")[0] for key in keys_of(finding)] == [keys.partition(":")[0]]
    text = (team / "here.yaml").read_text()
    assert finding.hint == f"review it, then run `hpc-launch sites add {team}/here.yaml --trust {digest(text)}`"
    trust([digest(text)], "here")
    with suppress(Refused):
        plan(keys, site=site)
    assert "HL313" not in codes(plan, keys, site)
    assert "HL313" in codes(plan, f"# changed\n{keys}", site)
    trust([digest(text)], "here")
    assert withdraw("here")
    assert "HL313" in codes(plan, keys, site)


@pytest.mark.parametrize(("place", "table"), [("partition: gpu", "queues"), ("gpus: 4", "node_classes")])
@pytest.mark.parametrize(
    "keys", ["defaults: {secrets: [HF_TOKEN]}", "env: [{set: {LD_PRELOAD: x.so}}]", "sbatch: {wrap: id}", "stack: x"]
)
def test_nor_can_its_queues_and_node_classes(place: str, table: str, keys: str, plan: Plan) -> None:
    (finding,) = [one for one in refused(plan, site=SITE.replace(place, f"{place}, {keys}")) if one.code == "HL313"]
    assert keys_of(finding) == [f"{table}.gpu.{keys.partition(':')[0]}"]


@pytest.mark.parametrize("name", ["unknown", "facts", "note", "when", "source", "about"])
def test_a_name_like_that_of_a_descriptive_key_hides_nothing(name: str, plan: Plan) -> None:
    for table, entry in (("node_classes", "cpus: 1, env: [{set: {LD_PRELOAD: x}}]"), ("queues", "env: []")):
        site = SITE.replace(f"{table}: {{", f"{table}: {{{name}: {{{entry}}}, ")
        assert "HL313" in {one.code for one in refused(plan, site=site)}


def test_what_a_team_s_profile_may_say(plan: Plan) -> None:
    """Every other key of the schema requires trust."""
    keys = """
title: Here
detect: [{env: {CLUSTER_NAME: here}}]
account: {required: false, pattern: 'p\\d+'}
internet: {compute: none}
versions: {libfabric: '1.22'}
extends: infiniband
"""
    assert plan(keys).plan.site == "here"
    known = {name: set(FACTS[name] or ()) for name in ("node_classes", "queues", "scheduler", "account", "internet")}
    types = {"node_classes": NodeClass, "queues": Queue, "scheduler": SchedulerProperties}
    assert all(known[name] <= set(fields_of(type_)) for name, type_ in types.items())
    assert set(FACTS) <= set(fields_of(SiteProfile))


@pytest.mark.parametrize(
    "keys",
    [
        *("prelude=: []", "prelude-: [{raw: umask 077}]", "prelude: null", "env=: []", "containers=: {}"),
        *("caches-: [triton]", "defaults-: [container]", "queues=: {}", "queues: {gpu: null}", "detect: null"),
        "node_classes=: {gpu: {cpus: 1}}",
    ],
)
def test_a_team_s_profile_removes_nothing(keys: str, plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "hpc-launch" / "sites" / "bases"
    folder.mkdir(parents=True)
    trusted = "prelude: [{raw: umask 077}]\nenv: [{set: {PYTHONSAFEPATH: 1}}]\ncaches: {triton: /scratch/triton}\n"
    (folder / "mine.yaml").write_text(f"name: mine\nkind: base\n{trusted}{SITE}")
    assert "umask 077" in plan("extends: mine", site="").script
    found = [one for one in refused(plan, f"extends: mine\n{keys}", site="") if one.code == "HL313"]
    assert found
    assert all("here.yaml" in str(one.place) for one in found)


@pytest.mark.parametrize(
    ("by", "place"),
    [
        *product(("mode", "acl", "owner"), ("file", "folder", "folder above")),
        ("link", "folder"),
        ("link", "folder above"),
    ],
)
def test_a_profile_among_the_users_own_counts_only_if_nobody_else_can_change_it(
    by: str, place: str, own: Plan, tmp_path: Path
) -> None:
    """With `setfacl -m u:bob:rwx` the mode's group bits limit the ACL, and the group is the user's own."""
    sites = tmp_path / "config" / "hpc-launch" / "sites"
    path = {"file": sites / "here.yaml", "folder": sites, "folder above": tmp_path / "config"}[place]
    assert "echo mine" in own("prelude: [{raw: echo mine}]").script
    if by in {"owner", "link"} and os.getuid() != 0:
        pytest.skip("only root can give files away")
    if by == "mode":
        path.chmod(0o666 if place == "file" else 0o2777)
    elif by == "acl":
        set_acl(path, (USER_OBJ, 7, -1), (USER, 7, 65534), (GROUP_OBJ, 0, -1), (MASK, 7, -1), (OTHERS, 5, -1))
    elif by == "link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        os.chown(path, 65534, 65534)
    with pytest.raises(Refused) as caught:
        prepare_job(tmp_path / "job.yaml", site="here")
    assert {one.code for one in caught.value.findings} == {"HL313"}


def test_a_folder_above_may_be_open_with_the_sticky_bit(own: Plan, tmp_path: Path) -> None:
    assert "echo mine" in own("prelude: [{raw: echo mine}]").script
    (tmp_path / "config").chmod(0o1777)
    assert "echo mine" in prepare_job(tmp_path / "job.yaml", site="here").script


@pytest.mark.parametrize("open_to_others", ["file", "folder"])
def test_settings_that_others_can_change_do_not_count(open_to_others: str, plan: Plan, tmp_path: Path) -> None:
    settings = tmp_path / "config" / "hpc-launch" / "user.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("profiles: {here: {prelude: [{raw: echo mine}]}}\n")
    assert "echo mine" in plan().script
    settings.chmod(0o666 if open_to_others == "file" else 0o644)
    settings.parent.chmod(0o777 if open_to_others == "folder" else 0o755)
    with pytest.raises(UsageError) as caught:
        plan()
    assert "chmod go-w" in (caught.value.hint or "")


def test_the_file_that_was_read_is_trusted_and_not_the_one_that_took_its_place(tmp_path: Path) -> None:
    own, other = tmp_path / "own" / "here.yaml", tmp_path / "here.yaml"
    own.parent.mkdir()
    own.write_text(f"name: here\n{SITE}")
    other.write_text(own.read_text())
    other.chmod(0o666)
    document, read = read_document(own)[0], read_document(other)[0]
    assert document is not None
    assert read is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPC_LAUNCH_SITE_PATH", str(own.parent))
        assert is_trusted(own, document)
        assert not is_trusted(own, read)


def test_a_site_s_file_is_not_looked_up_in_the_current_folder(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "mine.yaml").write_text(f"name: mine\nprelude: [{{raw: touch /tmp/P}}]\n{SITE}")
    (tmp_path / "job.yaml").write_text("name: tiny\nscript: train.py\nsite: mine.yaml\n")
    monkeypatch.chdir(hostile)
    with pytest.raises(Refused, match="not found"):
        prepare_job(tmp_path / "job.yaml")
    (tmp_path / "mine.yaml").write_text(f"name: mine\nprelude: [{{raw: echo mine}}]\n{SITE}")
    assert "echo mine" in prepare_job(tmp_path / "job.yaml").script


@pytest.mark.parametrize("name", ["x;touch /tmp/P", "$(id)", "a[$(id)]", "x y", "", "A-B", "A\n", "1A"])
def test_the_name_of_a_secret_is_a_name(name: str, plan: Plan) -> None:
    found = refused(plan, job=f"secrets: [{json.dumps(name)}]\n")
    assert {one.code for one in found} == {"HL013"}


def test_a_slow_pattern_of_a_profile_does_not_stop_a_command(plan: Plan) -> None:
    begun = time.process_time()
    keys = "account: {pattern: 'z?.{0,300}z.{0,300}z.{0,300}z.{0,300}z.{0,300}!'}"
    assert "HL313" not in {one.code for one in refused(plan, keys, job=f"account: {'z' * 1000}\n")}
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("key", ["title", "env.A"])
def test_placeholders_without_an_end_take_no_time(plan: Plan, key: str) -> None:
    """A search for the end of each would take minutes."""
    text = "${" * 50_000 + "${env." * 20_000 + "${param." * 20_000
    begun = time.process_time()
    keys = f"{{A: '{text}'}}" if key == "env.A" else f"'{text}'"
    with suppress(Refused):
        plan(f"{key.partition('.')[0]}: {keys}")
    assert time.process_time() - begun < 10


def test_a_profile_of_very_many_files_is_refused(plan: Plan, team: Path) -> None:
    for number in range(60):
        (team / f"c{number}.yaml").write_text(f"name: c{number}\nextends: c{number + 1}\n")
    assert "extends 50 others or more" in refused(plan, "extends: c0")[0].message


def test_a_team_s_profile_cannot_switch_off_the_settings_of_the_user(plan: Plan, tmp_path: Path) -> None:
    settings = tmp_path / "config" / "hpc-launch" / "user.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("profiles: {here: {prelude: [{raw: echo mine}]}}\n")
    made = plan("recorded: true")
    assert "echo mine" in made.script
    (tmp_path / "site.yaml").write_text(f"name: here\nrecorded: true\n{SITE}")
    assert "echo mine" not in prepare_job(tmp_path / "job.yaml", site=str(tmp_path / "site.yaml")).script


@pytest.mark.parametrize("name", ["env.MY_STORE", "paths.x"])
def test_a_secret_of_the_job_is_not_written_into_the_script(
    name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_STORE", "hidden")
    keys, job = "paths: {x: '/tmp/${env.MY_STORE}'}", f"args: {{x: '${{{name}}}'}}\n"
    trust([digest(f"name: here\n{keys}\n{SITE}")], "here")
    assert "hidden" in plan(keys, job=job).script
    assert {one.code for one in refused(plan, keys, job=f"{job}secrets: [MY_STORE]\nretry: 1\n")} == {"HL206"}


TOKEN = "hf_abcdefghijklmnop123"


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("env: {STORE: '${env.MY_TOKEN}'}", "HL206"),
        ("run_dir: '/tmp/${env.MY_TOKEN}'", "HL206"),
        ("args: {key: '${env.PLACE}'}", "HL211"),
        (f"args: [--key, {TOKEN}]", "HL211"),
        ("args: {url: 'https://me:pw@store.example/x'}", "HL211"),
        ("args: {url: 'https://store.example/x'}", None),
    ],
)
def test_no_token_reaches_the_script_under_another_name(
    job: str, code: str | None, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "abc")
    monkeypatch.setenv("PLACE", TOKEN)
    if code is None:
        assert "store.example" in plan(job=job).script
        return
    (finding,) = refused(plan, job=job)
    assert finding.code == code
    assert "secrets" in str(finding.hint)


@pytest.mark.parametrize(
    "keys",
    [
        "caches: {'X=1;touch /tmp/P;Y': /tmp/x}",
        "env: [{prepend: {'X=1;touch /tmp/P;Y': /a}}]",
        "env: [{unset: ['X;touch /tmp/P']}]",
        "env: [{set: {restart: 'a[$(touch /tmp/P)]'}}]",
        "prelude: [{set: {job_nodes: 'a[$(touch /tmp/P)]'}}]",
        "rules: [{needs: {env: {restart: 'a[$(touch /tmp/P)]'}}, add: true}]",
        "stacks: {x: {env: {attempt_dir: /tmp}}}\ndefaults: {environment: {stack: x}}",
    ],
)
def test_a_variable_of_a_profile_has_a_name_and_none_of_the_script_s(keys: str, plan: Plan, team: Path) -> None:
    with pytest.raises(Refused):
        plan(keys)
    trust([digest((team / "here.yaml").read_text())], "here")
    with pytest.raises(Refused) as caught:
        plan(keys)
    assert {one.code for one in caught.value.findings} & {"HL204", "HL013", "HL010"}


def test_the_script_s_own_variables_are_reserved() -> None:
    missing: dict[str, set[str]] = {}
    for path in (REPOSITORY / "slurm_templates").rglob("*"):
        if path.suffix in (".sh", ".j2") and path.name != "array.sh.j2":  # it ends before the job has any variable
            text = re.sub(r"(?m)#.*$|printf .*$|--\S+", "", path.read_text())
            names = re.findall(r"(?m)^\s*(?:local |export |declare )?([a-z_][a-z0-9_]*)(?:\[[^]]*\])?\+?=", text)
            free = {name for name in names if not is_script_variable(name)}
            missing |= {path.name: free} if free else {}
    assert missing == {}


# --- Run folders ---


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "runs" / "tiny-1")
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    for path in (run.info, run.job_yaml, run.site_yaml, run.after, attempt.script, attempt.plan):
        path.write_text("{}")
    for path in (run.path, *run.path.rglob("*")):
        path.chmod(0o755)
    return run


@pytest.fixture
def index(run: RunFolder, tmp_path: Path) -> Index:
    """The index of the folder in which the run is, and what the run says of itself."""
    run.info.write_text('{"run": "tiny-1", "name": "tiny", "site": "x", "scheduler": "slurm", "created": 9e9}')
    return Index(tmp_path / "state", {"HPC_LAUNCH_HOME": str(run.path.parent)})


@pytest.mark.parametrize("shared", [".", ".."])
def test_a_run_that_others_can_change_is_left_alone(shared: str, run: RunFolder) -> None:
    """Also where they can change the sweep that it is a point of."""
    point = RunFolder(run.path / f"{run.path.name}.0")
    point.attempt(1).path.mkdir(parents=True)
    assert changeable_by_others(point) is None
    (point.path / shared).chmod(0o777)
    assert changeable_by_others(point) == (point.path / shared).resolve()
    with pytest.raises(UsageError, match="other users can change it"):
        refuse_foreign(point)
    assert "other users can change it" in left_alone(point).words, "the user learns why"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_run_folder_is_private_unless_the_user_opens_it_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_attempt(tmp_path)
    assert new_folder(prepared, 0.0).path.stat().st_mode & 0o7777 == 0o700
    monkeypatch.setenv("HPC_LAUNCH_RUN_GROUP", "nogroup")
    status = new_folder(prepared, 0.0).path.stat()
    assert (status.st_mode & 0o7777, status.st_gid) == (0o2750, grp.getgrnam("nogroup").gr_gid)
    monkeypatch.setenv("HPC_LAUNCH_RUN_GROUP", "no-such-group")
    with pytest.raises(Refused, match="no group no-such-group"):
        create_run(prepared)


def submitted(home: Path, umask: int = -1) -> None:
    """The job file of a home, run to its end."""
    places = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", "HPC_LAUNCH_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-m", "hpc_launch", "submit", "job.yaml", "--wait"],
        cwd=home,
        env={**os.environ, **places},
        umask=umask,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_umask_of_000_opens_nothing_of_a_run(tmp_path: Path) -> None:
    """The training keeps the umask for what it writes itself."""
    training = tmp_path / "train"
    training.write_text("#!/bin/sh\ntouch mine\n")
    training.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    job: dict[str, object] = {
        "name": "tiny",
        "site": "local",
        "launcher": "torchrun",
        "command": ["train.py"],
        "preflight": "off",
    }
    job["environment"] = {"python": str(training)}  # in its place, the training itself
    state = tmp_path / ".local" / "state" / "hpc-launch"
    state.mkdir(parents=True)
    state.chmod(0o777)  # as an earlier command may have left it
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    submitted(tmp_path, umask=0)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o666
    homes = tmp_path / "hpc-launch", tmp_path / ".local"
    paths = [path for home in homes for path in (home, *home.rglob("*")) if not path.is_symlink()]
    assert {"end.json", "local.json", "runs", "node-0.log", "stacks"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o022] == []


def test_a_default_acl_opens_nothing_of_a_run(tmp_path: Path) -> None:
    """`setfacl -d -m g:team:rwx`, which takes the place of the umask."""
    runs = tmp_path / "hpc-launch" / "runs"
    runs.mkdir(parents=True)
    set_default_acl(runs, (USER_OBJ, 7, -1), (GROUP_OBJ, 7, -1), (GROUP, 7, 65534), (MASK, 7, -1), (OTHERS, 0, -1))
    (tmp_path / "job.yaml").write_text("name: tiny\nsite: local\nlauncher: none\ncommand: ['true']\n")
    submitted(tmp_path)
    paths = [path for path in runs.glob("tiny-*/**/*") if not path.is_symlink()]
    assert {"end.json", "node-0.log", "claim"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o022] == []


def test_a_copy_of_the_code_is_no_more_open_than_the_code_and_holds_no_key(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "private").mkdir(parents=True)
    (project / "private" / "x.py").write_text("")
    (project / "id_check.py").write_text("")
    (project / "train.py").write_text("")
    secret = (
        ".netrc credentials credentials.json Credentials.CSV id_rsa id_ed25519 token.txt .git-credentials x.KEY .env"
    )
    for name in secret.split():
        (project / name).write_text("secret")
    (project / ".ssh").mkdir()
    (project / ".ssh" / "config").write_text("secret")
    (project / "private").chmod(0o700)
    (project / "train.py").chmod(0o666)
    (project / "closed.txt").write_text("")
    (project / "closed.txt").chmod(0o600)
    run = RunFolder(tmp_path / "runs" / "tiny-1")
    run.path.mkdir(parents=True)
    take_snapshot(run, CodePlan(str(project)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.code.rglob("*") if not path.is_symlink()}
    assert modes == {"private": 0o700, "x.py": 0o644, "id_check.py": 0o644, "train.py": 0o644, "closed.txt": 0o600}
    assert {path.name for path in run.code.iterdir() if path.is_symlink()} == {*secret.split(), ".ssh"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_above_the_script_does_not_say_what_is_copied(own: Plan, tmp_path: Path) -> None:
    (tmp_path / "src" / ".git").mkdir(parents=True)
    (tmp_path / "src" / "run.py").touch()
    own()
    roots = []
    for owner in (os.getuid(), 65534):
        os.chown(tmp_path / "src" / ".git", owner, owner)
        job = prepare_job(tmp_path / "job.yaml", site="here", sets=["script=src/run.py"])
        code = first_attempt(job, ()).plan.code
        roots.append(code and Path(code.root).name)
    assert roots == ["src", tmp_path.name]


def test_a_repository_runs_nothing_when_its_files_are_listed(tmp_path: Path) -> None:
    """What is missing in it would be fetched by a program that its configuration names (git-clone(1), --filter)."""
    fetch, program, said = "remote.origin", f"touch {tmp_path}/PWNED;", ""
    project = tmp_path / "project"
    (project / "inside").mkdir(parents=True)
    (project / "inside" / "a.py").touch()
    for words in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-m", "x"],
        ["sparse-checkout", "init", "--cone", "--sparse-index"],
        *(["config", *pair] for pair in ((f"{fetch}.url", f"file://{tmp_path}"), (f"{fetch}.uploadpack", program))),
        *(["config", *pair] for pair in ((f"{fetch}.promisor", "true"), ("core.repositoryformatversion", "1"))),
        ["config", "extensions.partialClone", "origin"],
        ["rev-parse", "HEAD:inside"],
    ):
        said = subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True).stdout.strip()
    (project / ".git" / "objects" / said[:2] / said[2:]).unlink()
    not_ignored(project)
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.timeout(120, method="thread")  # the other method uses the timer that the limit needs
def test_the_name_of_a_checkpoint_cannot_stop_a_command(tmp_path: Path) -> None:
    """Whoever can write to the folder names a file so that a pattern could be tried for ever."""
    (tmp_path / ("a" * 250)).touch()
    (tmp_path / os.fsdecode(b"a\xff")).touch()
    (tmp_path / "latest").write_text("a" * 250)
    rule = CheckpointRule(tmp_path, compiled(".{0,200}a" * 7 + "b"), latest="latest")
    begun = time.process_time()
    assert newest_first(rule) == []
    assert why_incomplete(rule, CheckpointFound(tmp_path / "x", None, 0)) is not None
    assert time.process_time() - begun < 10


# --- Programs ---


def test_a_module_is_not_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("argparse", "json", "csv", "runpy", "contextlib", "hpc_launch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [*module_command(supervisor.SUPERVISOR), "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--job-id" in done.stdout
    assert not (tmp_path / "PWNED").exists()


def test_no_other_python_is_started_with_the_current_folder() -> None:
    """`-m` and `-c` put it first in sys.path."""
    for path in (REPOSITORY / "hpc_launch").rglob("*.py"):
        name = str(path.relative_to(REPOSITORY))
        text = path.read_text()
        if not re.search(r"""["']-[mc]["']""", text):
            continue
        tree = ast.parse(text)
        safe = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and without_current_folder(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.List):
                words = [one.value if isinstance(one, ast.Constant) else "" for one in node.elts]
                assert "-m" not in words, f"{name}:{node.lineno}"
                if "-c" in words and words[0] not in ("sh", "bash", "/bin/sh") and "-I" not in words:
                    program = node.elts[words.index("-c") + 1]
                    known = isinstance(program, ast.Name) and program.id in safe
                    assert known or without_current_folder(program), f"{name}:{node.lineno}"


def test_a_path_of_others_raises_no_error_where_it_is_only_asked_whether_it_exists() -> None:
    """Before Python 3.14, `Path.exists` raises for EACCES, ENAMETOOLONG and EIO; `os.path.exists` does not."""
    own = {"hpc_launch/runs/submitting/code_snapshot.py"}  # the user's own code
    for path in (REPOSITORY / "hpc_launch").rglob("*.py"):
        name = str(path.relative_to(REPOSITORY))
        if name not in own:
            assert not re.search(r"\.(exists|is_file|is_dir)\(\)", path.read_text()), name


def without_current_folder(value: ast.expr) -> bool:
    """Whether a program begins with WITHOUT_CURRENT_FOLDER."""
    return ast.unparse(value).lstrip("f'{\"(").startswith("WITHOUT_CURRENT_FOLDER")


@pytest.mark.parametrize("shell", [-1, 0, 1, "self"])
def test_a_process_named_in_a_file_gets_no_signal_unless_it_is_the_job_s(shell: int | str, tmp_path: Path) -> None:
    number = os.getpid() if shell == "self" else int(shell)
    ours = start_of(os.getpid())
    state = LocalState(
        job_id="local-1", state="RUNNING", pid=os.getpid(), pid_start=ours, space=pid_space(), shell=number
    )
    assert not state.supervised, "this process is not a supervisor"
    assert state.batch_shell is None


# --- Files of others ---


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "socket"])
def test_a_file_that_never_ends_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    with suppress(OSError):
        open_regular(path).close()
        pytest.fail("it is opened")
    assert list(file_lines(path)) == []
    assert listed_nodes(str(path), {}) == ()


def test_a_team_s_rules_take_little_time(team: Path, tmp_path: Path) -> None:
    rule = "- {id: %s, cause: fs_full, match: 'tape %s', source: s, examples: []}\n"
    rules = team / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text("".join(rule % (f"a{k}", f"a{k}") for k in range(300)))
    (rules / "b.yaml").write_text("".join(rule % (f"b{k}", "x" * 200) for k in range(10_000)))
    (rules / "c.yaml").write_text(rule % ("c", "c"))
    own = tmp_path / "config" / "hpc-launch" / "rules"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("".join(rule % (f"m{k}", f"m{k}") for k in range(300)))
    findings: list[Finding] = []
    begun = time.process_time()
    book = rulebook(findings)
    assert time.process_time() - begun < 10
    assert {"a0", "a199", "m0", "m299"} <= set(book.rules)
    assert not {"a200", "b0", "c"} & set(book.rules)
    assert {Path(str(one.place).partition(":")[0]).name for one in findings} == {"a.yaml", "b.yaml", "c.yaml"}


def test_a_team_s_rule_blames_no_node_for_others_and_replaces_none_unless_trusted(team: Path) -> None:
    line = "srun: error: n1: task 0: Exited with exit code 1"
    rule = f"""\
- id: our-node
  cause: gpu_ecc
  order: 1
  match: 'srun: error: (?P<node>\\S+): task'
  source: Slurm
  examples: ['{line}']
- {{id: slurm-task-exit, cause: fs_full, match: 'tape robot', source: s, examples: ['tape robot']}}
"""
    (team / "rules").mkdir()
    (team / "rules" / "r.yaml").write_text(rule)

    def told() -> tuple[str, tuple[str, ...]]:
        book = rulebook(findings)
        log = scan_log(book, "batch.log", [line.encode() + b"\n"])
        evidence = Evidence(logs=(log,), end=EndFacts(exit_code=1), nodes=("n1", "n2"), of_a_run=True)
        found = diagnose(evidence, book)
        return found.failure_class, found.proven_nodes

    findings: list[Finding] = []
    assert told() == ("gpu_hardware", ())
    assert [one.message for one in findings] == [
        "a rule cannot be used: rule slurm-task-exit: an untrusted file cannot replace it"
    ]
    trust([digest(rule)], "team")
    findings.clear()
    assert told() == ("gpu_hardware", ("n1",))
    assert not findings


def test_a_detection_rule_does_not_show_the_value_of_a_variable() -> None:
    machine = Machine({"BW_SESSION": "hidden"}, (), lambda _: False, lambda: None, lambda: True)
    rule = DetectionRule(env={"BW_SESSION": "h*"})
    assert detect_profile.match_reasons(rule, machine) == ["BW_SESSION=h*"]


@pytest.mark.parametrize(
    ("rule", "used"),
    [
        ("{env: {HF_TOKEN: 'hf_a*'}}", False),
        ("{env: {HF_TOKEN: '[a-m]*'}}", False),
        ("{env: {HF_TOKEN: 'hf_?'}}", False),
        ("{env: {SYSTEMNAME: juwels}}", True),
        ("{env: {JUWELS_SITE: '*'}}", True),
        ("{path: PRIVATE/id_production}", False),
        ("{path: PRIVATE/../private/x}", False),
        ("{path: SHARED/link}", False),
        ("{path: SHARED/made-later}", False),
        ("{path: job.yaml}", False),
        ("{path: /etc/centre-name}", True),
        ("{host: 'login*.centre'}", True),
    ],
)
def test_a_team_s_detection_rules_cannot_ask_for_a_part_of_a_secret(
    team: Path, tmp_path: Path, rule: str, used: bool
) -> None:
    """One profile for each first character: the partition of the chosen one tells it to whoever looks at the queue."""
    (tmp_path / "private").mkdir(mode=0o700)
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        Path(shared, "link").symlink_to(tmp_path / "private" / "id_production")
        rule = rule.replace("PRIVATE", str(tmp_path / "private")).replace("SHARED", shared)
        text = f"name: x\ndetect: [{rule}]\n{SITE}"
        (team / "x.yaml").write_text(text)
        (team / "x.yaml").chmod(0o666)
        (found,) = [one for one in candidates() if one.name == "x"]
    assert bool(found.rules) == used
    assert (found.fault is None) == used
    trust([digest(text)], "x")
    assert [one.rules for one in candidates() if one.name == "x"] != [()]


def test_a_team_s_detection_rules_take_little_time(team: Path) -> None:
    for name in "abcde":
        text = "".join(f"  - {{host: 'h{k}.example'}}\n" for k in range(30_000))
        (team / f"{name}.yaml").write_text(f"name: {name}\ndetect:\n{text}{SITE}")
    text = "".join(f"  - {{host: 'h{k}.example'}}\n" for k in range(1000))
    for name in "vwxyz":
        (team / f"{name}.yaml").write_text(f"name: {name}\ndetect:\n{text}{SITE}")
    begun = time.process_time()
    found = [one for one in candidates() if one.layer == "HPC_LAUNCH_SITE_PATH"]
    assert time.process_time() - begun < 10
    assert [one.name for one in found if one.rules] == ["v", "w", "x", "y", "z"]
    assert "a" not in [one.name for one in found]


def test_a_link_in_the_ledger_opens_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teammate makes `LEDGER/SITE` a link to a private folder of the next writer."""
    ledger, private = tmp_path / "ledger", tmp_path / "private"
    ledger.mkdir()
    ledger.chmod(0o2770)
    private.mkdir(mode=0o700)
    (ledger / "here").symlink_to(private)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    report = NodeReport(time=time.time(), node="n1")
    assert "the report is only in" in str(NodeHealthStore("here", str(ledger)).write([report]))
    assert private.stat().st_mode & 0o7777 == 0o700
    assert list(private.iterdir()) == []


def test_a_ledger_in_another_folder_does_not_open_it(tmp_path: Path) -> None:
    """A profile may name any folder as `paths.ledger`."""
    home = tmp_path / "home"
    (home / "here").mkdir(parents=True)
    (home / "here" / "private.txt").touch()
    home.chmod(0o2770)
    (home / "here").chmod(0o700)
    NodeHealthStore("here", str(home)).write([NodeReport(time=time.time(), node="n1")])
    assert (home / "here").stat().st_mode & 0o7777 == 0o700


@pytest.fixture
def slurm_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, list[str]], None]:
    """Makes a Slurm that knows these nodes, in a partition of this size."""

    def make(size: int, nodes: list[str]) -> None:
        (tmp_path / "bin").mkdir()
        sinfo = tmp_path / "bin" / "sinfo"
        known = "\n".join(nodes)
        sinfo.write_text(f"#!/bin/sh\ncase \"$*\" in *--Node*) echo '{known}' ;; *) echo 'gpu|{size}' ;; esac\n")
        sinfo.chmod(0o755)
        monkeypatch.setenv("PATH", f"{sinfo.parent}:{os.environ['PATH']}")

    return make


def test_a_node_that_slurm_does_not_know_is_not_excluded(
    tmp_path: Path, slurm_with: Callable[..., None], plan: Plan, team: Path
) -> None:
    slurm_with(100, ["n1", "n2"])
    store = NodeHealthStore("here", str(tmp_path / "ledger"))
    reports = [NodeReport(time=time.time(), node=node, failure_class="gpu_hardware") for node in ("unknown", "n1")]
    store.write(reports)
    keys = f"paths: {{ledger: {tmp_path / 'ledger'}}}"
    trust([digest(f"name: here\n{keys}\n{SITE}")], "here")
    recovery = plan(keys).plan.recovery
    options = attempt_of(PlanRecord(site="here", recovery=recovery), "slurm", "", Path()).options
    assert options == ("--exclude=n1",)


@pytest.mark.parametrize("kind", ["open", "replaceable", "link", "foreign"])
def test_a_dry_run_writes_into_no_folder_of_another_user(
    kind: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    (runs / f"dry-run-{user()}").mkdir(parents=True)
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(runs))
    ready = plan()
    assert write_dry_run(ready).read_text() == ready.script
    if kind == "open":
        (runs / f"dry-run-{user()}").chmod(0o777)
    elif kind == "replaceable":
        runs.chmod(0o777)
    elif kind == "link":
        (runs / f"dry-run-{user()}").rename(runs / "other")
        (runs / f"dry-run-{user()}").symlink_to(runs / "other")
    elif os.getuid() == 0:
        os.chown(runs / f"dry-run-{user()}", 65534, 65534)
        another = write_dry_run(ready)
        assert (another.read_text(), another.parent.parent, another.parent.stat().st_uid) == (ready.script, runs, 0)
        assert not list((runs / f"dry-run-{user()}").glob(".*"))
        runs.chmod(0o777)
    else:
        pytest.skip("only root can give files away")
    with pytest.raises(Refused, match="cannot write"):
        write_dry_run(ready)


@pytest.mark.parametrize("name", ["runs", "."])
def test_no_run_is_created_where_every_user_can_replace_it(
    name: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "runs").mkdir(parents=True)
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "project" / "runs"))
    prepared = first_attempt(plan(), ())
    (tmp_path / "project" / name).chmod(0o777)
    with pytest.raises(Refused, match="the folder is world-writable"):
        create_run(prepared)
    (tmp_path / "project" / name).chmod(0o1777)
    assert create_run(prepared).exists


OTHER = 65534


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("scratch", "mode", "group", "allowed"),
    [
        (0o1777, 0o1777, 0, False),  # made by whoever came first; its owner may rename despite the sticky bit
        (0o755, 0o1777, 0, False),
        (0o1777, 0o775, OTHER, False),  # an access list lets the user write
        (0o1777, 0o2770, 0, True),  # a project folder of the user's group
        (0o755, 0o775, OTHER, True),
    ],
)
def test_a_folder_that_another_user_made_for_the_runs_is_refused(
    scratch: int, mode: int, group: int, allowed: bool, tmp_path: Path
) -> None:
    made = tmp_path / "scratch" / "me"
    made.mkdir(parents=True)
    made.parent.chmod(scratch)
    os.chown(made, OTHER, group)
    made.chmod(mode)
    (made / "runs").mkdir()
    if allowed:
        refuse_replaceable(made / "runs")
        return
    for refuse in (refuse_replaceable, make_own_folder):
        with pytest.raises(OSError, match="the folder is world-writable"):
            refuse(made / "runs")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_link_of_another_user_does_not_lead_to_the_runs(tmp_path: Path) -> None:
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o1777)
    link = tmp_path / "scratch" / "me"
    link.symlink_to("../home")
    refuse_replaceable(link / "runs")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(OSError, match="the folder is world-writable"):
        refuse_replaceable(link / "runs")


@pytest.mark.parametrize("kind", ["foreign", "link", "open above", "foreign above", "sticky above", "link above"])
@pytest.mark.parametrize("per", ["node", "job"])
def test_a_cache_is_not_one_of_another_user(per: str, kind: str, own: Plan, tmp_path: Path) -> None:
    """Libraries load code from their caches, and everybody can guess a name in /tmp or a project's folder."""
    cache = tmp_path / "tmp" / "me" / "cache"
    script = own(f"caches: {{triton: {{path: {cache}, per: {per}}}}}").script
    name = "on_nodes_first" if per == "node" else "job_environment"
    function = script[script.index(f"{name}() {{") :].partition("\n}\n")[0]
    die = 'die() { echo "$*" >&2; exit 1; }'

    def prepare_node() -> subprocess.CompletedProcess[str]:
        program = f"{die}\n{part('in_place')}{part('private_folder')}\n{function}\n}}\n{name}"
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False)

    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    for _ in range(2):
        done = prepare_node()
        assert done.returncode == 0, done.stderr
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)  # by another program, or with another umask
    assert prepare_node().returncode == 0
    assert cache.stat().st_mode & 0o777 == 0o755
    if kind == "open above":
        cache.parent.chmod(0o777)
    elif kind == "link":
        cache.rename(tmp_path / "other")
        cache.symlink_to(tmp_path / "other")
    elif os.getuid() != 0:
        pytest.skip("only root can give files away")
    elif kind == "link above":
        cache.parent.rename(tmp_path / "other")
        cache.parent.symlink_to(tmp_path / "other")
        os.chown(cache.parent, 65534, 65534, follow_symlinks=False)
    else:
        os.chown(cache if kind == "foreign" else cache.parent, 65534, 65534)
        cache.parent.chmod(0o1777 if kind == "sticky above" else 0o755)
    done = prepare_node()
    assert done.returncode == 1
    assert "belongs to another user" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_user_s_run_is_not_cancelled(run: RunFolder, tmp_path: Path) -> None:
    """Its records may name any job of the user."""
    os.chown(run.path, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        cancel_run(run, FakeScheduler(tmp_path / "scheduler"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_user_s_run_in_a_shared_folder_is_not_listed(run: RunFolder, index: Index) -> None:
    """Its name and its job's id may be those of a run of the user, and its time the latest."""
    assert [entry.run for entry in index.entries()] == ["tiny-1"]
    os.chown(run.path, 65534, 65534)
    assert index.entries() == []


def test_a_link_to_a_run_is_not_listed(run: RunFolder, index: Index) -> None:
    """Another user of a shared folder makes it, so that an old run of the user becomes `@last`."""
    (run.path.parent / "zzz-alias").symlink_to(run.path)
    assert [entry.run for entry in index.entries()] == ["tiny-1"]


@pytest.mark.parametrize("name", ["@last", "tiny-1", "tiny", "7"])
def test_a_folder_in_the_current_one_is_not_taken_for_a_run(
    name: str, run: RunFolder, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.attempt(1).job.write_text('{"job_id": "7"}')
    hostile = tmp_path / "hostile"
    (hostile / "other" / "attempts" / "001").mkdir(parents=True)
    (hostile / name).symlink_to("other")
    monkeypatch.chdir(hostile)
    assert find_run(name, index) == run
    assert find_run(f"./{name}", index).path == hostile / "other"


@pytest.mark.parametrize("link", ["golden", "golden/here", "golden/here/torchrun.sh"])
def test_golden_scripts_are_not_written_through_a_link(link: str, team: Path, tmp_path: Path) -> None:
    """A repository may contain links."""
    (team / "here.yaml").write_text(f"name: here\n{SITE}")
    (tmp_path / "target" / "here").mkdir(parents=True)
    (tmp_path / "target" / "here" / "torchrun.sh").write_text("mine")
    (tmp_path / "target" / "torchrun.sh").write_text("mine")
    target = {"golden": "target", "golden/here": "target/here"}.get(link, "target/torchrun.sh")
    (team / link).parent.mkdir(parents=True, exist_ok=True)
    (team / link).symlink_to(tmp_path / target)
    with suppress(UsageError):
        check(team / "here.yaml", update_golden=True)
    assert {path.read_text() for path in (tmp_path / "target").rglob("*.sh")} == {"mine"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give links away")
def test_output_follows_no_link_of_another_user_in_an_open_folder(tmp_path: Path) -> None:
    """`report -o /tmp/run.html`."""
    tmp_path.chmod(0o1777)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run.html").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "run.html", 65534, 65534, follow_symlinks=False)
    with pytest.raises(PermissionError, match="link of another user"):
        write_output(tmp_path / "run.html", "page")
    assert (tmp_path / "mine").read_text() == "mine"
    tmp_path.chmod(0o755)
    write_output(tmp_path / "run.html", "page")
    assert (tmp_path / "mine").read_text() == "page"


def test_a_line_that_is_no_host_list_excludes_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("n1\nn[2-3] # broken\nn4 --wrap=id\n--wrap=id\n$(id)\n")
    assert listed_nodes(str(tmp_path / "bad"), {}) == ("n1", "n2", "n3")


@pytest.mark.parametrize("text", ["n[1-", "n[1-1000000]", "n[9-1]", "n[]", "n]", "-n1", "n1," * 20_000 + "n2"])
def test_a_broken_or_endless_list_of_nodes_is_ignored(text: str, tmp_path: Path) -> None:
    """sbatch would refuse every job."""
    (tmp_path / "bad").write_text(f"{text}\nn7\n")
    assert set(listed_nodes(str(tmp_path / "bad"), {})) <= {"n1", "n2", "n7"}
    (tmp_path / "bad").write_text("".join(f"n[{k}001-{k}999]\n" for k in range(1, 90)))
    assert len(listed_nodes(str(tmp_path / "bad"), {})) == 500


def test_listed_nodes_count_like_reports(tmp_path: Path, slurm_with: Callable[..., None], own: Plan) -> None:
    slurm_with(100, [f"n{k}" for k in range(1, 101)])
    listed = ["nosuchnode", *(f"n{k}" for k in range(20, 60))]
    (tmp_path / "bad").write_text("\n".join(listed))
    recovery = own(f"bad_nodes: {{nodes: [n1], file: {tmp_path / 'bad'}}}").plan.recovery
    options = attempt_of(PlanRecord(site="here", recovery=recovery), "slurm", "", Path()).options
    assert options == (f"--exclude=n1,{','.join(f'n{k}' for k in range(20, 29))}",)


def test_one_author_cannot_displace_the_reports_of_others(
    tmp_path: Path, slurm_with: Callable[..., None], plan: Plan
) -> None:
    slurm_with(100, ["n1"])
    recovery = plan().plan.recovery
    reports = [NodeReport(time=time.time(), node=f"invented{k}", failure_class="gpu_hardware") for k in range(1800)]
    twice = [replace(one, run="other") for one in reports]
    mine = BadNode("n1", (NodeReport(time=1.0, node="n1", by="me"),), math.inf, avoided=True)
    nodes = [BadNode(one.node, (one, two), math.inf, avoided=True) for one, two in zip(reports, twice, strict=True)]
    assert mine in attempts._candidates([*nodes, mine], ())
    assert len(attempts._candidates([*nodes, mine], recovery.listed)) <= 101
