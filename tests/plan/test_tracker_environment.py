"""Trackers: the variables that follow from the site's `internet`, the key's way, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_launch.base.findings import Finding
from hpc_launch.job.shell_text import quote
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.schedulers.slurm.run_command import submission_environment
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load

SITE = """\
name: here
scheduler: slurm
node_classes: {gpu: {cpus: 32, gpus: 4}}
queues: {gpu: {node_class: gpu}}
"""
JOB = "name: x\nsite: here\ncommand: python3 train.py\n"


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("NETRC", raising=False)
    return folder


def planned(home: Path, job: str, site: str = "") -> tuple[LaunchPlan | None, list[Finding]]:
    (home / "sites" / "here.yaml").write_text(SITE + site)
    (home / "job.yaml").write_text(JOB + job)
    return build(load(home / "job.yaml").resolved)


def plan_of(home: Path, job: str, site: str) -> LaunchPlan:
    plan, findings = planned(home, job, site)
    assert [finding.code for finding in findings if finding.severity == "error"] == []
    assert plan is not None
    return plan


def variables(home: Path, job: str, site: str = "") -> dict[str, str]:
    return {variable.name: quote(variable.value or "") for variable in plan_of(home, job, site).variables}


def codes(home: Path, job: str, site: str = "") -> list[str]:
    return [finding.code for finding in planned(home, job, site)[1]]


def log_in(home: Path, host: str = "api.wandb.ai") -> Path:
    path = home / ".netrc"
    path.write_text(f"machine {host}\n  login user\n  password secret-of-alice\n")
    path.chmod(0o600)
    return path


def test_without_internet_nothing_is_tried(home: Path) -> None:
    found = variables(home, "trackers: [wandb]\n", "internet: none\n")
    assert found["WANDB_MODE"] == "offline"
    assert found["WANDB_DIR"] == '"$HPC_LAUNCH_RUN_DIR"'
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"}
    assert {name for name, value in found.items() if value == "1"} >= offline
    assert offline <= set(variables(home, "", "internet: none\n"))


def test_the_jobs_own_variables_go_before(home: Path) -> None:
    found = variables(home, "trackers: [wandb]\nenv: {HF_HUB_OFFLINE: 0, WANDB_MODE: disabled}\n", "internet: none\n")
    assert (found["HF_HUB_OFFLINE"], found["WANDB_MODE"]) == ("0", "disabled")


def test_online_takes_the_login_file_or_a_secret(home: Path) -> None:
    site = "internet: direct\n"
    assert codes(home, "trackers: [wandb]\n", site) == ["HL504"]
    (home / ".netrc").write_text("nonsense\n")
    assert codes(home, "trackers: [wandb]\n", site) == ["HL504"]
    assert codes(home, "trackers: [wandb]\nsecrets: [WANDB_API_KEY]\n", site) == []
    log_in(home)
    assert "WANDB_MODE" not in variables(home, "trackers: [wandb]\n", site)
    own = "trackers: [wandb]\nenv: {WANDB_BASE_URL: 'https://wandb.example.org:8443'}\n"
    assert codes(home, own, site) == ["HL504"]
    log_in(home, "wandb.example.org")
    assert codes(home, own, site) == []


@pytest.mark.parametrize(
    ("runtime", "bind"),
    [("apptainer", "{0}:{0}:ro"), ("pyxis", "{0}:{0}:ro"), ("podman-hpc", "{0}:{0}:ro"), ("charliecloud", "{0}:{0}")],
)
def test_the_login_file_alone_is_bound_where_the_home_is_not_seen(home: Path, runtime: str, bind: str) -> None:
    netrc = log_in(home)
    (home / "x.sif").touch()
    site = f"internet: direct\ncontainers: {{runtime: {runtime}}}\n"
    job = f"trackers: [wandb]\ncontainer: {{image: {home}/x.sif, home: false}}\n"
    container = plan_of(home, job, site).container
    assert container is not None
    assert (bind.format(netrc),) in container.binds
    assert codes(home, job, site) == []
    assert variables(home, job, site)["NETRC"] == str(netrc)
    for other in (
        job.replace("home: false", "home: true"),
        f"{job}secrets: [WANDB_API_KEY]\n",
        job.replace("[wandb]", "[{name: wandb, mode: offline}]"),
    ):
        plan = plan_of(home, other, site)
        assert plan.container is not None
        assert ".netrc" not in str(plan.container.binds)
        assert "NETRC" not in variables(home, other, site)


def test_an_environment_file_takes_no_binds_so_the_key_must_come_otherwise(home: Path) -> None:
    log_in(home)
    site = "internet: direct\ncontainers: {runtime: edf}\n"
    assert codes(home, "trackers: [wandb]\ncontainer: train\n", site) == ["HL504"]
    assert codes(home, "trackers: [wandb]\ncontainer: train\nsecrets: [WANDB_API_KEY]\n", site) == []


def test_a_proxy_is_handed_to_every_job_and_may_keep_trackers_off(home: Path) -> None:
    site = "internet: {compute: proxy, proxy: 'http://proxy:3128', trackers: offline}\n"
    found = variables(home, "trackers: [wandb]\n", site)
    assert {found[name] for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")} == {"http://proxy:3128"}
    assert found["no_proxy"] == found["NO_PROXY"] == "localhost,127.0.0.1"
    assert found["WANDB_MODE"] == "offline"
    assert "HF_HUB_OFFLINE" not in found
    assert codes(home, "", "internet: proxy\n") == ["HL505"]


def test_what_is_not_known_is_offline_with_a_word_about_it(home: Path) -> None:
    assert codes(home, "trackers: [wandb]\n") == ["HL503"]
    assert variables(home, "trackers: [wandb]\n")["WANDB_MODE"] == "offline"
    assert codes(home, "trackers: [{name: wandb, mode: offline}]\n") == []
    assert codes(home, "trackers: [{name: wandb, mode: online}]\n", "internet: none\n") == ["HL502"]


def test_all_attempts_continue_one_run_of_each_tracker(home: Path) -> None:
    log_in(home)
    found = variables(home, "trackers: [wandb, mlflow, neptune, tensorboard]\n", "internet: direct\n")
    assert found["WANDB_RUN_ID"] == found["NEPTUNE_CUSTOM_RUN_ID"] == '"$HPC_LAUNCH_RUN_NAME"'
    assert found["WANDB_RESUME"] == "allow"
    assert found["HPC_LAUNCH_MLFLOW_RUN"] == '"$HPC_LAUNCH_RUN_DIR"/mlflow-run-id'
    assert "MLFLOW_RUN_ID" not in found, "MLflow refuses the id of a run that does not exist"
    assert found["TENSORBOARD_LOGGING_DIR"] == '"$HPC_LAUNCH_RUN_DIR"/tensorboard'
    assert not {"WANDB_RUN_ID", "WANDB_RESUME", "NEPTUNE_CUSTOM_RUN_ID"} & set(variables(home, ""))


@pytest.mark.parametrize(
    ("job", "site"), [("", "internet: none\n"), ("env: {WANDB_MODE: offline}\n", "internet: direct\n")]
)
def test_offline_runs_of_one_id_would_replace_each_other(home: Path, job: str, site: str) -> None:
    found = variables(home, f"trackers: [wandb]\n{job}", site)
    assert found["WANDB_RUN_GROUP"] == '"$HPC_LAUNCH_RUN_NAME"'
    assert not {"WANDB_RUN_ID", "WANDB_RESUME"} & set(found)


def test_the_users_own_run_of_a_tracker_takes_precedence(home: Path) -> None:
    own = "env: {WANDB_RUN_ID: mine, MLFLOW_RUN_ID: mine, NEPTUNE_CUSTOM_RUN_ID: mine}\n"
    log_in(home)
    found = variables(home, f"trackers: [wandb, mlflow, neptune]\n{own}", "internet: direct\n")
    assert {found["WANDB_RUN_ID"], found["MLFLOW_RUN_ID"], found["NEPTUNE_CUSTOM_RUN_ID"]} == {"mine"}
    assert not {"WANDB_RESUME", "HPC_LAUNCH_MLFLOW_RUN"} & set(found)
    must = variables(home, "trackers: [wandb]\nenv: {WANDB_RESUME: must}\n", "internet: direct\n")
    assert (must["WANDB_RESUME"], must.get("WANDB_RUN_ID")) == ("must", None)


def test_the_submitting_shell_may_name_the_run_of_a_tracker(home: Path) -> None:
    log_in(home)
    script = render(plan_of(home, "trackers: [wandb]\n", "internet: direct\n"))
    lines = [line.partition(" # ")[0].strip() for line in script.splitlines() if "WANDB_R" in line]
    assert lines == [
        'export WANDB_RUN_ID="${WANDB_RUN_ID:-$HPC_LAUNCH_RUN_NAME}"',
        'export WANDB_RESUME="${WANDB_RESUME:-allow}"',
    ]
    code = f"HPC_LAUNCH_RUN_NAME=run-1; {lines[0]}; echo $WANDB_RUN_ID"
    for own, expected in ((None, "run-1"), ("mine", "mine")):
        env = {"WANDB_RUN_ID": own} if own else {}
        assert subprocess.check_output(["bash", "-c", code], env=env, text=True).strip() == expected


def test_a_job_submitted_from_another_one_does_not_continue_its_run() -> None:
    outer = {"HPC_LAUNCH_RUN_NAME": "outer", "WANDB_RUN_ID": "outer", "NEPTUNE_CUSTOM_RUN_ID": "mine"}
    assert submission_environment(base=outer) == {"NEPTUNE_CUSTOM_RUN_ID": "mine"}
