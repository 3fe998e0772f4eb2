"""What a profile says is what a script does: requests, options, linked settings, limits, accounts, variables, steps."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.base.findings import Finding
from hpc_launch.script.parts import MARKER
from tests.sites.conftest import Plan, Refusing, Write

NODE = "cpus: 64, memory: 256G, gpus: 4"


def profile(node: str = "", queue: str = "", top: str = "", scheduler: str = "slurm") -> str:
    return f"""name: here
scheduler: {scheduler}
node_classes:
  gpu: {{{NODE}{", " if node else ""}{node}}}
queues:
  gpu: {{node_class: gpu, partition: gpu{", " if queue else ""}{queue}}}
{top}
"""


def asked(ready: Any) -> dict[str, str | None]:
    return {line.option: line.value for line in ready.plan.directives}


def codes(findings: list[Finding] | tuple[Finding, ...]) -> list[str]:
    return [finding.code for finding in findings]


# --- Requests ---


@pytest.mark.parametrize(
    ("request_", "job", "option", "value"),
    [
        ("gpus-per-node", "", "gpus-per-node", "4"),
        ("gpus-per-node-type", "", "gpus-per-node", "A100fat:4"),
        ("gres", "", "gres", "gpu:4"),
        ("gres-type", "gpus_per_node: 2", "gres", "gpu:A100fat:2"),
        ("gpus", "", "gpus", "12"),
        ("gpus-type", "gpus_per_node: 1", "gpus", "A100fat:3"),
        ("gpus-per-task", "launcher: srun", "gpus-per-task", "1"),
        ("none", "", None, None),
    ],
)
def test_each_dialect_asks_for_gpus_once(  # noqa: PLR0917 - the columns of the table above
    request_: str, job: str, option: str | None, value: str | None, write: Write, plan: Plan
) -> None:
    write(here=profile(f"gpu_type: A100fat, gpu_request: {request_}"))
    found = {
        key: value for key, value in asked(plan(job=f"nodes: 3\n{job}\n")).items() if key.startswith(("gpu", "gres"))
    }
    assert found == ({option: value} if option else {})


@pytest.mark.parametrize(
    ("node", "queue", "job", "result"),
    [
        ("constraint: gpu", "", "", "gpu"),
        ("constraint: gpu", "constraint: big", "constraint: ib", "gpu&big&ib"),
        ("constraint: gpu", "constraint: gpu", "", "gpu"),
        ("constraint: a|b", "", "", "a|b"),
        ("constraint: a|b", "constraint: c", "", "(a|b)&c"),
        ("constraint: gpu", "", "options: [fast]", "gpu&nvme"),
        ("constraint: gpu", "", "sbatch: {constraint: mine}", "mine"),
        ("", "", "", None),
    ],
)
def test_all_constraints_must_hold(  # noqa: PLR0917 - the columns of the table above
    node: str, queue: str, job: str, result: str | None, write: Write, plan: Plan
) -> None:
    write(here=profile(node, queue, "options: {fast: {constraint: nvme}}"))
    assert asked(plan(job=job)).get("constraint") == result


@pytest.mark.parametrize(
    ("node", "queue", "account", "result"),
    [
        ("account_suffix: _g", "", "m1", "m1_g"),
        ("account_suffix: _g", "", "m1_g", "m1_g"),
        ("account_suffix: _g", "account_suffix: '@h100'", "m1", "m1@h100"),
        ("", "", "m1", "m1"),
    ],
)
def test_the_account_gets_the_suffix_of_its_hardware_once(  # noqa: PLR0917 - the columns of the table above
    node: str, queue: str, account: str, result: str, write: Write, plan: Plan
) -> None:
    write(here=profile(node, queue, f"account: {{pattern: '{result}'}}"))
    assert asked(plan(job=f"account: {account}\n"))["account"] == result


def test_the_pattern_is_held_against_the_account_as_charged(write: Write, refused: Refusing) -> None:
    write(here=profile("account_suffix: _g", top=r"account: {required: true, pattern: 'm\d+', find: 'run `projects`'}"))
    assert codes(refused(job="account: m1\n")) == ["HL303"]
    assert "run `projects`" in str(refused()[0].hint)


@pytest.mark.parametrize(
    ("queue", "job", "memory"),
    [
        ("memory: all", "", "0"),
        ("memory: omit", "", None),
        ("memory: forbidden", "", None),
        ("memory: per-gpu", "gpus_per_node: 2", "120G"),
        ("memory: share", "gpus_per_node: 2", "128G"),
        ("exclusive: true", "", "0"),
        ("exclusive: implied", "", "0"),
        ("exclusive: implied, memory: omit", "", None),
        ("memory: omit", "memory: 8G", "8G"),
    ],
)
def test_memory_by_the_mode_of_the_queue(queue: str, job: str, memory: str | None, write: Write, plan: Plan) -> None:
    write(here=profile("memory_per_gpu: 60G", queue))
    assert asked(plan(job=job)).get("mem") == memory


def test_whole_nodes_by_flag_or_by_nature(write: Write, plan: Plan, refused: Refusing) -> None:
    write(here=profile(queue="exclusive: true"))
    assert "exclusive" in asked(plan())
    write(here=profile("cpus_per_gpu: 10", queue="exclusive: implied"))
    assert "exclusive" not in asked(plan())
    assert asked(plan(job="gpus_per_node: 1\n"))["cpus-per-task"] == "64"
    write(here=profile("cpus_per_gpu: 10", queue="exclusive: forbidden"))
    assert asked(plan(job="gpus_per_node: 1\n"))["cpus-per-task"] == "10"
    assert codes(refused(job="sbatch: {exclusive: true}\n")) == ["HL548"]


def test_a_budget_counts_and_limits_by_gpus(write: Write, plan: Plan, refused: Refusing) -> None:
    write(here=profile("gpus_allowed: [1, 4]", "node_minutes: 90, gpus: 4-8"))
    plan(job="nodes: 2\ntime: 45m\n")
    assert codes(refused(job="nodes: 2\ntime: 46m\n")) == ["HL544"]
    assert codes(refused(job="gpus_per_node: 2\ntime: 1h\nretry: 1\n")) == ["HL545", "HL545"]
    assert codes(refused(job="nodes: 3\ntime: 30m\n")) == ["HL545"]
    write(here=profile(queue="limits: [{nodes: 1-, gpus: 1-4, time: 1h}, {nodes: 1-, gpus: 5-, time: 10m}]"))
    assert codes(refused(job="nodes: 2\ntime: 11m\n")) == ["HL402"]
    plan(job="nodes: 1\ntime: 1h\n")


def test_the_size_of_a_queue_bounds_a_job_where_the_site_states_no_limit(
    write: Write, plan: Plan, refused: Refusing
) -> None:
    row = "limits: [{nodes: 1-, time: 1h}]"
    write(here=profile(queue=row, top="status: documented"))
    assert "HL409" in codes(plan(job="nodes: 3\n").warnings)
    write(here=profile(queue=f"size: 3, {row}", top="status: documented"))
    assert codes(plan(job="nodes: 3\n").warnings) == []
    (finding,) = refused(job="nodes: 4\n")
    assert (finding.code, finding.hint) == ("HL407", "it has 3 nodes")


def test_bad_nodes_come_from_the_profile_and_its_file(write: Write, plan: Plan, tmp_path: Path) -> None:
    listed = tmp_path / "bad"
    listed.write_text("# since May\nn7 # fan\n\nn[3-4]\n")
    write(here=profile(top=f"bad_nodes: {{nodes: [n1], file: {listed}}}"))
    recovery = plan(job="exclude: [n9]\n").plan.recovery
    assert (recovery.exclude, recovery.listed) == (("n9", "n1"), ("n7", "n3", "n4"))
    assert asked(plan(job="exclude: [n9]\n"))["exclude"] == "n9,n1"
    listed.unlink()
    assert plan().plan.recovery.listed == ()
    assert asked(plan())["exclude"] == "n1"


SUCCESSORS = [
    ("time: 1h\n", "slurm", True),
    ("time: 59m\n", "slurm", False),
    ("time: 59m\nretry: {successor: on}\n", "slurm", True),
    ("time: 1h\nretry: {successor: off}\n", "slurm", False),
    ("time: 1h\nretry: 1\n", "slurm", False),
    ("time: 1h\n", "{type: slurm, successor: false}", False),
    ("time: 1h\nretry: {successor: on, max_attempts: 1}\n", "slurm", None),
    ("time: 1h\nretry: {successor: on}\n", "{type: slurm, successor: false}", None),
    ("time: 1h\nretry: {successor: on}\n", "local", None),
    ("time: 1h\n", "local", False),
]


@pytest.mark.parametrize("case", SUCCESSORS)
def test_the_next_job_waits_while_a_long_one_trains(
    write: Write, plan: Plan, refused: Refusing, case: tuple[str, str, bool | None]
) -> None:
    keys, scheduler, expected = case
    write(here=profile().replace("scheduler: slurm", f"scheduler: {scheduler}"))
    if expected is None:
        assert codes(refused(job=f"{keys}progress: {{step: 'step (.)'}}\n")) == ["HL536"]
        return
    ready = plan(job=keys)
    assert ready.plan.recovery.successor is expected
    assert (" end_successor " in ready.script) is expected


# --- Options ---


def test_a_segment_is_within_the_nodes_that_nvlink_connects(write: Write, plan: Plan) -> None:
    write(here=profile("nvlink_nodes: 18"))
    wide = "nodes: 32\nparallel: {tp: 8}\n"
    assert codes(plan(job=f"{wide}sbatch: {{segment: 16}}\n").warnings) == []
    assert codes(plan(job=wide).warnings) == ["HL654"]
    assert codes(plan(job=f"{wide}sbatch: {{segment: 32}}\n").warnings) == ["HL543"]


def test_options_are_added_dropped_and_renamed_and_the_job_has_the_last_word(write: Write, plan: Plan) -> None:
    options = "{add: {network: x, comment: site}, drop: [open-mode, licenses], rename: {gpus-per-node: gpus}}"
    write(here=profile("sbatch: {comment: node}", "sbatch: {reservation: r}", f"sbatch: {options}"))
    found = asked(plan(job="sbatch: {licenses: mine}\n"))
    assert (found["network"], found["comment"], found["reservation"], found["gpus"]) == ("x", "node", "r", "4")
    assert found["licenses"] == "mine"
    assert not {"open-mode", "gpus-per-node"} & set(found)


@pytest.mark.parametrize(
    ("top", "job", "code"),
    [
        ("sbatch: {forbid: {gpus-per-node: whole}}", "", "HL540"),
        ("srun: {forbid: {gres: x}}\nlaunch: {srun_options: ['--gres=gpu:1']}", "", "HL540"),
        ("srun: {require: {mpi: x}}", "", "HL541"),
        ("launchers: {torchrun: forbidden}", "", "HL549"),
        ("stacks: {a: {}}", "environment: {stack: b}", "HL319"),
    ],
)
def test_what_the_site_refuses_or_wants(top: str, job: str, code: str, write: Write, refused: Refusing) -> None:
    write(here=profile(top=top, scheduler="{type: slurm, version: '23.11'}"))
    assert codes(refused(job=job)) == [code]


def test_srun_gets_options_of_site_launcher_node_queue_and_option(write: Write, plan: Plan) -> None:
    top = (
        "srun: {add: {a: 1, b: true}}\nlaunchers: {srun: {srun_options: [--c]}}\noptions: {x: {srun_options: [--f]}}\n"
    )
    write(here=profile("srun_options: [--d]", "srun_options: [--e]", f"{top}launch: {{srun_options: [--z]}}"))
    options = " ".join(plan(job="launcher: srun\noptions: [x]\n").plan.step.options)
    assert options == "--z --a=1 --b --c --d --e --f --cpu-bind=none"
    assert " ".join(plan().plan.step.options) == "--z --a=1 --b --d --e"


def test_advice_against_a_launcher_is_a_warning(write: Write, plan: Plan) -> None:
    write(here=profile(top="launchers: {torchrun: {use: discouraged, why: slow}, srun: recommended}"))
    assert codes(plan().warnings) == ["HL549"]
    assert codes(plan(job="launcher: srun\n").warnings) == []


def test_where_jobs_are_submitted_from(write: Write, plan: Plan, tmp_path: Path) -> None:
    write(here=profile(scheduler=f"{{type: slurm, submit_from: ['{tmp_path.parent}/*'], submit_hosts: ['*']}}"))
    assert codes(plan().warnings) == []
    write(here=profile(scheduler="{type: slurm, submit_from: [/nowhere], submit_hosts: [gpu-login*]}"))
    assert codes(plan().warnings) == ["HL320"]


# --- Linked settings ---

ALT_READ = """rules:
  - given: {env: {PROTO: alt_read}}
    when: {nodes: ">1"}
    needs: {env: {TABLE: "1"}, sbatch: {network: disable_rdzv_get}}
    add: ADD
"""


def test_a_missing_part_is_added_where_the_site_says_so(write: Write, plan: Plan) -> None:
    write(here=profile(top=ALT_READ.replace("ADD", "true")))
    ready = plan(job="nodes: 2\nenv: {PROTO: alt_read}\n")
    assert asked(ready)["network"] == "disable_rdzv_get"
    assert "export TABLE=1  " in ready.script
    assert "here.yaml:8: with PROTO=alt_read" in ready.script
    for job in ("nodes: 2\n", "nodes: 2\nenv: {PROTO: default}\n", "env: {PROTO: alt_read}\n"):
        assert "network" not in asked(plan(job=job))


def test_a_missing_part_refuses_the_job_otherwise(write: Write, plan: Plan, refused: Refusing) -> None:
    write(here=profile(top=ALT_READ.replace("ADD", "false")))
    assert codes(refused(job="nodes: 2\nenv: {PROTO: alt_read}\n")) == ["HL542", "HL542"]
    whole = "nodes: 2\nenv: {PROTO: alt_read, TABLE: 1}\nsbatch: {network: disable_rdzv_get}\n"
    plan(job=whole)


def test_an_option_may_need_a_variable_and_two_settings_may_not_go_together(write: Write, refused: Refusing) -> None:
    excludes = "excludes: {env: {B: '*'}, sbatch: {x: true}}"
    write(here=profile(top=f"rules: [{{given: {{sbatch: {{network: '*'}}}}, needs: {{env: {{A: '*'}}}}, {excludes}}}]"))
    found = refused(job="sbatch: {network: a, x: true}\nenv: {B: 1}\n")
    assert codes(found) == ["HL542", "HL543", "HL543"]


# --- Variables and steps ---


def variables(ready: Any) -> dict[str, str | None]:
    return {one.name: None if one.value is None else "".join(map(str, one.value)) for one in ready.plan.variables}


def test_fabric_and_caches_become_variables_and_a_node_class_says_its_own(write: Write, plan: Plan) -> None:
    top = """fabric:
  {nccl_interfaces: [ib0, ib1], family: AF_INET, hca: [mlx5_0], net: IB, topology: /a, topology_inside: /b}
paths: {scratch: /s}
caches: {huggingface: '${paths.scratch}/hf', MY_CACHE: /c, torch: '${env.NOT_SET_HERE}/t'}
"""
    write(here=profile("fabric: {hca: ['=mlx5_2', mlx5_3]}", top=top))
    found = variables(plan())
    assert found["NCCL_SOCKET_IFNAME"] == "ib0,ib1"
    assert found["NCCL_IB_HCA"] == "=mlx5_2,mlx5_3"
    assert (found["NCCL_NET"], found["NCCL_SOCKET_FAMILY"], found["NCCL_TOPO_FILE"]) == ("IB", "AF_INET", "/a")
    assert (found["HF_HOME"], found["MY_CACHE"]) == ("/s/hf", "/c")
    assert "TORCH_HOME" not in found, "its path needs a variable that this user has not"
    assert variables(plan(job="container: {image: a/b, runtime: pyxis}\n"))["NCCL_TOPO_FILE"] == "/b"


def test_a_cache_is_set_only_if_its_condition_holds(write: Write, plan: Plan) -> None:
    write(here=profile(top="caches: {triton: {path: /dev/shm/t, when: {container: false}}}\n"))
    assert variables(plan())["TRITON_CACHE_DIR"] == "/dev/shm/t"
    assert "TRITON_CACHE_DIR" not in variables(plan(job="container: {image: a/b, runtime: pyxis}\n"))


LIBRARIES = {"huggingface": "HF_HOME", "torch": "TORCH_HOME", "UV_CACHE_DIR": "UV_CACHE_DIR"}
DEFAULTS = ", ".join(f"{name}: {{path: '${{paths.scratch}}/c/{name}', default: true}}" for name in LIBRARIES)


def caches(ready: Any) -> dict[str, str | None]:
    return {name: value for name, value in variables(ready).items() if name in LIBRARIES.values()}


def test_default_caches_are_below_one_private_folder(write: Write, plan: Plan) -> None:
    write(here=profile(top=f"paths: {{scratch: '/s/${{user}}'}}\ncaches: {{{DEFAULTS}}}\n"))
    ready = plan()
    user = ready.loaded.resolved.names["user"]
    assert caches(ready) == {variable: f"/s/{user}/c/{name}" for name, variable in LIBRARIES.items()}
    words = "HF_HOME=huggingface TORCH_HOME=torch UV_CACHE_DIR=UV_CACHE_DIR"
    assert f"private_caches /s/{user}/c {words} " in ready.script
    assert "export HF_HOME" not in ready.script


def test_the_job_and_the_profile_choose_other_caches(write: Write, plan: Plan) -> None:
    write(here=profile(top=f"paths: {{scratch: /s}}\ncaches: {{{DEFAULTS}}}\nenv: [{{set: {{TORCH_HOME: /t}}}}]\n"))
    ready = plan(job="env: {HF_HOME: mine}\n")
    assert caches(ready) == {"HF_HOME": "mine", "TORCH_HOME": "/t", "UV_CACHE_DIR": "/s/c/UV_CACHE_DIR"}
    assert "private_caches /s/c UV_CACHE_DIR=UV_CACHE_DIR " in ready.script


def test_a_site_without_the_folder_has_no_default_caches(write: Write, plan: Plan) -> None:
    write(here=profile(top=f"paths: {{work: /w}}\ncaches: {{{DEFAULTS}}}\n"))
    ready = plan()
    assert caches(ready) == {}
    assert "private_caches" not in ready.script


def test_default_caches_in_an_image_need_their_folder_there(write: Write, plan: Plan) -> None:
    image, top = "container: {image: a/b, runtime: pyxis}\n", f"paths: {{scratch: /s}}\ncaches: {{{DEFAULTS}}}\n"
    write(here=profile(top=f"{top}containers: {{binds: [/srv]}}\n"))
    assert caches(plan(job=image)) == {}
    write(here=profile(top=f"{top}containers: {{binds: [/srv, /s]}}\n"))
    assert caches(plan(job=image)).keys() == set(LIBRARIES.values())


@pytest.mark.parametrize(
    ("args", "threads"),
    [
        ("", "8"),
        ("args: {num-workers: 3}\n", "5"),
        ("args: {--dataloader_num_workers: 2}\n", "6"),
        ("args: [--workers, 4, --x]\n", "4"),
        ("args: [-x, --num_workers=20]\n", "1"),
        ("args: {num_workers: [1, 2]}\n", "8"),
        ("args: {num-workers: 3}\nenv: {OMP_NUM_THREADS: 7}\n", "7"),
    ],
)
def test_threads_are_the_cores_of_a_process_less_its_data_workers(
    write: Write, plan: Plan, args: str, threads: str
) -> None:
    write(here=profile("threads_per_core: 2", top=""))
    assert variables(plan(job=f"cpus_per_node: 64\n{args}"))["OMP_NUM_THREADS"] == threads
    write(here=profile(top="env: [{set: {OMP_NUM_THREADS: 2}}]\n"))
    assert variables(plan(job=args.partition("env:")[0]))["OMP_NUM_THREADS"] == "2", "the centre's number"


@pytest.mark.parametrize(
    ("fabric", "job", "proof"),
    [
        ("fallback: fatal", "", {"--full", "--quick", "--fabric=Slingshot", "--transport=fatal"}),
        ("fallback: named", "preflight: full\n", {"--full", "--fabric=Slingshot", "--transport=named"}),
        ("fallback: fatal", "nodes: 1\n", set()),
        ("fallback: fatal", "env: {NCCL_NET: Socket}\n", set()),
        ("net: AWS Libfabric", "", set()),
    ],
)
def test_the_node_check_proves_the_network_that_a_profile_demands(
    write: Write, plan: Plan, fabric: str, job: str, proof: set[str]
) -> None:
    write(here=profile(top=f"fabric: {{kind: slingshot, {fabric}}}\n"))
    check = plan(job=job if "nodes:" in job else f"nodes: 2\n{job}").plan.node_check
    assert check is not None
    found = {one for one in check.expects if one.startswith(("--full", "--quick", "--fabric", "--transport"))}
    assert found == proof


def test_the_order_of_variables(write: Write, plan: Plan) -> None:
    site = "env: [{set: {A: s, B: s, C: s, D: s, E: s}}, {set: {E: again}}, {drop: [D]}]\ndefaults: {env: {C: d}}\n"
    write(here=profile("env: [{set: {B: n}}]", "env: [{set: {B: q}, when: {nodes: '>9'}}]", site))
    found = variables(plan(job="env: {A: job}\n"))
    assert (found["A"], found["B"], found["C"], found["E"]) == ("job", "n", "d", "again")
    assert "D" not in found


def test_a_folder_that_needs_an_option_asks_for_it(write: Write, plan: Plan) -> None:
    top = (
        "paths: {local: {path: '${shell.BB}/x', node_local: true, option: nvme}}\noptions: {nvme: {constraint: nvme}}\n"
    )
    write(here=profile(top=top))
    assert "constraint" not in asked(plan())
    ready = plan(job="args: {cache: '${paths.local}/c'}\n")
    assert asked(ready)["constraint"] == "nvme"
    assert '--cache "$BB"/x/c' in ready.script


def test_what_only_the_job_knows_cannot_stand_where_it_must_be_known_before(write: Write, refused: Refusing) -> None:
    write(here=profile(top="paths: {local: {path: '${shell.BB}'}}"))
    found = refused(job="run_dir: ${paths.local}/runs\n")
    assert codes(found) == ["HL207"]
    assert "${shell.BB}" in found[0].message


def test_a_fact_of_a_third_party_says_so(write: Write, plan: Plan) -> None:
    top = """grade: A
facts: {queues: {grade: C, as_of: 2025-01-02, source: a forum}}
env: [{set: {A: 1}}, {set: {B: 1}, fact: {grade: C, as_of: 2024-05-06}, why: it hangs}]
"""
    write(here=profile(top=top))
    lines = plan().script.splitlines()
    assert any(
        line.startswith("#SBATCH --partition=gpu") and line.endswith("third party, 2025-01-02") for line in lines
    )
    assert any(line.startswith("    export A=1") and line.endswith("here.yaml:9") for line in lines)
    assert any(
        line.startswith("    export B=1") and line.endswith("third party, 2024-05-06; it hangs") for line in lines
    )
    assert "# here.yaml: queues: third party, 2025-01-02; a forum" in lines


def test_hostile_texts_of_a_profile_stay_text(write: Write, plan: Plan, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = f"$(touch {mark})`touch {mark}`'; touch {mark} #"
    quoted = "'" + evil.replace("'", "''") + "'"
    steps = f"prelude: [{{set: {{A: {quoted}}}}}, {{mkdir: [{quoted}]}}, {{mkdir: [{quoted}], where: nodes}}]\n"
    notes = f"env: [{{set: {{B: {quoted}}}, why: {quoted}}}]\ncaches: {{X: {quoted}}}\n"
    facts = f"facts: {{env: {{grade: C, source: {quoted}}}}}\n"
    write(here=profile(top=steps + notes + facts, scheduler="local"))
    script = plan().script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    shell = (
        f'die() {{ :; }}; cd {tmp_path}\n{script.partition(MARKER)[0]}\njob_environment\nprintf \'%s|%s\' "$A" "$B"\n'
    )
    ran = subprocess.run(["bash", "-c", shell], text=True, capture_output=True, check=False)
    assert ran.stdout == f"{evil}|{evil}"
    assert not mark.exists()


def test_the_head_of_the_script_tells_what_a_user_should_know(write: Write, plan: Plan) -> None:
    queue = "access: ask first, preemption: {grace: 5m, signal: SIGTERM, exempt: 10m, requeued: true}"
    paths = "paths: {scratch: {path: /s, purge_days: 30}, other: {path: /o, purge_days: 9}}"
    write(here=profile(queue=queue, top=paths))
    head = plan(job="args: {data: '${paths.scratch}/d'}\n").script.partition("# === ")[0].splitlines()
    assert "# Queue gpu: ask first" in head
    stopped = "00:05:00 after SIGTERM; not within the first 00:10:00; Slurm requeues it"
    assert f"# Queue gpu may preempt this job: {stopped}." in head
    assert "# Files in /s are purged after 30 days." in head
    assert not any("/o" in line for line in head)
