"""Every job file of `examples/`, rendered for clusters that differ: no finding, and the code's own entry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_launch.plan.build_plan import build
from hpc_launch.prepare.prepare import validate_job
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load
from tests.examples.codes import CODES, EXAMPLES, SITES, Code, checkout
from tests.shellcheck import shellcheck_own_parts

OWN = {f"{name}/job.yaml" for name in "tiny-gpt grpo-server ray-train plugin".split()} | {"tiny-gpt/job-deepspeed.yaml"}
"""Examples of this project's own code, which other tests run."""
ALL = pytest.mark.parametrize("code", CODES.values(), ids=CODES)
PRIVATE = re.compile(r"^(site|account|queue):|#SBATCH|NCCL_|MASTER_|SLURM_", re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a login for wandb, and the profiles of these tests."""
    for name in ("HPC_LAUNCH_SITE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(SITES))
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password nobody-may-see-this\n")
    (tmp_path / ".netrc").chmod(0o600)
    return tmp_path


def script_of(code: Code, home: Path, site: str) -> str:
    job = checkout(code, home)
    plan, _ = build(load(job, site=site).resolved)
    assert plan is not None
    return render(plan)


def test_every_job_file_is_known_here() -> None:
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/job*.yaml")}
    assert files == set(CODES) | OWN


@ALL
@pytest.mark.parametrize("site", ["nvidia", "amd", "cloud"])
def test_no_finding_on_clusters_that_differ(code: Code, site: str, home: Path) -> None:
    assert [str(finding) for finding in validate_job(checkout(code, home), site=site)] == []


@ALL
def test_the_script_starts_the_codes_own_entry(code: Code, home: Path) -> None:
    script = script_of(code, home, "nvidia")
    (start,) = re.findall(r"^on_(?:each|first)_node\(\) \{$(.*?)^\}$", script, re.MULTILINE | re.DOTALL)
    first, _, last = code.entry.rpartition(" ")
    before = re.escape(f"{first} ") if first else ""
    assert re.search(rf"\b{before}(\S*/)?{re.escape(last)}( \\|$)", start, re.MULTILINE), start
    others = re.sub(r'"\$HPC_LAUNCH_ATTEMPT_DIR/\w+\.sh"', "", start)  # the job's own, which start nothing else
    assert not re.search(r"\.sh\b|\bssh\b|pdsh", others), start


@ALL
def test_a_job_file_holds_nothing_of_one_cluster(code: Code) -> None:
    values = re.sub(r"^ *#.*$| #.*$", "", (EXAMPLES / code.job).read_text(), flags=re.MULTILINE)
    assert not PRIVATE.findall(values)


def test_shellcheck_finds_nothing(home: Path) -> None:
    scripts = [script_of(code, home / str(number), "cloud") for number, code in enumerate(CODES.values())]
    assert shellcheck_own_parts(scripts) == ""


def test_trackers_go_online_offline_or_by_the_proxy_as_the_site_says(home: Path) -> None:
    code = CODES["fmengine/job.yaml"]
    nvidia, amd, cloud = (script_of(code, home / site, site) for site in ("nvidia", "amd", "cloud"))
    assert "export WANDB_MODE=offline" in nvidia
    assert "export HF_HUB_OFFLINE=1" in nvidia
    assert "export WANDB_MODE=offline" in amd
    assert "export https_proxy=http://proxy.example.org:3128" in amd
    assert "HF_HUB_OFFLINE" not in amd + cloud
    assert "WANDB_MODE" not in cloud
    login = home / ".netrc"
    assert f"--bind {login}:{login}:ro" in cloud
    assert f"export NETRC={login}" in cloud
    assert ".netrc" not in nvidia + amd
    assert not [script for script in (nvidia, amd, cloud) if "nobody-may-see-this" in script]


def test_amd_gpus_reach_the_container(home: Path) -> None:
    code = CODES["rocm/job.yaml"]
    assert "apptainer exec --no-eval --rocm" in script_of(code, home / "amd", "amd")
    assert "exec --no-eval --nv" in script_of(code, home / "nvidia", "nvidia")
