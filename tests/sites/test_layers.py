"""The layers of a profile: what it extends, itself and the user's own; their order, origins and faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpc_launch.base.findings import Finding
from hpc_launch.prepare.explain import explain, explain_site
from hpc_launch.sites.trust import digest, trust
from tests.sites.conftest import BODY, Plan, Refusing, Write

User = Callable[[str], None]


def variables(plan: Plan, job: str = "", site: str = "here") -> dict[str, str | None]:
    ready = plan(site, job)
    return {one.name: None if one.value is None else str(one.value[0]) for one in ready.plan.variables}


def codes(findings: list[Finding]) -> list[tuple[str, str]]:
    return [
        (finding.code, f"{Path(finding.place.file).name}:{finding.place.line}") for finding in findings if finding.place
    ]


def test_layers_lie_in_their_order_and_each_value_has_its_own(write: Write, plan: Plan, user: User) -> None:
    write("bases", fabric="kind: base\nname: fabric\nenv: [{set: {A: fabric, B: fabric, C: fabric, D: fabric}}]\n")
    write(centre="kind: base\nname: centre\nextends: fabric\nenv: [{set: {B: centre, C: centre, D: centre}}]\n")
    write(system=f"name: system\nextends: centre\nenv: [{{set: {{C: system, D: system}}}}]\n{BODY}")
    write(team="name: team\nextends: system\nqueues: {gpu: {env: [{set: {D: queue}}]}}\n")
    user("defaults: {env: {E: user}}\nprofiles: {team: {queues: {gpu: {partition: mine}}}}\n")
    ready = plan("team")
    origins = {line.key: (line.value, line.origin.layer) for line in explain(ready)}
    assert origins["$A"] == ("fabric", "base fabric")
    assert origins["$B"] == ("centre", "base centre")
    assert origins["$C"] == ("system", "site system")
    assert origins["$D"] == ("queue", "site team")
    assert origins["$E"] == ("user", "user")
    assert origins["--partition"] == ("mine", "user")
    assert origins["--cpus-per-task"] == ("64", "site system")


def test_of_several_parents_the_later_one_lies_over_the_earlier(write: Write, plan: Plan) -> None:
    write(one="kind: base\nenv: [{set: {A: 1, B: 1}}]\n", two="kind: base\nenv: [{set: {B: 2}}]\n")
    write(here=f"name: here\nextends: [one, two]\n{BODY}")
    assert {key: value for key, value in variables(plan).items() if key in "AB"} == {"A": "1", "B": "2"}


def test_what_is_reached_twice_counts_once(write: Write, plan: Plan) -> None:
    write(root="kind: base\nprelude: [{module_load: [once]}]\n")
    write(one="kind: base\nextends: root\n", two="kind: base\nextends: root\n")
    write(here=f"name: here\nextends: [one, two]\n{BODY}")
    assert plan().script.count("module load once ||") == 1


def test_a_team_extends_the_profile_of_the_same_name(
    write: Write, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here=f"name: here\nenv: [{{set: {{A: system}}}}]\n{BODY}")
    team = tmp_path / "team"
    team.mkdir()
    (team / "here.yaml").write_text("name: here\nextends: here\nenv: [{set: {B: team}}]\n")
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", f"{team}:{tmp_path / 'shared'}")
    found = variables(plan)
    assert (found["A"], found["B"]) == ("system", "team")


def test_a_layer_adds_to_takes_from_and_replaces_what_is_below(write: Write, plan: Plan) -> None:
    write(below="kind: base\nlaunch: {srun_options: [--one, --two]}\nsbatch: {add: {a: 1, b: 2}, forbid: {mem: no}}\n")
    options = "launch: {srun_options+: [--three], srun_options-: [--one]}\nsbatch: {add-: [a], forbid=: {}}\n"
    write(here=f"name: here\nextends: below\n{options}{BODY}")
    ready = plan()
    assert ready.plan.step.options == ("--two", "--three")
    assert {line.option for line in ready.plan.directives} & {"a", "b", "mem"} == {"b", "mem"}


def test_null_takes_away_and_defaults_of_queue_and_node_class_count(write: Write, plan: Plan) -> None:
    write(below=f"kind: base\ndefaults: {{time: 5h, precision: bf16, launcher: srun}}\n{BODY}")
    more = "node_classes: {gpu: {defaults: {time: 4h}}}\nqueues: {gpu: {defaults: {time: 3h}}}\n"
    write(here=f"name: here\nextends: below\ndefaults: {{precision: null}}\n{more}")
    job = plan().loaded.resolved.job
    assert (job.time, job.precision, job.launcher.name) == (3 * 3600, None, "srun")
    assert plan(job="time: 1h\n").loaded.resolved.job.time == 3600


def test_the_account_may_come_from_the_shell_and_the_users_file_goes_before_it(
    write: Write, plan: Plan, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here=f"name: here\naccount: {{required: true, variables: [GRANT, OTHER]}}\n{BODY}")
    monkeypatch.setenv("OTHER", "grant2")
    assert plan().loaded.resolved.job.account == "grant2"
    user("sites: {here: {account: mine}}\n")
    assert plan().loaded.resolved.job.account == "mine"


def test_a_stack_is_the_lowest_layer_of_the_job(write: Write, plan: Plan) -> None:
    write(
        here=f"""name: here
stacks:
  '2025': {{environment: {{modules: [Stages/2025, GCC]}}, env: {{A: old}}, versions: {{nccl: "2.20"}}}}
  '2026': {{environment: {{modules: [Stages/2026]}}, env: {{A: new}}, versions: {{nccl: "2.28"}}}}
defaults: {{environment: {{modules+: [tools]}}}}
env: [{{set: {{NEW: 1}}, when: {{versions: {{nccl: ">=2.27"}}}}}}]
{BODY.replace("gpus: 4", "gpus: 4, stack: '2026'")}"""
    )

    def loaded(job: str) -> list[str]:
        return plan(job=job).loaded.resolved.job.environment.modules

    assert loaded("") == ["Stages/2026", "tools"]
    assert loaded("environment: {modules+: [mine]}\n") == ["Stages/2026", "tools", "mine"]
    assert loaded("environment: {modules: [mine]}\n") == ["mine"]
    assert loaded("environment: {stack: '2025'}\n") == ["Stages/2025", "GCC", "tools"]
    assert loaded("container: {image: a/b, runtime: pyxis}\n") == ["tools"]
    assert variables(plan)["NEW"] == "1"
    assert "NEW" not in variables(plan, "environment: {stack: '2025'}\n")
    assert "NEW" in variables(plan, "environment: {stack: '2025', versions: {nccl: '2.29'}}\n")


def test_a_template_is_filled_in_by_a_profile_or_the_user(
    write: Write, plan: Plan, user: User, refused: Refusing
) -> None:
    write(
        cloud=f"""name: cloud
kind: template
parameters:
  partition: {{about: the partition, pattern: '[a-z]+'}}
  nodes: {{default: '4'}}
{BODY.replace("partition: gpu", 'partition: "${param.partition}", limits: [{nodes: "1-${param.nodes}", time: 2h}]')}"""
    )
    write(here="name: here\nextends: cloud\nvalues: {partition: mine, nodes: 8}\n")
    assert "#SBATCH --partition=mine " in plan().script
    assert plan().loaded.resolved.site.queues["gpu"].limits[0].nodes == "1-8"
    assert codes(refused("cloud"))[0] == ("HL311", "cloud.yaml:4")
    user("profiles: {cloud: {values: {partition: theirs}}}\n")
    assert "#SBATCH --partition=theirs " in plan("cloud").script
    user("profiles: {cloud: {values: {partition: NO, other: x}}}\n")
    assert codes(refused("cloud")) == [("HL311", "user.yaml:1")] * 2


def test_the_copy_that_a_run_keeps_needs_no_other_file(write: Write, plan: Plan, user: User, tmp_path: Path) -> None:
    write(below='kind: base\nname: below\nenv: [{set: {A: "1.10", B: 0123}}]\n')
    write(
        here=f"name: here\nextends: below\nversions: {{nccl: 2.10}}\nprelude: [{{raw: 'echo \"hi\" # there'}}]\n{BODY}"
    )
    user("profiles: {here: {env: [{set: {C: user}}], launch: {srun_options+: [--x]}}}\n")
    trust([digest((tmp_path / "shared" / "here.yaml").read_text())], "here")
    first = plan()
    copy = tmp_path / "run" / "site.yaml"
    copy.parent.mkdir()
    copy.write_text(first.loaded.site_text)
    write(below="nonsense", here="nonsense")
    second = plan(str(copy))
    assert second.loaded.resolved.site == replace(first.loaded.resolved.site, recorded=True, extends=[])
    assert second.plan.step == first.plan.step
    assert [one.value for one in second.plan.variables] == [one.value for one in first.plan.variables]
    assert "below.yaml:3" in first.loaded.site_text


# --- Trust ---

RAW = f"name: here\nprelude: [{{raw: 'export X=\"$(date)\"'}}]\n{BODY}"


def test_a_raw_line_of_the_user_is_in_the_script_with_its_place(write: Write, plan: Plan, tmp_path: Path) -> None:
    own = tmp_path / "config" / "hpc-launch" / "sites" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(RAW.replace("here", "mine"))
    assert '    # A raw line, from mine.yaml:2:\n    export X="$(date)"\n' in plan("mine").script


def test_a_link_among_the_users_profiles_is_not_the_users_own(
    write: Write, refused: Refusing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(elsewhere=RAW)
    own = tmp_path / "config" / "hpc-launch" / "sites" / "here.yaml"
    own.parent.mkdir(parents=True)
    own.symlink_to(tmp_path / "shared" / "elsewhere.yaml")
    monkeypatch.delenv("HPC_LAUNCH_SITE_PATH")
    assert codes(refused()) == [("HL313", "here.yaml:2")]


def test_a_file_that_is_named_by_its_path_is_ones_own_but_not_what_it_extends(
    foreign: Write, plan: Plan, refused: Refusing, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(RAW)
    assert "A raw line" in plan("./x.yaml").script
    foreign(here=RAW)
    (tmp_path / "x.yaml").write_text("name: x\nextends: here\n")
    assert codes(refused("./x.yaml")) == [("HL313", "here.yaml:2")]


def test_explain_shows_the_layers_of_the_profile(write: Write, plan: Plan) -> None:
    write("bases", fabric="kind: base\nname: fabric\ngrade: C\nas_of: 2025-01-01\nfabric: {net: IB, hca: [a]}\n")
    write(here=f"name: here\nextends: fabric\nfabric: {{hca+: [b]}}\n{BODY}")
    lines = {line.key: (line.value, str(line.origin)) for line in explain_site(plan())}
    assert lines["site.fabric.net"][0] == "IB"
    assert lines["site.fabric.net"][1].startswith("[base fabric]")
    assert lines["site.fabric.net"][1].endswith("fabric.yaml:5:15 (third party, 2025-01-01)")
    assert lines["site.fabric.hca.1"][1].startswith("[site here]")
    assert lines["site.queues.gpu.partition"][0] == "gpu"


def test_folders_have_the_account_without_its_suffix(write: Write, plan: Plan) -> None:
    write(
        here=f"name: here\npaths: {{p: '/p/${{account}}'}}\n{BODY.replace('gpus: 4', 'gpus: 4, account_suffix: -gpu')}"
    )
    for account in ("m1", "m1-gpu"):
        ready = plan(job=f"account: {account}\nargs: {{data: '${{paths.p}}'}}\n")
        assert "--data /p/m1" in ready.script
        assert "#SBATCH --account=m1-gpu " in ready.script
