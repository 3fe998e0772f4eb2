"""The script for a start by hand, for each launcher: against its golden file, and against bash and ShellCheck."""

from __future__ import annotations

import subprocess

import pytest
from msgspec.structs import replace

from hpc_launch.base.errors import UsageError
from hpc_launch.script.by_hand import HandStart, hostfile_of, start_by_hand
from hpc_launch.service.live_job import environment_shell
from tests.golden.test_golden import CASES, HERE, _known_surroundings, plan_of
from tests.shellcheck import shellcheck

__all__ = ["_known_surroundings"]

BY_HAND = {
    *("ssh_torchrun", "ssh_srun", "ssh_deepspeed", "ssh_apptainer", "ssh_none", "deepspeed_pdsh", "ft_launcher"),
    *("torchrun_module", "strategy_zero3_srun", "site_chain"),
}
REFUSED = {"container_pyxis", "container_edf", "container_prelude", "site_chain"}


def start(case: str, *, without_rank_variables: bool = False) -> HandStart:
    plan = plan_of(case)
    if without_rank_variables:
        plan = replace(plan, around=replace(plan.around, rank_variables=()))
    return start_by_hand(plan, [f"n{number}" for number in range(1, plan.nodes + 1)])


@pytest.mark.parametrize("case", sorted(BY_HAND))
def test_script_is_the_golden_one(case: str, request: pytest.FixtureRequest) -> None:
    script = start(case, without_rank_variables=case == "site_chain").script
    golden = HERE / "by_hand" / f"{case}.sh"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_bytes(script.encode())
    assert script.encode() == golden.read_bytes()


@pytest.mark.parametrize("case", ["site_chain", "torchrun"])
def test_a_shell_in_the_environment_of_a_job(case: str, request: pytest.FixtureRequest) -> None:
    script = environment_shell(plan_of(case), "/opt/hpc-launch/bin")
    golden = HERE / "interactive" / f"{case}.sh"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_bytes(script.encode())
    assert script.encode() == golden.read_bytes()
    assert shellcheck([golden]) == ""


@pytest.mark.slow
def test_every_plan_can_be_started_by_hand_or_is_refused() -> None:
    refused, scripts = set(), []
    for case in CASES:
        try:
            scripts.append(start(case).script)
        except UsageError:
            refused.add(case)
    assert refused >= REFUSED
    assert len(scripts) > len(CASES) / 2
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0, script


@pytest.mark.slow
def test_shellcheck_finds_nothing() -> None:
    scripts = sorted((HERE / "by_hand").glob("*.sh"))
    assert {path.stem for path in scripts} == BY_HAND
    assert shellcheck(scripts) == ""


def test_the_nodes_of_a_slurm_job_must_be_known() -> None:
    with pytest.raises(UsageError, match="nodes, and 0 are known"):
        start_by_hand(plan_of("torchrun"))


def test_a_filter_of_slots_names_slots_of_the_host_file() -> None:
    hosts = start("ssh_torchrun").hosts
    assert hostfile_of(hosts) == ("gpu1 slots=8\ngpu2 slots=8\ngpu3 slots=4\n", "gpu1@gpu2@gpu3:0,1,2,3")
