"""Drafting a profile from what three releases of Slurm printed (tests/schedulers/captured), and comparing one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import convert, structs

from hpc_launch.base.errors import SubmitRefused
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.schedulers.slurm import query_cluster
from hpc_launch.schedulers.slurm.query_cluster import Accounting, Survey
from hpc_launch.site_tools.draft_profile import LearnContext, draft
from hpc_launch.site_tools.draft_queues import level_memory, names, parts, vendor
from hpc_launch.site_tools.drift import compare
from hpc_launch.site_tools.host_facts import (
    InternetMeasurement,
    LoginNode,
    SmokeRecord,
    inspect_login_node,
)
from hpc_launch.site_tools.learn import ProbeResult, add_measurements, choose_gpu_requests
from tests.site_tools.drafted import profile

CAPTURED = Path(__file__).parents[1] / "schedulers" / "captured"
VERSIONS = ("22.05", "24.11", "26.05")
NOTHING = LoginNode("none", (), (), {})
ALICE = LearnContext("alice", frozenset({"alice"}), "login1.example.org", "2026-11-21")


def captured(version: str) -> Survey:
    text = (CAPTURED / f"survey-{version}.txt").read_text(encoding="utf-8")
    config, partition, node, qos, mine, default = re.split(r"^==> .* <==\n", text, flags=re.MULTILINE)[1:]
    associations = query_cluster.rows(mine, ("account", "partition", "qos", "defaultqos"))
    classes = query_cluster.rows(qos, ("name", "maxwall", "maxtres", "mintres", "maxjobspu", "maxsubmitpu"))
    accounting = Accounting(associations, default.strip(), {row["name"]: row for row in classes})
    partitions, nodes = tuple(query_cluster.partitions(partition)), tuple(query_cluster.nodes(node))
    return Survey(query_cluster.settings(config), partitions, nodes, accounting, ())


@pytest.mark.parametrize("version", VERSIONS)
def test_each_release_gives_the_same_profile(version: str, tmp_path: Path) -> None:
    site = profile(draft("mini", captured(version), NOTHING, ALICE), tmp_path)
    assert (site.status, site.scheduler.version) == ("draft", version)
    assert [probe.cluster for probe in site.detect] == ["testcluster"]
    assert site.detect[0].host == "*.example.org"
    assert site.hosts.login == ["login*.example.org"]
    assert site.default_queue == "gpu"
    node = site.node_classes["a100"]
    assert (node.cpus, node.memory, node.gpus, node.gpu_type, node.arch) == (8, 65536, 4, "a100", "x86_64")
    assert node.gpu_request == "gpus-per-node"
    limits = {name: [(row.nodes, row.time) for row in queue.limits] for name, queue in site.queues.items()}
    assert limits["gpu"] == [("1-4", 3600)]
    assert limits["whole"] == [("1-1", 2 * 86400)]
    assert site.queues["whole"].exclusive == "implied"
    assert not site.queues["gpu"].exclusive
    assert site.queues["low"].preemption is not None
    assert site.queues["gpu"].preemption is None


@pytest.mark.parametrize(
    ("plugin", "parameter", "order"),
    [
        ("topology/tree", "(null)", "switches"),
        ("topology/block", "(null)", "switches"),
        ("topology/tree", "SwitchAsNodeRank", "names"),
        ("topology/default", "(null)", "names"),
    ],
)
def test_ranks_follow_the_switches_that_slurm_knows(plugin: str, parameter: str, order: str, tmp_path: Path) -> None:
    survey = captured("24.11")
    changed = {**survey.settings, "TopologyPlugin": plugin, "TopologyParam": parameter}
    site = profile(draft("mini", replace(survey, settings=changed), NOTHING, ALICE), tmp_path)
    assert site.launch.node_order == order


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_user_may_not_use_is_left_out_and_said(version: str, tmp_path: Path) -> None:
    site = profile(draft("mini", captured(version), NOTHING, ALICE), tmp_path)
    assert "staff" not in site.queues
    assert "partition staff: for the groups root" in site.unknown
    root = replace(ALICE, groups=frozenset({"root"}))
    assert "staff" in profile(draft("mini", captured(version), NOTHING, root), tmp_path).queues


def test_qos_become_queues_with_their_limits(tmp_path: Path) -> None:
    site = profile(draft("mini", captured("24.11"), NOTHING, ALICE), tmp_path)
    long = site.queues["gpu-long"]
    assert (long.qos, long.max_jobs, long.max_submitted, long.gpus) == ("long", 3, 10, "1-8")
    assert [(row.nodes, row.time) for row in long.limits] == [("1-2", 3600)]  # the partition's time is shorter
    # This partition lets no other QOS pass, so that a job must name it.
    assert site.queues["capped"].qos == "long"
    assert site.node_classes[site.queues["capped"].node_class].cpus == 4


def test_features_of_some_nodes_are_options(tmp_path: Path) -> None:
    site = profile(draft("mini", captured("26.05"), NOTHING, ALICE), tmp_path)
    assert site.options["nvme"].constraint == "nvme"


def test_kinds_of_nodes_in_one_partition_are_told_apart() -> None:
    survey = captured("24.11")
    gpu = next(one for one in survey.partitions if one.name == "gpu")
    one, two, three, four = survey.nodes
    h100 = replace(two, gpus=(query_cluster.GpuCount("h100", 8),))
    found = parts(gpu, [one, h100, replace(one, name="n5"), replace(three, cpus=128)])
    assert [(part.group.hardware.gpu_type, part.by_type, part.constraint) for part in found] == [
        ("a100", True, None),
        ("a100", False, "nvme"),
        ("h100", True, None),
    ]
    assert [part.unclear for part in found] == [True, False, False]
    assert sorted(names(found).values()) == ["a100", "a100x4-64g-128", "h100"]
    # A firmware that keeps a little memory makes no kind of its own.
    assert len(parts(gpu, level_memory([one, replace(four, memory=64000)]))) == 1


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", [("a100", 4)]),
        ("gpu:2", [(None, 2)]),
        ("gpu", [(None, 1)]),
        ("nvme:1,gpu:h100:8(S:0,3),gpu:1g.10gb:14(S:1)", [("1g.10gb", 14), ("h100", 8)]),
        ("(null)", []),
        ("craynetwork:4", []),
    ],
)
def test_gres_as_slurm_prints_it(gres: str, gpus: list[tuple[str | None, int]]) -> None:
    assert [(one.type, one.count) for one in query_cluster.gpus(gres)] == gpus


def test_what_people_wrote_changes_no_key() -> None:
    node = captured("22.05").nodes[0]  # its Reason says CPUTot=99
    assert node.cpus == 8
    text = "NodeName=x CPUTot=4 RealMemory=1 Comment=CPUEfctv=9 Extra=Gres=gpu:9\n"
    assert [(one.cpus, one.memory) for one in query_cluster.nodes(text)] == [(4, None)]


@pytest.mark.parametrize(
    ("kind", "whose"),
    [("a100", "nvidia"), ("H100-80", "nvidia"), ("gh200", "nvidia"), ("nvidia_a100", "nvidia"), ("l40s", "nvidia"),
     ("mi250x", "amd"), ("MI300A", "amd"), ("pvc", "intel"), ("fancy", None), (None, None)],
)  # fmt: skip
def test_whose_gpus_they_are(kind: str | None, whose: str | None) -> None:
    assert vendor(kind) == whose


class Picky:
    """A Slurm that takes one way of asking for GPUs, and counts who asked."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.calls = 0

    def test_only(self, submission: Submission) -> str:
        self.calls += 1
        if self.wanted not in submission.script:
            raise SubmitRefused("Slurm rejected the job: Invalid generic resource (gres) specification")
        return "would start now"


@pytest.mark.parametrize(
    ("wanted", "form", "calls"),
    [
        ("#SBATCH --gpus-per-node=4", "gpus-per-node", 1),
        ("#SBATCH --gres=gpu:4", "gres", 3),
        ("#SBATCH --gres=gpu:a100:4", "gres-type", 4),
    ],
)
def test_the_words_for_gpus_are_those_that_slurm_takes(wanted: str, form: str, calls: int) -> None:
    survey = captured("24.11")
    gpu = replace(survey, partitions=survey.partitions[:1])
    made, slurm = draft("mini", gpu, NOTHING, ALICE), Picky(wanted)
    choose_gpu_requests(made, cast("Scheduler", slurm))
    assert made.data["node_classes"]["a100"]["gpu_request"] == form
    assert "accepted by sbatch --test-only" in made.text()
    assert slurm.calls == calls


def test_words_that_slurm_never_takes_are_no_reason_to_guess() -> None:
    made = draft("mini", captured("24.11"), NOTHING, ALICE)
    choose_gpu_requests(made, cast("Scheduler", Picky("#SBATCH --gpus-per-socket")))
    assert made.data["node_classes"]["a100"]["gpu_request"] == "gpus-per-node"
    assert "failed: Slurm rejected the job: Invalid generic resource" in made.text()


def test_modules_are_asked_through_their_own_program(tmp_path: Path) -> None:
    command = tmp_path / "lmod"
    command.write_text(
        "#!/bin/sh\nprintf '%s\\n' /apps/modules: CUDA/ CUDA/12.4 PyTorch/2.6-foss '2024/pytorch(default)' GCC/13 >&2\n"
    )
    command.chmod(0o755)
    found = inspect_login_node({"LMOD_CMD": str(command), "SCRATCH": str(tmp_path), "WORK": "not/absolute"})
    assert found.module_system == "lmod"
    assert found.modules == ("CUDA/12.4", "PyTorch/2.6-foss", "2024/pytorch")
    assert found.folders == {"scratch": "SCRATCH"}
    made = draft("mini", captured("24.11"), found, ALICE)
    site = profile(made, tmp_path)
    assert site.stacks["PyTorch-2.6-foss"].environment.modules == ["PyTorch/2.6-foss"]
    assert site.paths["scratch"].path == "${env.SCRATCH}"


def record(**more: Any) -> SmokeRecord:
    together = {"connected": True, "interface": "ib0", "by": "name", "folders": {"home": True, "scratch": False}}
    gpu = {"vendor": "nvidia", "model": "NVIDIA A100", "memory": 40960, "driver": "550"}
    base = {"cpus": 8, "gpus": [gpu] * 4, "allocated_gpus": "4", "fabric": "infiniband", "runtimes": ["apptainer"]}
    return convert({**base, "internet": {"compute": "direct"}, "together": {**together, **more}}, SmokeRecord)


def test_what_jobs_measured_goes_into_the_profile(tmp_path: Path) -> None:
    login = LoginNode("none", (), (), {"scratch": "SCRATCH"})
    made = draft("mini", captured("24.11"), login, ALICE)
    assert add_measurements(made, [ProbeResult("gpu", None, (record(), record()))], "2026-11-22", "alice") == []
    site = profile(made, tmp_path)
    assert (site.status, site.verified_on) == ("verified", "2026-11-22")
    assert (site.network.interface, site.fabric.kind, site.internet.compute) == (["ib0"], "infiniband", "direct")
    assert site.containers.runtime == "apptainer"
    assert site.node_classes["a100"].gpu_memory == 40960
    assert "not visible or not writable" in site.paths["scratch"].note
    assert site.facts["network"].source == "measured by jobs on the nodes"


def test_nodes_without_names_meet_by_address(tmp_path: Path) -> None:
    made = draft("mini", captured("24.11"), NOTHING, ALICE)
    add_measurements(made, [ProbeResult("gpu", None, (record(by="address"), record()))], "2026-11-22", "alice")
    assert profile(made, tmp_path).network.master.resolve == "ip"


def test_a_proxy_with_a_password_is_not_named_in_the_profile(tmp_path: Path) -> None:
    made = draft("mini", captured("24.11"), NOTHING, ALICE)
    behind = structs.replace(record(), internet=InternetMeasurement(compute="proxy", needs_password=True))
    add_measurements(made, [ProbeResult("gpu", None, (behind, behind))], "2026-11-22", "alice")
    assert (profile(made, tmp_path).internet.compute, profile(made, tmp_path).internet.proxy) == ("proxy", None)
    assert "without a password" in made.text()


def test_a_job_that_failed_leaves_a_draft_and_says_why(tmp_path: Path) -> None:
    made = draft("mini", captured("24.11"), NOTHING, ALICE)
    faults = add_measurements(made, [ProbeResult("gpu", None, (), "FAILED: exit code 1")], "2026-11-22", "alice")
    assert faults == ["gpu: FAILED: exit code 1"]
    site = profile(made, tmp_path)
    assert (site.status, site.verified_on) == ("draft", None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fresh_profile_has_not_drifted(version: str, tmp_path: Path) -> None:
    site = profile(draft("mini", captured(version), NOTHING, ALICE), tmp_path)
    assert list(compare(site, captured(version), ALICE.groups)) == []


def test_each_drift_is_a_row(tmp_path: Path) -> None:
    before = captured("24.11")
    site = profile(draft("mini", before, NOTHING, ALICE), tmp_path)
    partitions = []
    for one in before.partitions:
        if one.name == "gpu":
            partitions.append(replace(one, max_time=1800, default_time=60, max_nodes=2))
        elif one.name == "low":
            partitions.append(replace(one, up=False))
        elif one.name != "short":
            partitions.append(one)
    partitions.append(replace(before.partitions[0], name="new", default=False))
    nodes = tuple(replace(node, memory=1024, gpus=(query_cluster.GpuCount("a100", 2),)) for node in before.nodes)
    after = replace(before, partitions=tuple(partitions), nodes=nodes, settings={**before.settings, "ClusterName": "x"})
    rows = {(row.key, row.profile, row.cluster) for row in compare(site, after, ALICE.groups)}
    assert rows >= {
        ("detect", "testcluster", "x"),
        ("queues.gpu.limits", "01:00:00", "00:30:00"),
        ("queues.gpu.limits", "4 nodes", "2 nodes"),
        ("queues.gpu.default_time", "00:10:00", "00:01:00"),
        ("queues.low.partition", "low", "not up"),
        ("queues.short.partition", "short", None),
        ("queues", None, "new"),
        ("node_classes.a100.gpus", "4", "2"),
        ("node_classes.a100.memory", "64G", "1G"),
    }
