"""The pages tell the truth, as far as a program can check it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from msgspec import Struct
from msgspec.structs import fields

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding
from hpc_launch.cli.main import VERBS, group
from hpc_launch.drive.prepare import all_findings
from hpc_launch.drive.secrets import find_secrets
from hpc_launch.run.model import RUN_STATES
from hpc_launch.run.store import refusing
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.job import JobSpec
from tests.view.samples import status

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"
GENERATED = ("job-file.md", "site-profile.md", "verbs.md")


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


def test_generated_pages_are_in_step() -> None:
    stale = [path.name for path, text in generate().pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


def _keys(kind: type[Struct], path: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield f"{path}{one.encode_name}", hints[one.name]
    for below, inner in generate()._below("", kind):
        hints = get_type_hints(inner, include_extras=True)
        yield from ((f"{path}{below}.{one.encode_name}", hints[one.name]) for one in fields(inner))


@pytest.mark.parametrize("kind", [JobSpec, SiteProfile])
def test_every_key_says_what_it_is_for(kind: type[Struct]) -> None:
    describe = generate()._description
    assert not [key for key, hint in _keys(kind, "") if not describe(hint).strip()]


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
    assert {*VERBS, *(f"config {form}" for form in forms.split())} == set(COMMANDS)


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
    if words[1] == "explain":
        known.add("--cpus-per-task")  # a directive that it is asked about
    used = {word.partition("=")[0] for word in words[depth:] if re.match(r"--?[a-z]", word)}
    assert used <= known | {"--help"}, line


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    text = text_of(page)
    named = re.findall(r"`make ([a-z]+)", prose(text))
    named += [match for block in blocks(text, "sh") for match in re.findall(r"^make ([a-z]+)", block, re.MULTILINE)]
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_no_page_names_a_folder_of_the_machine_it_was_written_on(page: str) -> None:
    assert not re.findall(rf"{re.escape(str(REPOSITORY))}\b|/root/|/tmp/", text_of(page))


@pytest.mark.parametrize("page", ["README.md", "docs/verbs.md"])
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
    assert {page for page, _ in JOBS} >= {"README.md", "docs/job-file.md"}
    assert set(SITES) >= {"README.md", "docs/site-profile.md"}


@pytest.mark.parametrize(("page", "block"), JOBS)
def test_job_files_on_the_pages_are_right(page: str, block: str, home: Path) -> None:
    Path("job.yaml").write_text(block, encoding="utf-8")
    Path("site.yaml").write_text(SITES.get(page, SITES["docs/site-profile.md"]), encoding="utf-8")
    assert [str(finding) for finding in all_findings(Path("job.yaml"), site="./site.yaml")] == []
    _fits(block, "job")


@pytest.mark.parametrize("page", SITES)
def test_site_profiles_on_the_pages_fit_their_schema(page: str) -> None:
    _fits(SITES[page], "site")


def _fits(block: str, schema: str) -> None:
    # As an editor that reads YAML 1.2: 12:00:00 is text.
    value = yaml.safe_load(re.sub(r"(\d+:\d\d:\d\d)", r"'\1'", block))
    jsonschema.validate(value, json.loads((DOCS / "schema" / f"{schema}.schema.json").read_text()))


# --- How a run works, JSON ---


def test_excerpts_of_the_script_are_in_a_golden_script() -> None:
    golden = [path.read_text() for path in (REPOSITORY / "tests" / "golden" / "expected").glob("*.sh")]
    shown = blocks(text_of("docs/how-a-run-works.md"), "bash")
    assert len(shown) > 5
    assert not [block for block in shown if not any(block in script for script in golden)]


@pytest.mark.parametrize("page", ["docs/how-a-run-works.md", "docs/json.md"])
def test_every_state_of_a_run_is_explained(page: str) -> None:
    assert not [state for state in RUN_STATES if state not in text_of(page)]


def test_the_fields_of_status_are_those_of_the_page() -> None:
    (shown,) = (block for block in blocks(text_of("docs/json.md"), "json") if "state_source" in block)
    told, real = json.loads(shown), status().as_json()
    assert list(told) == list(real)
    assert list(told["attempts"][0]) == list(real["attempts"][0])
    assert list(told["progress"]) == list(real["progress"])


# --- Findings ---

MINI = """
name: mini
scheduler: slurm
node_classes:
  gpu: {cpus: 64, memory: 256G, gpus: 4}
queues:
  gpu: {node_class: gpu, partition: gpu, limits: [{nodes: 1-8, time: 24:00:00}]}
""".lstrip()
TINY = "name: tiny\nscript: train.py\n"


@dataclass(frozen=True)
class Bad:
    """A job that provokes a finding."""

    job: str | bytes | None
    site: str | None = MINI
    sets: Sequence[str] = field(default=())


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
    "HL020": Bad(TINY, sets=["nodes"]),
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
    "HL212": Bad(TINY + "args: {model: {layers: 4}}\n"),
    "HL213": Bad(TINY + "run_dir: /scratch/50%/runs\n"),
    "HL215": Bad(TINY + r"progress: {step: 'step \d+'}"),
    "HL300": Bad(TINY, site=None),
    "HL301": Bad(TINY + "site: locl\n", site=None),
    "HL302": Bad(TINY + "queue: gpus\n"),
    "HL303": Bad(TINY, site=MINI + "account: {required: true}\n"),
    "HL304": Bad(TINY, site=MINI.replace("node_class: gpu", "node_class: a100")),
    "HL305": Bad(TINY, site=MINI + "network: {ports: [29500, 61000]}\n"),
    "HL306": Bad(TINY + "account: me\n", site=MINI + "account: {pattern: 'proj[0-9'}\n"),
    "HL401": Bad(TINY + "gpus_per_node: 8\n"),
    "HL402": Bad(TINY + "time: 48:00:00\n"),
    "HL403": Bad(TINY + "time: 5m\ncheckpoint: {signal_before: 10m}\n"),
    "HL404": Bad(TINY + "cpus_per_node: 128\n"),
    "HL405": Bad(TINY + "memory: 512G\n"),
    "HL406": Bad(TINY + "processes_per_node: 3\n"),
    "HL407": Bad(TINY + "nodes: 16\ntime: 1h\n"),
    "HL408": Bad(TINY + "nodes: 4000\n", site="local"),
    "HL410": Bad(TINY + 'sbatch: {"--mail-type": END}\n'),
    "HL411": Bad(TINY + "sbatch: {time: 1h}\n"),
    "HL412": Bad(TINY + "sbatch: {comment: 'say \"hi\"'}\n"),
    "HL420": Bad(TINY + "launcher: srun\n", site="local"),
    "HL421": Bad(TINY + "launcher: {name: deepspeed, max_restarts: 2}\n"),
    "HL422": Bad(TINY + "nodes: 2..4\nlauncher: deepspeed\n"),
    "HL423": Bad(TINY + "launcher: {name: torchrun, rendezvous: static, max_restarts: 2}\n"),
    "HL424": Bad(TINY + "launcher: {name: torchrun, numa_binding: node}\nenvironment: {torch: '2.8'}\n"),
    "HL430": Bad(TINY + "container: {image: x, runtime: pyxis}\n", site="local"),
    "HL431": Bad(TINY + "container: docker://pytorch/pytorch\n"),
    "HL432": Bad(TINY + "container: {image: x, runtime: pyxis, binds: ['/tmp:b']}\n"),
    "HL491": Bad(TINY + "retry: {max_attempts: 3}\n"),
}


def _secret_is_missing(home: Path) -> Sequence[Finding]:
    with pytest.raises(Refused) as refused:
        find_secrets(["WANDB_API_KEY"], {})
    return refused.value.findings


def _secrets_are_open(home: Path) -> Sequence[Finding]:
    path = home / ".config" / "hpc-launch" / "secrets.env"
    path.parent.mkdir(parents=True)
    path.write_text("WANDB_API_KEY=abc\n")
    path.chmod(0o644)
    return _secret_is_missing(home)


def _cannot_write(home: Path) -> Sequence[Finding]:
    folder = Path("/proc/runs")
    with pytest.raises(Refused) as refused, refusing(folder):
        folder.mkdir()
    return refused.value.findings


OTHERS = {"HL210": _secret_is_missing, "HL214": _secrets_are_open, "HL501": _cannot_write}


@dataclass(frozen=True)
class Config:
    """Words after `hpc-launch config` that provoke a finding, and the text of the file that they name."""

    words: str
    file: str | None = None


def _deepspeed(**more: Any) -> Config:
    """The check of a file for DeepSpeed that has no fault but in what is added."""
    good = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
    return Config("deepspeed --no-library --check ds.json", json.dumps(good | more))


def _trainer(**values: Any) -> Config:
    """The check of a Trainer's file for FSDP."""
    return Config("fsdp --no-library --check fsdp.json", json.dumps(values))


OFFLOADED = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing_offload: true\n"
CONFIG = {
    "HL600": Config("deepspeed --no-library --check ds.json", '{"a": 1,,}'),
    "HL601": _deepspeed(zero_optimisation={"stage": 2}),
    "HL602": _deepspeed(elasticity={}),
    "HL603": _deepspeed(bfloat16={"enabled": False}),
    "HL604": _deepspeed(zero_optimization={"stage": 5}),
    "HL605": _deepspeed(gradient_clipping="auto"),
    "HL610": Config("deepspeed --no-library --train-batch 100 --micro-batch 3 --world-size 8"),
    "HL611": Config("deepspeed --no-library --bf16 --fp16"),
    "HL612": Config("deepspeed --no-library --zero-stage 2 --offload-param"),
    "HL613": Config("deepspeed --no-library --zero-stage 3 --offload-optimizer nvme"),
    "HL614": Config("deepspeed --no-library --zero-stage 0 --offload-optimizer"),
    "HL615": Config("deepspeed --no-library --scheduler WarmupDecayLR"),
    "HL616": _deepspeed(bf16={"enabled": True}),
    "HL619": Config("deepspeed --python /nowhere/python"),
    "HL620": _trainer(fsdp_cuda_graphs=False),
    "HL621": _trainer(use_orig_params=True),
    "HL623": Config("fsdp --no-library --min-params 5e7"),
    "HL624": _trainer(version=1, cpu_ram_efficient_loading=True, sync_module_states=False),
    "HL625": Config("fsdp --no-library --state-dict LOCAL_STATE_DICT"),
    "HL626": Config("fsdp --no-library --check fsdp.yaml", OFFLOADED),
    "HL627": Config("fsdp --no-library --sharding-strategy HYBRID_SHARD"),
    "HL628": Config("fsdp --no-library --for trainer --version 1 --sharding-strategy SHARD_GRAD_OP"),
    "HL629": Config("fsdp --python /nowhere/python"),
    "HL640": Config("megatron --world-size 60 --tp 8"),
    "HL641": Config("megatron --world-size 48 --ep 16 --pp 2 --num-experts 64 --global-batch 48"),
    "HL642": Config("megatron --world-size 8 --ep 2"),
    "HL643": Config("megatron --world-size 64 --tp 8 --heads 12"),
    "HL644": Config("megatron --world-size 8 --heads 32 --query-groups 5"),
    "HL645": Config("megatron --world-size 5 --pp 5 --num-layers 32 --global-batch 5"),
    "HL646": Config("megatron --world-size 64 --pp 4 --vpp 3 --overlap --num-layers 32 --global-batch 64"),
    "HL647": Config("megatron --world-size 8 --vpp 2"),
    "HL648": Config("megatron --world-size 64 --pp 4 --vpp 2 --overlap --global-batch 96"),
    "HL649": Config("megatron --world-size 64 --cp 4 --seq-length 4100"),
    "HL650": Config("megatron --world-size 8 --sequence-parallel"),
    "HL651": Config("megatron --world-size 64 --tp 2 --ep 2 --num-experts 8"),
    "HL652": Config("megatron --world-size 8 --global-batch 12"),
    "HL653": Config("megatron --world-size 64 --pp 4"),
    "HL654": Config("megatron --world-size 64 --tp 8 --gpus-per-node 4"),
    "HL655": Config("megatron --world-size 64 --tp 8"),
    "HL656": Config("megatron --world-size 8 --tp 8 --distributed-optimizer"),
    "HL657": Config("megatron --world-size 8 --hidden-size 4090 --heads 32"),
    "HL660": Config("hostfile --hosts n1,n1"),
    "HL661": Config("launcher --script train.py --num-nodes 4 --master-addr n1 --node-rank 4"),
    "HL662": Config("launcher --script train.py --num-nodes 2"),
}


def _printed_by(config: Config) -> list[str]:
    """All lines of a `config` command. No library is asked, unless it is the one that cannot be."""
    words = shlex.split(config.words)
    if config.file is not None:
        Path(words[-1]).write_text(config.file, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("hpc-launch")), "config", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode in {0, 3}, done.stdout
    return done.stdout.splitlines()


def _provoked(code: str, home: Path) -> Sequence[Finding]:
    if code in OTHERS:
        return OTHERS[code](home)
    bad = BAD[code]
    if bad.job is not None:
        Path("job.yaml").write_bytes(bad.job if isinstance(bad.job, bytes) else bad.job.encode())
    if bad.site in (None, "local"):
        return all_findings(Path("job.yaml"), site=bad.site, sets=bad.sets)
    Path("mini.yaml").write_text(bad.site or "")
    return all_findings(Path("job.yaml"), site="mini.yaml", sets=bad.sets)


def _sections() -> dict[str, str]:
    parts = re.split(r"^### (HL\d{3})$", text_of("docs/findings.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _codes() -> set[str]:
    """All codes that a verb can come to."""
    sources = set((REPOSITORY / "hpc_launch").glob("**/*.py"))
    return {code for source in sources for code in re.findall(r"\bHL\d{3}\b", source.read_text(encoding="utf-8"))}


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert set(_sections()) == _codes()


def test_sections_are_in_order() -> None:
    assert list(_sections()) == sorted(_sections())


@pytest.mark.parametrize("code", _sections())
def test_the_example_of_a_finding_is_what_is_printed(code: str, home: Path) -> None:
    shown = [line for block in blocks(_sections()[code], "text") for line in block.splitlines()]
    assert any(f"{code} " in line for line in shown), "show a line of it"
    assert code in {*BAD, *OTHERS, *CONFIG}, "add a job or a command that provokes it"
    if code in CONFIG:
        printed = set(_printed_by(CONFIG[code]))
    else:
        printed = {line for finding in _provoked(code, home) for line in (str(finding), f"  hint: {finding.hint}")}
    assert set(shown) <= {line.replace(str(home), "/home/alice") for line in printed}
