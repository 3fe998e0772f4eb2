"""What starts the nodes, and what it is told: chosen by the site and the job, and refused where it cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.plan.launch_plan import StepPlan
from hpc_launch.prepare.prepare import prepare_job, validate_job

SITE = """\
name: here
scheduler: slurm
node_classes: {gpu: {cpus: 32, gpus: 4}}
queues:
  gpu: {partition: gpu, node_class: gpu}
  whole: {partition: whole, node_class: gpu, exclusive: true}
"""
JOB = "name: x\nsite: here\nscript: train.py\n"
PDSH = "launcher: {name: deepspeed, multinode: pdsh}\n"


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "x.sif").write_text("")
    return folder


def step(folder: Path, site: str, job: str) -> StepPlan:
    (folder / "sites" / "here.yaml").write_text(SITE + site)
    (folder / "job.yaml").write_text(JOB + ("" if "nodes:" in job else "nodes: 2\n") + job)
    return prepare_job(folder / "job.yaml").plan.step


def codes(folder: Path, site: str, job: str) -> list[tuple[str, str, int | None]]:
    """Code, file and line of each fault; every one has a hint."""
    (folder / "sites" / "here.yaml").write_text(SITE + site)
    (folder / "job.yaml").write_text(JOB + ("" if "nodes:" in job else "nodes: 2\n") + job)
    found = [finding for finding in validate_job(folder / "job.yaml") if finding.severity == "error"]
    assert all(finding.hint for finding in found)
    return [(one.code, Path(one.place.file).name, one.place.line) for one in found if one.place is not None]


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        ("", "", StepPlan("srun")),
        ("launch: {step: ibrun}\n", "", StepPlan("ibrun")),
        ("launch: {step: mpirun, mpirun_options: [-v]}\n", "", StepPlan("mpirun", ("-v",))),
        ("launch: {step: mpirun, mpirun: hydra}\n", "launcher: srun\n", StepPlan("mpirun", hydra=True)),
        ("", PDSH, StepPlan("pdsh")),
        ("launch: {multinode: pdsh}\n", "launcher: deepspeed\n", StepPlan("pdsh")),
        ("launch: {multinode: pdsh}\n", "launcher: {name: deepspeed, multinode: no_ssh}\n", StepPlan("srun")),
        ("launch: {multinode: pdsh}\n", "", StepPlan("srun")),
        ("", "nodes: 1\n" + PDSH, StepPlan("srun")),  # one node needs no ssh
        ("", PDSH + "queue: whole\ngpus_per_node: 2\n", StepPlan("pdsh")),
        (
            "launch: {srun_options: [-v], cpu_bind: {node: none, process: cores}, gpu_bind: {process: none}}\n",
            "",
            StepPlan("srun", ("-v", "--cpu-bind=none")),
        ),
        (
            "launch: {cpu_bind: cores, mem_bind: local, gpu_bind: 'verbose,map_gpu:3,2,1,0', gpus_per_task: true}\n",
            "launcher: srun\n",
            StepPlan(
                "srun",
                ("--cpu-bind=cores", "--mem-bind=local", "--gpu-bind=verbose,map_gpu:3,2,1,0", "--gpus-per-task=1"),
            ),
        ),
        (
            "launch: {gpu_bind: none, gpus_per_task: true, gpu_sharing: true}\n",
            "launcher: srun\ngpus_per_node: 0\n",
            StepPlan("srun"),
        ),
        ("launch: {cpu_bind: {node: 'mask_cpu:0xffff'}}\n", "", StepPlan("srun", ("--cpu-bind=mask_cpu:0xffff",))),
        (
            "launch: {cpu_bind: 'mask_cpu:0xff*4'}\n",
            "launcher: srun\n",
            StepPlan("srun", ("--cpu-bind=mask_cpu:0xff*4",)),
        ),
    ],
)
def test_the_step(folder: Path, site: str, job: str, expected: StepPlan) -> None:
    assert step(folder, site, job) == expected


def binding(folder: Path, site: str, job: str) -> tuple[str | None, list[str]]:
    """How the job's own script binds the processes, and the options that the launcher or srun get for it."""
    (folder / "sites" / "here.yaml").write_text(SITE + site)
    (folder / "job.yaml").write_text(JOB + "nodes: 2\n" + job)
    plan = prepare_job(folder / "job.yaml").plan
    options = [word for word in (*plan.launcher_options, *plan.step.options) if "bind" in word]
    return (None if plan.binding is None else plan.binding.value), options


OWN = "launch: {numa_binding: node}\n"
TORCH = "environment: {torch: '2.9'}\n"


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        ("", "", ("exclusive", [])),
        ("", "launcher: deepspeed\n", ("exclusive", [])),
        ("", "launcher: srun\n", ("exclusive", ["--cpu-bind=none"])),
        ("launch: {gpu_bind: none}\n", "launcher: srun\n", ("exclusive", ["--cpu-bind=none", "--gpu-bind=none"])),
        ("launch: {step: mpirun}\n", "launcher: srun\n", ("exclusive", [])),
        (OWN, "", ("node", [])),
        (OWN, "environment: {torch: '2.8'}\n", ("node", [])),
        (OWN, TORCH, ("node", [])),  # torchrun's own way needs numactl, which the nodes may lack
        ("", TORCH + "launcher: {name: torchrun, numa_binding: socket}\n", (None, ["--numa-binding=socket"])),
        # Not where the site or the job says so, or another program binds the processes or hides their GPUs.
        ("launch: {numa_binding: off}\n", TORCH, (None, [])),
        (OWN, TORCH + "launcher: {name: torchrun, numa_binding: off}\n", (None, [])),
        ("launch: {cpu_bind: cores}\n", "launcher: srun\n", (None, ["--cpu-bind=cores"])),
        ("launch: {gpu_bind: closest}\n", "launcher: srun\n", (None, ["--gpu-bind=closest"])),
        ("launch: {gpus_per_task: true}\n", "launcher: srun\n", (None, [])),
        ("launch: {srun_options: [--cpu-bind=v]}\n", "launcher: srun\n", (None, ["--cpu-bind=v"])),
        ("launch: {step: ibrun}\n", "launcher: srun\n", (None, [])),
        # Nor where there is not a GPU for each process, or the program starts them.
        (OWN, TORCH + "gpus_per_node: 0\n", (None, [])),
        ("", "processes_per_node: 8\n", (None, [])),
        ("", "launcher: none\n", (None, [])),
    ],
)
def test_the_cpus_of_each_process(folder: Path, site: str, job: str, expected: tuple[str | None, list[str]]) -> None:
    assert binding(folder, site, job) == expected


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        ("launch: {step: ibrun}\n", "nodes: 2..3\n", ("HL480", "job.yaml", 4)),
        ("launch: {cpu_bind: {node: 'map_cpu:0'}}\n", "", ("HL482", "here.yaml", 7)),
        ("launch: {gpu_bind: {node: 'single:1'}}\n", "launcher: deepspeed\n", ("HL482", "here.yaml", 7)),
        ("launch: {step: ibrun, gpu_sharing: true}\n", "", ("HL484", "here.yaml", 7)),
        ("sbatch: {drop: [no-kill]}\n", "nodes: 2..3\n", ("HL480", "job.yaml", 4)),
        ("launch: {step: mpirun}\n", "spares: 1\n", ("HL490", "job.yaml", 5)),
        ("", "spares: 1\nlauncher: none\n", ("HL490", "job.yaml", 5)),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, site: str, job: str, expected: tuple[str, str, int]) -> None:
    assert codes(folder, site, job) == [expected]
