"""What is made of Slurm's words: refusals, reasons, and the variables that its commands see."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import NotNow, SubmitRefused, SubmitUnknown
from hpc_launch.schedulers.slurm.run_command import ask, on_cluster, query_environment, submission_environment
from hpc_launch.schedulers.slurm.slurm_reasons import advice, failed_to_start
from hpc_launch.schedulers.slurm.submitit_executor import classify

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        (1, FAILED + "Socket timed out on send/recv operation"),
        (1, "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n" + FAILED + "Broken pipe"),
        (124, ""),
        (137, FAILED + "Invalid partition name specified"),
        (-9, ""),
        (1, ""),
        (1, "--> the site's wrapper gave up"),
        (0, ""),
    ],
)
def test_a_job_may_have_been_taken(code: int, errors: str) -> None:
    assert isinstance(classify(code, "", errors), SubmitUnknown)


@pytest.mark.parametrize(
    ("code", "errors", "said", "hint"),
    [
        (1, FAILED + "Invalid account or account/partition combination specified", "Invalid account", "sacctmgr"),
        (1, FAILED + "Requested time limit is invalid (missing or exceeds some limit)", "time limit", "sinfo"),
        (
            1,
            "sbatch: error: You must name a project.\n" + FAILED + "Unspecified error",
            "You must name a project.",
            None,
        ),
        (255, "sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more", "--nosuch", "--help"),
        (1, "sbatch: error: Unable to open file /x", "Unable to open file /x", "file system"),
        (127, "timeout: failed to run command 'sbatch': No such file or directory", "sbatch", "login node"),
    ],
)
def test_slurm_said_no(code: int, errors: str, said: str, hint: str | None) -> None:
    error = classify(code, "", errors)
    assert isinstance(error, SubmitRefused)
    assert said in str(error)
    assert hint is None or hint in (error.hint or "")


POLICY = FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("errors", "passes"),
    [
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", True),
        (f"sbatch: error: QOSGrpSubmitJobsLimit\n{POLICY}", True),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", True),
        (f"sbatch: error: MaxSubmitJobsPerAccount\n{POLICY}", True),
        (POLICY, True),
        (FAILED + "Required partition not available (inactive or drain)", True),
        (FAILED + "Requested reservation not usable now", True),
        (FAILED + "Job update not available right now, the DB index is being set, try again in a bit", True),
        ("sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: no configuration source", True),
        (f"sbatch: error: QOSMaxNodePerJobLimit\n{POLICY}", False),
        (f"sbatch: error: QOSMaxCpuPerUserLimit\n{POLICY}", False),
        (f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}", False),
        (FAILED + "Requested reservation is invalid", False),
        (FAILED + "Invalid partition name specified", False),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", False),
        (FAILED + "Requested node configuration is not available", False),
        ("sbatch: error: no budget is left for p123\n" + FAILED + "Unspecified error", False),
    ],
)  # fmt: skip
def test_a_refusal_that_passes_by_itself_is_told_from_one_that_a_person_must_mend(errors: str, passes: bool) -> None:
    error = classify(1, "", errors)
    assert isinstance(error, SubmitRefused)
    assert isinstance(error, NotNow) is passes


def test_a_host_without_slurm_s_configuration_did_not_reach_the_controller() -> None:
    errors = "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    error = classify(1, "", errors + "sbatch: fatal: Could not establish a configuration source")
    assert "controller of Slurm was not reached, so nothing was submitted" in str(error)
    assert "rejected" not in str(error)
    assert "login node" in (error.hint or "")


@pytest.mark.parametrize("before", ["", FAILED, "sbatch: error: "])
def test_a_cluster_that_takes_no_jobs_from_compute_nodes_does_not_reject_the_job(before: str) -> None:
    said = "[TACC]: Job submission is not allowed from this host. Please submit through one of the login resources."
    for error in (classify(1, "", before + said), classify(1, before + said, "")):
        assert isinstance(error, NotNow)
        assert "the cluster takes no jobs from this host, so nothing was submitted: [TACC]" in str(error)
        assert "login node" in (error.hint or "")


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "(JobHeldAdmin)",
        "launch failed requeued held",
        "job_requeued_in_held_state",
        "DependencyNeverSatisfied",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMinGRES",
        "AssocGrpCPUMinutesLimit",
    ],
)
def test_reasons_that_need_a_person(reason: str) -> None:
    found = advice(reason, "12")
    assert found is not None
    assert found.never
    assert found.meaning.endswith(".")
    assert "{" not in str(found)
    assert str(found).count(".") >= 2


@pytest.mark.parametrize(
    "reason",
    [
        None,
        "Dependency",
        "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCPURunMinutesLimit",
        "QOSGrpNodeLimit",
        "AssocMaxSubmitJobLimit",
        "PartitionDown",
        "SomethingNew",
    ],
)
def test_reasons_that_pass(reason: str | None) -> None:
    found = advice(reason)
    assert found is None or not found.never


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("DependencyNeverSatisfied", "submit_rejected"),
        ("PartitionNodeLimit", "submit_rejected"),
        ("launch failed requeued held", "node_failure"),
        ("JobHeldUser", None),
        ("SPECIAL_EXIT", None),
        ("AssocGrpCPUMinutesLimit", None),
        ("PartitionDown", None),
        ("Resources", None),
    ],
)
def test_only_a_job_that_nobody_holds_and_that_can_never_start_is_removed(reason: str, kind: str | None) -> None:
    assert failed_to_start(reason) == kind


def test_a_word_on_what_may_take_long() -> None:
    found = advice("ReqNodeNotAvail, UnavailableNodes:n[1-2]")
    assert found is not None
    assert not found.never
    assert "sinfo -R" in found.action


def test_what_leaks_is_left_out() -> None:
    base = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "west",
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_NODE": "1",
        "SLURMD_NODENAME": "n1",
        "SBATCH_PARTITION": "p",
        "SRUN_CPUS_PER_TASK": "2",
        "SALLOC_PARTITION": "p",
        "PMI_RANK": "0",
        "PMI2_RANK": "0",
        "PMIX_ID": "0",
        "SQUEUE_PARTITION": "p",
        "SACCT_FORMAT": "x",
        "SLURMISH": "stays",
        "LC_ALL": "de_DE.UTF-8",
    }
    assert set(submission_environment({"TOKEN": "t"}, base)) == {
        *("PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SQUEUE_PARTITION", "SACCT_FORMAT", "SLURMISH", "LC_ALL", "TOKEN")
    }
    query = query_environment(base)
    own = {"LC_ALL", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"}
    assert set(query) == {"PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SLURMISH", *own}
    assert (query["LC_ALL"], query["SLURM_TIME_FORMAT"]) == ("C", "%s")


def test_commands_of_a_job_on_another_cluster_are_for_that_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """sacct ignores SLURM_CLUSTERS (22.05 to 26.05). On the nodes of the cluster nothing has to name it."""
    for name in ("squeue", "sacct"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$SLURM_CLUSTERS $*"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CLUSTERS", "west")
    with on_cluster("east"):
        assert ask(["squeue", "--me"]) == "east --me\n"
        assert ask(["sacct", "-X"]) == "east --clusters=east -X\n"
        assert "SLURM_CLUSTERS" not in submission_environment()
        monkeypatch.setenv("SLURM_CLUSTER_NAME", "east")
        assert ask(["sacct", "-X"]) == " -X\n"
    assert ask(["sacct", "-X"]) == "west --clusters=west -X\n"
