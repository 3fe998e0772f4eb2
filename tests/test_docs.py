"""The pages tell the truth, as far as a program can check it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from msgspec import Struct
from msgspec.structs import fields

from docs.json_schema import DRAFT
from docs.picture import IMAGE, picture, words
from hpc_launch.agent.folders import file_system
from hpc_launch.base.errors import Unreachable
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.cli.main import VERBS, group
from hpc_launch.job.job import JobSpec
from hpc_launch.performance.time_account import CATEGORIES, time_account
from hpc_launch.prepare import check_files
from hpc_launch.prepare.prepare import validate_job
from hpc_launch.runs.status.run_status import RUN_STATES
from hpc_launch.schedulers.ssh.ssh_hosts import on_host
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.view.state_text import time_json
from tests.forked import hpc_launch_text
from tests.plugin_package import install, on_path
from tests.view.samples import status

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"


def _pages() -> list[Path]:
    tops = [REPOSITORY, *(REPOSITORY / name for name in ("docs", "examples", "benchmarks", "tests", "containers"))]
    found = [page for top in tops for page in top.glob("*.md" if top == REPOSITORY else "**/*.md")]
    return sorted(found)


PAGES = [str(page.relative_to(REPOSITORY)) for page in _pages()]


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_a_run_shows_what_the_terminal_does() -> None:
    assert words(picture()) == words(IMAGE.read_text("utf-8")), "run `make docs`"


def test_generated_pages_are_in_step() -> None:
    stale = [path.name for path, text in generate().pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


@pytest.mark.parametrize("kind", [JobSpec, SiteProfile])
def test_every_key_says_what_it_is_for(kind: type[Struct]) -> None:
    module = generate()
    for one in {kind, *(inner for _, inner in module._below("", kind))}:
        hints = get_type_hints(one, include_extras=True)
        described = {
            field.name: module._description(one, field.encode_name, hints[field.name]) for field in fields(one)
        }
        assert all(described.values()), described


# --- Links, commands, examples ---


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().replace(" ", "-")
        anchor = "".join(character for character in plain if character.isalnum() or character in "-_")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found[f"{anchor}-{found[anchor]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (REPOSITORY / page).parent / name if name else REPOSITORY / page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_with_their_options(page: str) -> None:
    text = text_of(page)
    spans = re.findall(r"`(hpc-launch [^`\n]+)`", prose(text))
    lines = [line for block in blocks(text, "sh") for line in block.splitlines() if line.startswith("hpc-launch ")]
    for command in spans + lines:
        _check_command(command)


def _commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command with its words, and all those below it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, (*path, name)
            yield from _commands(inner, *path, name)


COMMANDS = {" ".join(path): command for path, command in _commands(group) if path}


def test_the_forms_of_config_are_among_the_commands() -> None:
    forms = "deepspeed fsdp megatron hostfile launcher slurm"
    inner = {*(f"config {form}" for form in forms.split())}
    inner |= {f"nodes {name}" for name in "list ticket clear leases".split()}
    inner |= {"clusters add", "clusters list", "containers build", "containers pull", "containers check", "notify test"}
    inner |= {f"sites {name}" for name in "list show diff detect learn check add update remove".split()}
    assert {*VERBS, *inner} == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_an_example_in_its_help_that_would_run(path: str) -> None:
    text = (COMMANDS[path].help or "").replace("\\\n", " ")
    examples = re.findall(r"^ *(hpc-launch .*)$", text, re.MULTILINE)
    assert any(f"{example} ".startswith(f"hpc-launch {path} ") for example in examples)
    for example in examples:
        _check_command(example)


def _check_command(line: str) -> None:
    words = shlex.split(re.split(r" [|#>] | >> ", line)[0], comments=True)
    if words[1].startswith("-"):
        return
    words = words[: words.index("--")] if "--" in words else words
    command: click.Command | None = group
    depth = 1
    while isinstance(command, click.Group) and depth < len(words) and re.match(r"[a-z]", words[depth]):
        command = command.get_command(click.Context(command), words[depth])
        depth += 1
    assert command is not None, line
    assert command is not group, line
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if command.context_settings.get("ignore_unknown_options"):
        return  # they are arguments: `explain JOB --cpus-per-task`
    used = {word.partition("=")[0] for word in words[depth:] if re.match(r"--?[a-z]", word)}
    assert used <= known | {"--help"}, line


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    text = text_of(page)
    named = re.findall(r"`make ([a-z-]+)", prose(text))
    named += [match for block in blocks(text, "sh") for match in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)]
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_no_page_names_a_folder_of_the_machine_it_was_written_on(page: str) -> None:
    assert not re.findall(rf"{re.escape(str(REPOSITORY))}\b|/root/|/tmp/", text_of(page))


@pytest.mark.parametrize("page", ["README.md", "docs/reference/verbs.md"])
def test_every_verb_is_there(page: str) -> None:
    found = re.findall(r"^(?:\| `|## )([a-z]+)", text_of(page), re.MULTILINE)
    assert set(VERBS) <= set(found)


YAML_BLOCKS = [(page, block) for page in PAGES for block in blocks(text_of(page), "yaml")]
JOBS = [(page, block) for page, block in YAML_BLOCKS if re.search(r"^(script|module|command):", block, re.MULTILINE)]
SITES = {page: block for page, block in YAML_BLOCKS if "node_classes:" in block}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project in it, in which the test then is."""
    project = tmp_path / "project"
    for folder in (project, tmp_path / "venvs" / "train" / "bin"):
        folder.mkdir(parents=True)
    (project / "train.py").touch()
    (tmp_path / "venvs" / "train" / "bin" / "activate").touch()
    for name in ("XDG_CONFIG_HOME", "HPC_LAUNCH_SITE", "HPC_LAUNCH_SITE_PATH", "HPC_LAUNCH_HOME", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(project)
    return tmp_path


def test_there_are_jobs_and_sites_to_look_at() -> None:
    assert {page for page, _ in JOBS} >= {"README.md", "docs/reference/job-file.md"}
    assert set(SITES) >= {"README.md", "docs/reference/site-profile.md"}


@pytest.mark.parametrize(("page", "block"), JOBS)
def test_job_files_on_the_pages_are_right(page: str, block: str, home: Path) -> None:
    Path("job.yaml").write_text(block, encoding="utf-8")
    Path("site.yaml").write_text(SITES.get(page, SITES["docs/reference/site-profile.md"]), encoding="utf-8")
    assert [str(finding) for finding in validate_job(Path("job.yaml"), site="./site.yaml")] == []
    _fits(block, "job")


@pytest.mark.parametrize("page", SITES)
def test_site_profiles_on_the_pages_fit_their_schema(page: str) -> None:
    _fits(SITES[page], "site")


def _fits(block: str, schema: str) -> None:
    # As an editor that reads YAML 1.2: 12:00:00 is text, and so are 2026-08-01 and `on`.
    texts = r"(\d+:\d\d:\d\d|\b\d{4}-\d\d-\d\d|\bon)\b(?=:? |[,}\n]|:$)"
    value = yaml.safe_load(re.sub(texts, r"'\1'", block, flags=re.MULTILINE))
    _validator(schema).validate(value)


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    found = json.loads((DOCS / "schema" / f"{schema}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"] == DRAFT
    return jsonschema.Draft202012Validator(found)


# --- How a run works, JSON ---


def test_excerpts_of_the_script_are_in_a_golden_script() -> None:
    golden = [path.read_text() for path in (REPOSITORY / "tests" / "golden" / "expected").glob("*.sh")]
    golden += [path.read_text() for path in (REPOSITORY / "slurm_templates" / "parts").glob("*.sh")]
    shown = blocks(text_of("docs/explanation/the-script.md"), "bash")
    assert len(shown) > 5
    assert not [block for block in shown if not any(block in script for script in golden)]


@pytest.mark.parametrize("page", ["docs/explanation/concepts.md", "docs/reference/json.md"])
def test_every_state_of_a_run_is_explained(page: str) -> None:
    assert not [state for state in RUN_STATES if state not in text_of(page)]


def test_the_fields_of_status_are_those_of_the_page() -> None:
    (shown,) = (block for block in blocks(text_of("docs/reference/json.md"), "json") if "state_source" in block)
    told, real = json.loads(shown), {**status().as_json(), **time_json(time_account([], 0, 1))}
    assert list(told) == list(real)
    assert list(told["attempts"][0]) == list(real["attempts"][0])
    assert list(told["progress"]) == list(real["progress"])
    assert list(told["time"]) == list(real["time"])
    assert not [category for category in CATEGORIES if f"| `{category}` |" not in text_of("docs/how-to/goodput.md")]


# --- Findings ---

MINI = """
name: mini
scheduler: slurm
node_classes:
  gpu: {cpus: 64, memory: 256G, gpus: 4}
queues:
  gpu: {node_class: gpu, partition: gpu, limits: [{nodes: 1-8, time: 24:00:00}]}
""".lstrip()
H100 = MINI.replace("gpus: 4", "gpus: 4, gpu_type: h100, gpu_memory: 80G")
TINY = "name: tiny\nscript: train.py\n"
APART = MINI.replace("slurm", "{type: ssh, shared_folders: false, hosts: {n1: 4, n2: 4}}")
LINKED = """
rules:
  - given: {env: {FI_CXI_RDZV_PROTO: alt_read}}
    needs: {sbatch: {network: disable_rdzv_get}}
    why: the driver must not do it too
""".lstrip()
EXCLUDING = "rules: [{excludes: {env: {NCCL_NET_PLUGIN: '*'}}, why: the module sets it}]\n"
STAGE_2 = '{"zero_optimization": {"stage": 2}, "train_batch_size": 64}'


@dataclass(frozen=True)
class Bad:
    """A job that provokes a finding. `own` is the text of `own.json` beside it, `package` that of the module of a
    package that adds the launcher `mine`."""

    job: str | bytes | None
    site: str | None = MINI
    sets: Sequence[str] = field(default=())
    own: str | None = None
    package: str | None = None


BAD = {
    "HL001": Bad(None),
    "HL002": Bad("name: tiny\nargs: {lr: 3e-4\nscript: train.py\n"),
    "HL003": Bad("name: tiny\nnodes: 2\nscript: train.py\nnodes: 4\n"),
    "HL004": Bad("name: tiny\nargs:\n\tlr: 3e-4\n"),
    "HL005": Bad("- name: tiny\n"),
    "HL006": Bad("name: tiny\nscript: !!python/name:os.system train.py\n"),
    "HL007": Bad(b"name: tiny\n# caf\xe9\n"),
    "HL010": Bad(TINY + "signal_before: 5m\n"),
    "HL011": Bad(TINY + "time: soon\n"),
    "HL012": Bad("script: train.py\n"),
    "HL013": Bad(TINY + "launcher: torchrum\n"),
    "HL014": Bad(TINY + "time: 12:00\n"),
    "HL020": Bad(TINY, sets=["nodes"]),
    "HL021": Bad(TINY + "environment: {modules+: CUDA/12}\n"),
    "HL201": Bad("name: tiny\nscript: trian.py\n"),
    "HL202": Bad(TINY + "module: my.train\n"),
    "HL203": Bad('name: tiny\ncommand: "echo \'hi"\n'),
    "HL204": Bad(TINY + "env: {WORLD_SIZE: 8}\n"),
    "HL205": Bad(TINY + f"args: {{prompt: {'a' * 100_001}}}\n"),
    "HL206": Bad(TINY + 'args: {data: "${paths.scrach}/data"}\n'),
    "HL207": Bad(TINY + "workdir: ${run.dir}\n"),
    "HL208": Bad(TINY + "nodes: 3\ngpus: 8\n"),
    "HL209": Bad(TINY + "environment: {modules: [--force]}\n"),
    "HL211": Bad(TINY + "env: {WANDB_API_KEY: abc}\n"),
    "HL219": Bad(TINY + "args: {data: $SCRATCH/corpus}\n"),
    "HL212": Bad(TINY + "args: {model: {layers: 4}}\n"),
    "HL213": Bad(TINY + "run_dir: /scratch/50%/runs\n"),
    "HL215": Bad(TINY + r"progress: {step: 'step \d+'}"),
    "HL217": Bad(TINY + "sweep: {grid: {args.lr: [0.1, 1e-1]}}\n"),
    "HL221": Bad(TINY + "data: {from: part-*, shard: true, how: mount}\n"),
    "HL220": Bad("name: pair\nroles: {train: {script: train.py}}\n"),
    "HL218": Bad(TINY + "jobs: {train: {after: prep}, prepare: {}}\n"),
    "HL301": Bad(TINY + "site: locl\n", site=None),
    "HL302": Bad(TINY + "queue: gpus\n"),
    "HL303": Bad(TINY, site=MINI + "account: {required: true}\n"),
    "HL304": Bad(TINY, site=MINI.replace("node_class: gpu", "node_class: a100")),
    "HL305": Bad(TINY, site=MINI + "network: {ports: [29500, 61000]}\n"),
    "HL306": Bad(TINY + "account: me\n", site=MINI + "account: {pattern: 'proj[0-9'}\n"),
    "HL308": Bad(TINY, site=MINI + "extends: slingshoot\n"),
    "HL309": Bad(TINY, site=MINI + "extends: ../../shared/base\n"),
    "HL310": Bad(TINY, site=MINI + "kind: base\n"),
    "HL311": Bad(TINY, site=MINI + "parameters: {partition: {about: the partition of the GPU nodes}}\n"),
    "HL314": Bad(TINY, site=MINI + "prelude: [{modules: purge, module_load: [CUDA/12]}]\n"),
    "HL315": Bad(TINY, site=MINI.replace("time: 24:00:00}", "time: 24:00:00}, {nodes: 8-16, time: 6:00:00}")),
    "HL316": Bad(TINY, site=MINI.replace("gpus: 4", "gpus: 4, stack: '2026'")),
    "HL317": Bad(TINY, site=MINI + "env: [{set: {WANDB_API_KEY: abc}}]\n"),
    "HL318": Bad(TINY, site=MINI + "lifecycle: {state: retired, retires_on: 2026-08-31, successor: maxi}\n"),
    "HL319": Bad(TINY + "options: [nvme]\n", site=MINI + "options: {quiet: {constraint: thp_never}}\n"),
    "HL320": Bad(TINY, site=MINI.replace("scheduler: slurm", "scheduler: {type: slurm, submit_from: ['/scratch/*']}")),
    "HL323": Bad(TINY + "launcher: mine\n", package="import their_cluster\n"),
    "HL401": Bad(TINY + "gpus_per_node: 8\n"),
    "HL402": Bad(TINY + "time: 48:00:00\n"),
    "HL403": Bad(TINY + "time: 5m\ncheckpoint: {signal_before: 10m}\n"),
    "HL404": Bad(TINY + "cpus_per_node: 128\n"),
    "HL405": Bad(TINY + "memory: 512G\n"),
    "HL406": Bad(TINY + "processes_per_node: 3\n"),
    "HL407": Bad(TINY + "nodes: 16\ntime: 1h\n"),
    "HL409": Bad(
        TINY + "nodes: 64\ntime: 10m\n",
        site=re.sub(r", limits: \[.*?\]", "", MINI) + "status: documented\n",
    ),
    "HL408": Bad(TINY + "nodes: 4000\n", site="local"),
    "HL410": Bad(TINY + 'sbatch: {"--mail-type": END}\n'),
    "HL411": Bad(TINY + "sbatch: {time: 1h}\n"),
    "HL412": Bad(TINY + "sbatch: {comment: 'say \"hi\"'}\n"),
    "HL420": Bad(TINY + "launcher: srun\n", site="local"),
    "HL421": Bad(TINY + "launcher: {name: deepspeed, max_restarts: 2}\n"),
    "HL422": Bad(TINY + "nodes: 2..4\nlauncher: deepspeed\n"),
    "HL423": Bad(TINY + "launcher: {name: torchrun, rendezvous: static, max_restarts: 2}\n"),
    "HL424": Bad(TINY + "launcher: {name: torchrun, numa_binding: node}\nenvironment: {torch: '2.8'}\n"),
    "HL425": Bad(TINY + "launcher: {name: none, options: [-x]}\n"),
    "HL426": Bad(TINY + "launcher: none\nnodes: 2\n", site="local"),
    "HL430": Bad(TINY + "container: {image: x, runtime: pyxis}\n", site="local"),
    "HL431": Bad(TINY + "container: docker://pytorch/pytorch\n"),
    "HL432": Bad(TINY + "container: {image: x, runtime: pyxis, binds: ['/tmp:b']}\n"),
    "HL470": Bad(
        TINY + "container: box\n",
        site=MINI.replace("gpus: 4", "gpus: 4, arch: x86_64")
        + "containers: {images: {box: {path: /images/box.sif, arch: aarch64}}}\n",
    ),
    "HL473": Bad(TINY + "container:\n  {image: x, runtime: pyxis, prelude: [{source: a, venv: b}]}\n"),
    "HL474": Bad(
        TINY + "container: {image: x, runtime: pyxis}\nenvironment: {venv: ~/venvs/train}\n",
    ),
    "HL480": Bad(TINY + "nodes: 2..4\n", site=MINI + "launch: {step: mpirun}\n"),
    "HL481": Bad(TINY + "container: {image: x, runtime: pyxis}\n", site=MINI + "launch: {step: ibrun}\n"),
    "HL482": Bad(TINY, site=MINI + "launch: {gpu_bind: {node: closest}}\n"),
    "HL484": Bad(TINY, site=MINI + "launch: {step: mpirun, cpu_bind: cores}\n"),
    "HL485": Bad(TINY + "nodes: 2\nlauncher: {name: deepspeed, multinode: pdsh}\ncontainer: x.sif\n"),
    "HL486": Bad(TINY + "nodes: 2\ngpus_per_node: 2\nlauncher: {name: deepspeed, multinode: pdsh}\n"),
    "HL487": Bad(TINY, site=MINI + "network: {master: {interface: ib0, resolve: ip}}\n"),
    "HL488": Bad(TINY + "nodes: 2\nlauncher: {name: deepspeed, multinode: pdsh, options: [--bind_cores_to_rank]}\n"),
    "HL490": Bad(TINY + "spares: 1\n", site=MINI + "sbatch: {drop: [no-kill]}\n"),
    "HL489": Bad(TINY + "launcher: srun\nprocesses_per_node: 8\n", site=MINI + "launch: {gpus_per_task: true}\n"),
    "HL510": Bad(TINY + "checkpoint: {format: huggingface}\n"),
    "HL511": Bad(TINY + "checkpoint: {dir: '${attempt.dir}/c', pattern: x}\n"),
    "HL512": Bad(TINY + "checkpoint: {dir: c, pattern: 'step/(\\d+)'}\n"),
    "HL515": Bad(TINY + "time: 24:00:00\n"),
    "HL514": Bad(TINY + "nodes: 2\ncheckpoint: {dir: out, pattern: 'step-(\\d+)'}\n", site=APART),
    "HL670": Bad(TINY + "strategy: {name: ddp, offload_optimizer: cpu}\n"),
    "HL671": Bad(TINY + "strategy: fsdp\nargs: {fsdp_config: '${strategy.config}'}\n"),
    "HL672": Bad(TINY + "strategy: megatron\n"),
    "HL673": Bad(TINY + "strategy: {name: zero3, file: own.json}\n", own=STAGE_2),
    "HL674": Bad(TINY + "strategy: megatron\nparallel: {tp: 2}\nargs: {micro-batch-size: 4}\n"),
    "HL675": Bad(TINY + "strategy: zero1\nnodes: 2..4\n"),
    "HL676": Bad(TINY + "strategy: zero2\nprecision: fp8\n"),
    "HL677": Bad(TINY + "strategy: {name: zero2, for: trainer}\n"),
    "HL680": Bad(TINY + "model: llama3-9b\n"),
    "HL681": Bad(TINY + "model: llama3-8b\nstrategy: megatron\nparallel: {tp: 2}\nargs: {num-layers: 30}\n"),
    "HL685": Bad(TINY + "model: llama3-70b\ngpus_per_node: 4\nstrategy: {name: zero3, micro_batch: 1}\n", site=H100),
    "HL686": Bad(TINY + "model: llama3-8b\ngpus_per_node: 4\nstrategy: {name: fsdp, micro_batch: 4}\n", site=H100),
    "HL531": Bad(TINY + "retry: {on: {cuda_oon: STOP}}\n"),
    "HL532": Bad(TINY + "retry: {on: {cuda_oom: [half_batch]}}\n"),
    "HL533": Bad(TINY + "retry: {batch: {micro: args.batch}}\n"),
    "HL536": Bad(TINY + "retry: {max_attempts: 1, successor: on}\n"),
    "HL551": Bad(TINY + "notify: {webhook: {secret: 'https://hooks.example.org/T0/B0', format: slack}}\n"),
    "HL552": Bad(TINY + "notify: {mail: me@example.org, events: [first_step, end]}\n"),
    "HL534": Bad(TINY, site=MINI.replace("scheduler: slurm", "scheduler: {type: slurm, sentinel: service}")),
    "HL540": Bad(TINY + "sbatch: {gres: 'gpu:4'}\n", site=MINI + "sbatch: {forbid: {gres: nodes are whole}}\n"),
    "HL541": Bad(TINY, site=MINI + "sbatch: {require: {time: without it a job gets ten minutes}}\n"),
    "HL542": Bad(TINY + "env: {FI_CXI_RDZV_PROTO: alt_read}\n", site=MINI + LINKED),
    "HL543": Bad(TINY + "env: {NCCL_NET_PLUGIN: ofi}\n", site=MINI + EXCLUDING),
    "HL544": Bad(TINY + "nodes: 4\ntime: 1h\n", site=MINI.replace("partition: gpu", "node_minutes: 90")),
    "HL545": Bad(TINY + "gpus_per_node: 2\n", site=MINI.replace("gpus: 4", "gpus: 4, gpus_allowed: [1, 4]")),
    "HL547": Bad(TINY + "memory: 64G\n", site=MINI.replace("partition: gpu", "memory: forbidden")),
    "HL548": Bad(TINY + "sbatch: {exclusive: true}\n", site=MINI.replace("partition: gpu", "exclusive: forbidden")),
    "HL549": Bad(
        TINY, site=MINI + "launchers: {torchrun: {use: discouraged, why: it is slow here}, srun: recommended}\n"
    ),
    "HL502": Bad(TINY + "trackers: [{name: wandb, mode: online}]\n", site=MINI + "internet: none\n"),
    "HL503": Bad(TINY + "trackers: [wandb]\n"),
    "HL504": Bad(TINY + "trackers: [wandb]\n", site=MINI + "detect: [{path: /}]\ninternet: direct\n"),
    "HL505": Bad(TINY, site=MINI + "internet: proxy\n"),
}


@dataclass(frozen=True)
class Command:
    """Words after `hpc-launch` that provoke a finding."""

    words: str
    files: Mapping[str, str] = field(default_factory=dict)
    """By their paths in the project. Programs begin with `#!`."""

    env: Mapping[str, str] = field(default_factory=dict)

    def printed(self) -> list[str]:
        """All lines that it prints. No library is asked, unless it is one that cannot be, or a stand-in."""
        for name, text in self.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
            Path(name).chmod(0o755 if text.startswith("#!/") else 0o644)
        done = hpc_launch_text(shlex.split(self.words), env={**os.environ, **self.env})
        assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines()


def _deepspeed(*listed: str, **more: Any) -> Command:
    """The check of a file for DeepSpeed that has no fault but in what is added. `./python` lists the library's keys."""
    good = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
    keys = json.dumps({"": (*good, *listed)})
    files = {"ds.json": json.dumps(good | more), "python": f"#!/bin/sh\necho noise; echo 'HPC-LAUNCH-KEYS {keys}'\n"}
    return Command(f"config deepspeed {'--python ./python' if listed else '--no-library'} --check ds.json", files)


def _sites(**texts: str) -> dict[str, str]:
    """The user's own profiles."""
    return {f"../.config/hpc-launch/sites/{name}.yaml": text for name, text in texts.items()}


SECRET = {"job.yaml": TINY + "secrets: [WANDB_API_KEY]\n"}
RULE = "- {id: tape, cause: tape_busy, match: tape robot, examples: [], source: our wiki}\n"
RECORD = {"digest": f"sha256:{'0' * 64}", "size": 3, "source": "docker://a/b", "kind": "uri", "made": "2026-01-01"}
FITS = "detect: [{env: {CLUSTER_NAME: mini}}]\n"

COMMANDS_WITH_FINDINGS = {
    "HL210": Command("submit job.yaml --site local", SECRET),
    "HL214": Command(
        "submit job.yaml --site local", {**SECRET, "../.config/hpc-launch/secrets.env": "WANDB_API_KEY=abc\n"}
    ),
    "HL216": Command(
        "render job.yaml --site mini.yaml",
        {"job.yaml": TINY + "container: /software/images/torch.sif\n", "mini.yaml": MINI},
    ),
    "HL300": Command(
        "validate job.yaml",
        {"job.yaml": TINY}
        | {f".hpc-launch/sites/{name}.yaml": MINI.replace("mini", name, 1) + FITS for name in ("ours", "theirs")},
        {"CLUSTER_NAME": "mini"},
    ),
    "HL307": Command(
        "validate job.yaml --site mini",
        {"job.yaml": TINY}
        | _sites(mini=MINI + "extends: centre\n", centre="name: centre\nextends: team\n", team="extends: centre\n"),
    ),
    "HL312": Command(
        "sites check mini.yaml",
        {"mini.yaml": MINI + "contact: me\nurl: here\nstatus: draft\nsource: its pages\ngrade: A\n"},
    ),
    "HL313": Command(
        "validate job.yaml --site mini",
        {"job.yaml": TINY, ".hpc-launch/sites/mini.yaml": MINI + "prelude: [{raw: source ~/.bashrc}]\n"},
    ),
    "HL321": Command("sites check mini.yaml", {"mini.yaml": MINI + "defaults: {account: proj12}\n"}),
    "HL322": Command("sites check mini.yaml", {"mini.yaml": MINI, "golden/mini/torchrun.sh": "#!/bin/sh\n"}),
    "HL471": Command(
        "containers pull docker://a/b -o image.sif", {"image.sif": "abc", "image.sif.json": json.dumps(RECORD)}
    ),
    "HL472": Command("containers build cpu -o image.sif", env={"PATH": "/nowhere"}),
    "HL501": Command("submit job.yaml --site local", {"job.yaml": TINY}, {"HPC_LAUNCH_HOME": "/proc/runs"}),
    "HL513": Command("drill job.yaml --site local", {"job.yaml": TINY}),
    "HL535": Command(
        "nodes list --site site.yaml", {"site.yaml": MINI + "paths: {ledger: '/shared/${account}/ledger'}\n"}
    ),
    "HL687": Command(
        "submit job.yaml --site mini.yaml",
        {"job.yaml": TINY + "confirm_gpu_hours: 100\nnodes: 8\ntime: 12h\n", "mini.yaml": MINI},
    ),
    "HL690": Command("why --log x.log", {"x.log": "x\n", "../.config/hpc-launch/rules/mine.yaml": RULE}),
    "HL600": Command("config deepspeed --no-library --check ds.json", {"ds.json": '{"a": 1,,}'}),
    "HL601": _deepspeed("zero_optimization", zero_optimisation={"stage": 2}),
    "HL604": _deepspeed(zero_optimization={"stage": 5}),
    "HL605": _deepspeed(gradient_clipping="auto"),
    "HL610": Command("config deepspeed --no-library --global-batch 100 --micro-batch 3 --world-size 8"),
    "HL611": Command("config deepspeed --no-library --bf16 --fp16"),
    "HL612": Command("config deepspeed --no-library --zero-stage 2 --offload-param"),
    "HL613": Command("config deepspeed --no-library --zero-stage 3 --offload-optimizer nvme"),
    "HL614": Command("config deepspeed --no-library --zero-stage 0 --offload-optimizer"),
    "HL619": Command("config deepspeed --python /nowhere/python"),
    "HL623": Command("config fsdp --no-library --min-params 5e7"),
    "HL625": Command("config fsdp --no-library --state-dict LOCAL_STATE_DICT"),
    "HL627": Command("config fsdp --no-library --sharding-strategy HYBRID_SHARD"),
    "HL628": Command("config fsdp --no-library --for trainer --version 1 --sharding-strategy SHARD_GRAD_OP"),
    "HL629": Command("config fsdp --python /nowhere/python"),
    "HL640": Command("config megatron --world-size 60 --tp 8"),
    "HL641": Command("config megatron --world-size 48 --ep 16 --pp 2 --num-experts 64 --global-batch 48"),
    "HL642": Command("config megatron --world-size 8 --ep 2"),
    "HL643": Command("config megatron --world-size 64 --tp 8 --heads 12"),
    "HL644": Command("config megatron --world-size 8 --heads 32 --query-groups 5"),
    "HL645": Command("config megatron --world-size 5 --pp 5 --num-layers 32 --global-batch 5"),
    "HL646": Command("config megatron --world-size 64 --pp 4 --vpp 3 --overlap --num-layers 32 --global-batch 64"),
    "HL647": Command("config megatron --world-size 8 --vpp 2"),
    "HL648": Command("config megatron --world-size 64 --pp 4 --vpp 2 --overlap --global-batch 96"),
    "HL649": Command("config megatron --world-size 64 --cp 4 --seq-length 4100"),
    "HL650": Command("config megatron --world-size 8 --sequence-parallel"),
    "HL651": Command("config megatron --world-size 64 --tp 2 --ep 2 --num-experts 8"),
    "HL652": Command("config megatron --world-size 8 --global-batch 12"),
    "HL653": Command("config megatron --world-size 64 --pp 4"),
    "HL654": Command("config megatron --world-size 64 --tp 8 --gpus-per-node 4"),
    "HL655": Command("config megatron --world-size 64 --tp 8"),
    "HL656": Command("config megatron --world-size 8 --tp 8 --distributed-optimizer"),
    "HL657": Command("config megatron --world-size 8 --hidden-size 4090 --heads 32"),
    "HL658": Command("config megatron --world-size 64 --pp 4 --num-layers 32 --first-stage-layers 3 --global-batch 64"),
    "HL660": Command("config hostfile --hosts n1,n1"),
    "HL661": Command("config launcher --script train.py --nodes 4 --master-addr n1 --node-rank 4"),
    "HL662": Command("config launcher --script train.py --nodes 2"),
}


SSH_SAID = {
    "HL663": "ssh: connect to host gpu2 port 22: Connection refused",
    "HL664": "Bad owner or permissions on /home/alice/.ssh/config",
    "HL665": "Host key verification failed.",
}


def _over_ssh(said: str) -> str:
    """What follows from an ssh that ends with these words, in two lines."""
    Path("ssh").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    Path("ssh").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", ".:/usr/bin:/bin")
        with pytest.raises(Unreachable) as raised:
            on_host("gpu2", ["true"])
    return f"{raised.value}\n  hint: {raised.value.hint}"


def _many_files() -> list[str]:
    """The finding about a folder of very many files, where 100 stand for 100,000, and this file system for NFS."""
    folder = Path("many")
    folder.mkdir()
    for number in range(100):
        (folder / str(number)).touch()
    Path("job.yaml").write_text(TINY + "data: many\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_files, "SLOW", (system := file_system(str(folder)),))
        patch.setattr(check_files, "MANY_FILES", 100)
        found = validate_job(Path("job.yaml"), site="local")
    lines = [line for one in found for line in (str(one), f"  hint: {one.hint}")]
    return [line.replace(f" on {system}", " on nfs").replace("100 files", "100,000 files") for line in lines]


def _findings(bad: Bad) -> Sequence[Finding]:
    if bad.job is not None:
        Path("job.yaml").write_bytes(bad.job if isinstance(bad.job, bytes) else bad.job.encode())
    if bad.own is not None:
        Path("own.json").write_text(bad.own, encoding="utf-8")
    if bad.package is not None:
        entry, modules = "[hpc_launch.launchers]\nmine = mine:DESCRIPTOR\n", {"mine": bad.package}
        with on_path(install(Path("packages").absolute(), "their-launchers", "2.1", entry, modules)):
            return _findings(replace(bad, package=None))
    if bad.site in (None, "local"):
        return validate_job(Path("job.yaml"), site=bad.site, sets=bad.sets)
    Path("mini.yaml").write_text(bad.site or "")
    return validate_job(Path("job.yaml"), site="mini.yaml", sets=bad.sets)


def _printed(code: str) -> list[str]:
    if code in COMMANDS_WITH_FINDINGS:
        return COMMANDS_WITH_FINDINGS[code].printed()
    if code == "HL222":
        return _many_files()
    if code in SSH_SAID:
        return _over_ssh(SSH_SAID[code]).splitlines()
    return [line for finding in _findings(BAD[code]) for line in (str(finding), f"  hint: {finding.hint}")]


def _sections() -> dict[str, str]:
    parts = re.split(r"^### (HL\d{3})$", text_of("docs/reference/findings.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_code_has_a_section_that_begins_with_its_title() -> None:
    titles = {code: re.findall(r"\A\s*\*\*(.+?)\.\*\*", text) for code, text in _sections().items()}
    assert titles == {code.value: [code.heading] for code in FindingCode}


def test_every_code_of_the_registry_is_used_and_no_code_is_written_as_text() -> None:
    sources = [path for path in (REPOSITORY / "hpc_launch").glob("**/*.py") if path.name != "findings.py"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert set(re.findall(r"\bFindingCode\.([A-Z_0-9]+)\b", code)) == set(FindingCode.__members__)
    assert not re.findall(r"""["']HL\d{3}["']""", code)


def test_sections_are_in_order() -> None:
    assert list(_sections()) == sorted(_sections())


@pytest.mark.parametrize("code", _sections())
def test_the_example_of_a_finding_is_what_is_printed(code: str, home: Path) -> None:
    shown = [line for block in blocks(_sections()[code], "text") for line in block.splitlines()]
    assert any(f"{code} " in line for line in shown), "show a line of it"
    assert code in {*BAD, *COMMANDS_WITH_FINDINGS, *SSH_SAID, "HL222"}, "add a job or a command that provokes it"
    printed = [line.replace(str(home), "/home/alice") for line in _printed(code)]
    assert set(shown) <= set(printed)


def test_each_threat_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| .* \| `(tests/\S+\.py)::(\w+)` \|$", text_of("docs/evidence/threats.md"), re.MULTILINE)
    assert len(rows) > 20
    for file, name in rows:
        assert f"\ndef {name}(" in (REPOSITORY / file).read_text(), f"{file}::{name}"
    listed = re.findall(r"^\| (?!threat)", text_of("docs/evidence/threats.md"), re.MULTILINE)
    assert len(listed) == len(rows), "each row ends with a test"
