"""Writes the reference pages and JSON schemas from the code: `make docs`. A test fails when they are out of step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import fields

from hpc_launch.base import errors
from hpc_launch.cli import error_handler
from hpc_launch.cli.main import VERBS, group
from hpc_launch.recover import rulebook
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.field_types import Scalar
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.json_schema import json_schema
from hpc_launch.spec.units import DURATION_FORMS, MEMORY_FORMS, TIME_FORMS

HERE = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py from {source}. Change that, then run `make docs`. -->"
WIDTH = 88
"""Columns of the verbs' help."""


def reference(title: str, intro: str, root: type[Struct], source: str) -> str:
    """A page with a section for each mapping of a file and a row for each key."""
    lines = [f"# {title}", "", MADE.format(source=source), "", intro.strip(), "", *_table("", root)]
    for path, kind in _below("", root):
        lines += [f"### `{path}`", "", _one_line(kind.__doc__), ""]
        form = getattr(kind, "__short_forms__", None)
        if form is not None:
            lines += [f"Short form: {_one_line(form.__doc__)}", ""]
        lines += _table(path, kind)
    return "\n".join(lines)


def _table(path: str, kind: type[Struct]) -> list[str]:
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in fields(kind):
        key, hint = field.encode_name, hints[field.name]
        value = field.default if field.default_factory is NODEFAULT else field.default_factory()
        inner = next(_structs(hint), None)
        takes = f"[{_type(hint)}](#{_anchor(_join(path, key, inner[1]))})" if inner else _type(hint)
        adds = any(meta.extra and meta.extra.get("merge") == "behind" for meta in _metas(hint))
        note = " A layer adds to the list of the layers below it." if adds else ""
        about = _cell(_description(hint) + note + _examples(key, hint))
        rows.append(f"| `{key}` | {_cell(takes)} | {_default(value)} | {about} |")
    return ["| key | what it takes | default | what for |", "|---|---|---|---|", *rows, ""]


def _below(path: str, kind: type[Struct]) -> Iterator[tuple[str, type[Struct]]]:
    """The mappings inside a mapping, each before those inside it."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        for inner, many in _structs(hints[field.name]):
            here = _join(path, field.encode_name, many)
            yield here, inner
            yield from _below(here, inner)


def _structs(hint: Any, many: bool = False) -> Iterator[tuple[type[Struct], bool]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint, many
    inside = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    for arg in inside:
        if not isinstance(arg, str | Meta):
            yield from _structs(arg, many or get_origin(hint) is dict)


def _join(path: str, key: str, many: bool) -> str:
    here = f"{path}.{key}" if path else key
    return f"{here}.NAME" if many else here


def _anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return "".join(character for character in heading.lower() if character.isalnum() or character in "_-")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _metas(hint: Any) -> list[Meta]:
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return [*_metas(inner), *(note for note in notes if isinstance(note, Meta))]
    return []


def _description(hint: Any) -> str:
    return next((meta.description for meta in reversed(_metas(hint)) if meta.description), "")


def _examples(key: str, hint: Any) -> str:
    shown = [f"`{key}: {_yaml(example)}`" for meta in _metas(hint) for example in meta.examples or ()]
    return f" Example: {', '.join(shown)}" if shown else ""


def _yaml(value: Any) -> str:
    """A value in YAML, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return f"'{text}'" if set(text) & set("\\{}[]#&*!|>'\"%@`") else text


def _type(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        units = [meta.extra["unit"] for meta in _metas(hint) if meta.extra and "unit" in meta.extra]
        return f"[{units[0]}](#{units[0]})" if units else _type(args[0])
    if origin in {Union, UnionType}:
        if set(args) >= set(get_args(Scalar)):
            return "a value"
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is list:
        inner = _type(args[0])
        return {"text": "list of texts", "a value": "list of values"}.get(inner, f"list of {inner}s")
    if origin is tuple:
        return f"list of {len(args)} {_type(args[0])}s"
    if origin is dict:
        inner = _type(args[1])
        return {"text": "names with texts", "mapping": "names with mappings"}.get(inner, "names with values")
    names: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Any: "value"}
    return names.get(hint, "mapping")


def _default(value: Any) -> str:
    if value is NODEFAULT:
        return "**required**"
    if value is None or value in ({}, [], ""):
        return ""
    if isinstance(value, Struct):
        name = getattr(value, "name", "")
        return f"`{name}`" if name else ""
    return f"`{_yaml(value)}`"


def verbs() -> str:
    """A page with the help of every verb, and of every form of one that has forms, as the terminal shows it."""
    lines = ["# The verbs", "", MADE.format(source="the commands' own help"), "", VERBS_INTRO.strip(), ""]
    lines += ["| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines.append("")
    context = click.Context(group, info_name="hpc-launch", max_content_width=WIDTH, terminal_width=WIDTH)
    for verb in VERBS:
        command = group.get_command(context, verb)
        if command is None:
            raise LookupError(verb)
        lines += _help(verb, command, context, "##")
    return "\n".join(lines)


def _help(name: str, command: click.Command, parent: click.Context, level: str) -> list[str]:
    """The help of a command; of a group also that of each of its commands, a level below and with its full name."""
    context = click.Context(command, parent, name, max_content_width=WIDTH, terminal_width=WIDTH)
    title = context.command_path.removeprefix(f"{context.find_root().command_path} ")
    lines = [f"{level} {title}", "", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for form in command.list_commands(context):
            inner = command.get_command(context, form)
            if inner is None:
                raise LookupError(f"{title} {form}")
            lines += _help(form, inner, context, f"{level}#")
    return lines


EXIT_CODES = {
    0: "done; with `--wait` and `watch`: every run COMPLETED",
    errors.UserError.exit_code: "a run that was followed ended otherwise, or can never start",
    errors.UsageError.exit_code: "the command line is off, or no run is called so",
    errors.Refused.exit_code: "job, site or plan has faults; nothing was submitted",
    errors.SchedulerError.exit_code: "the scheduler refused the job, or cannot be reached",
    error_handler.FAULT_OF_OURS: "a fault of hpc-launch itself; the message names a log file",
    error_handler.INTERRUPTED: "interrupted by Ctrl-C; a job that was submitted goes on",
}

VERBS_INTRO = """
Where a verb takes a RUN, it is the run's full name, a beginning of it that no other run shares, a job id, a folder of
the run, or `@last` for the newest run.

Data goes to stdout, everything else to stderr. Output is coloured on a terminal only, and not with `NO_COLOR` set.
What `--json` prints is on the page [JSON](json.md).
"""

UNITS = f"""
## Units

### `time`

As Slurm reads it: `HOURS:MINUTES:SECONDS`, `DAYS-HOURS`, `DAYS-HOURS:MINUTES:SECONDS`, `MINUTES:SECONDS`, a plain
number of minutes; also days, hours, minutes and seconds by letter. Quotes make no difference. `0` and `infinite` are
refused. Slurm itself rounds a limit up to whole minutes. Examples: {TIME_FORMS}.

### `duration`

The same with a unit or a colon; a plain number is refused, because it could be seconds or minutes. Examples:
{DURATION_FORMS}.

### `memory`

A number with K, M, G or T (powers of 1024); a plain number is MiB. Examples: {MEMORY_FORMS}.
"""

JOB_INTRO = f"""
A job file says what to train and how large; what differs from cluster to cluster is in the
[site profile](site-profile.md). `name` and one of `script`, `module` and `command` are required; the site may also be
named by `--site` or `$HPC_LAUNCH_SITE`.

```yaml
name: tiny-gpt
site: mycluster
queue: gpu
account: proj123
nodes: 2
time: 02:00:00
launcher: torchrun
strategy: fsdp
precision: bf16
script: train.py
args:
  lr: 3e-4                                  # --lr 3e-4
  data: ${{paths.scratch}}/corpus             # a folder that the site profile names
  out: ${{run.dir}}/checkpoints               # this run's own folder
  resume: auto
env: {{NCCL_DEBUG: WARN}}
environment: {{modules: [CUDA/12], venv: ~/venvs/train}}
secrets: [WANDB_API_KEY]
checkpoint: {{signal_before: 5m}}
progress: {{step: 'step (\\d+)/(\\d+)', loss: 'loss ([\\d.]+)'}}
```

For completion and checks in an editor with a YAML language server, put this at the top of a job file:

```text
# yaml-language-server: $schema=PATH/docs/schema/job.schema.json
```

## Layers

A value may be set in several places; the later one wins, mappings are merged key by key, lists are replaced, and null
takes a value away:

1. the site's stack of modules, `defaults:` of the site profile, then those of the node class and of the queue
2. `defaults:` in `~/.config/hpc-launch/user.yaml`
3. `sites: {{NAME: …}}` there, for one site
4. the job file
5. `--set KEY=VALUE` on the command line, with dots: `--set args.lr=0.001`

A mark at a key changes a list in place of replacing it: `modules+` puts items behind those of the layers below,
`+modules` before them, `modules-` takes items away (or keys of a mapping), `env=` replaces a whole mapping.

`hpc-launch explain JOB.yaml` shows for each value which layer, file and line set it.

## Text

| written | filled with | when |
|---|---|---|
| `${{run.dir}}`, `${{attempt.dir}}` | the folder of the run, of the attempt | in the job |
| `${{stop.file}}` | the file that appears when the training shall save and end | in the job |
| `${{job.id}}` | the scheduler's id of the job | in the job |
| `${{shell.NAME}}` | a variable of the job's own shell | in the job |
| `${{paths.NAME}}` | a folder that the site profile names | at submission |
| `${{env.NAME}}` | a variable of the submitting shell | at submission |
| `${{home}}`, `${{user}}`, `${{account}}`, `${{job.name}}` | what their names say | at submission |
| `${{launcher.python}}` | the interpreter that runs hpc-launch | at submission |
| `$${{` | a literal `${{` | |

Nothing else is special: `$HOME`, backticks, quotes and line breaks reach the training as they stand in the file. `~` at
the beginning of a file or folder is the home; a relative one starts at the job file's folder.

YAML's traps are closed: `24:00:00` is 24 hours, `0123`, `1.10` and `3e-4` reach the training as written, `yes` and `no`
are texts, and a key that stands twice is a fault.
{UNITS}
## Keys
"""

SITE_INTRO = f"""
A site profile holds what differs from cluster to cluster, as data: hardware, queues and their limits, the dialect of
GPU requests, paths, defaults. A profile is a YAML file NAME.yaml in one of these folders; the first that has the name
wins:

1. `~/.config/hpc-launch/sites/` (`$XDG_CONFIG_HOME`)
2. `.hpc-launch/sites/` of the job file's project
3. the folders of `$HPC_LAUNCH_SITE_PATH`, separated by colons
4. what `sites add` added: see [sharing profiles](sharing-profiles.md)
5. `/etc/hpc-launch/sites/`
6. the shipped ones: `local`, and [real systems](sites/README.md), each made from published pages

A profile may build on others, by `extends`. How to write one, its layers, conditions and steps are on the page
[writing a profile](writing-a-profile.md); [what differs between sites](site-differences.md) names the key for each
difference that was seen.

`--site` also takes a path to a file. `node_classes` describes the hardware; a queue names the class of the nodes behind
it:

```yaml
name: mycluster
scheduler: slurm
node_classes:
  a100: {{cpus: 128, threads_per_core: 2, memory: 500G, gpus: 4, gpu_request: gres}}
queues:
  gpu:
    partition: gpu
    node_class: a100
    default_time: 01:00:00
    limits:
      - {{nodes: 1-32, time: 24:00:00}}
      - {{nodes: 33-, time: 06:00:00}}
  debug: {{partition: debug, node_class: a100, limits: [{{nodes: 1-2, time: 30m}}]}}
default_queue: gpu
account: {{required: true}}
paths: {{scratch: '/scratch/${{user}}'}}
defaults:
  run_dir: ${{paths.scratch}}/runs
  environment: {{modules: [CUDA/12]}}
  env: {{NCCL_SOCKET_IFNAME: ib0}}
```

Of a cluster at hand `hpc-launch sites learn` drafts one ([learning a site](learning-a-site.md)). By hand its facts come
from Slurm: `sinfo -o '%P %D %c %m %G %l'` prints partitions, nodes, CPUs, memory, GPUs and time limits; `scontrol show
partition` the rest.

For completion and checks in an editor with a YAML language server, put this at the top of a profile:

```text
# yaml-language-server: $schema=PATH/docs/schema/site.schema.json
```
{UNITS}
## Keys
"""


FAILURES_INTRO = """
`hpc-launch why RUN` says what ended a run, and `hpc-launch why --log FILE…` what ended anybody's job, by its log files
(`-` is stdin). The answer is the class of the **root cause**, not of the loudest line: when one rank runs out of memory
and the others report NCCL, it is `cuda_oom`.

```text
$ hpc-launch why --log slurm-4711.out
cuda_oom, confidence high
  first      rank 3 on gpu07
  slurm-4711.out:812
    > [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.
  also       nccl_timeout: 7 times, first slurm-4711.out:951: [Rank 1] Watchdog caught collective operation timeout
  verdict    RETRY_CHANGED
  next       lower the micro batch (accumulate more instead), or shard more …
```

It ends with 0 for a success, and with 1 where it found a failure or no explanation. With `--json` it prints
`{"class", "cause", "verdict", "confidence", "first_failure": {"node", "rank", "time"}, "evidence": [{"file", "line",
"text"}], "also", "advice"}`; `cause` is one of the finer names in the tables below.

## How it is found

1. Everything there is becomes evidence: the scheduler's state, reason and exit codes, also those of the steps (where an
   out-of-memory kill hides), the job's own end record, torchelastic's error files and lists, the notes of the watcher
   in the job, and the logs, line by line with rank, node and time.
2. Rules know lines. Each has an `order`: 10 for what nothing else brings about (a lost node), 20 for a clear cause, 30
   for a likely one, 40 for the program's own exception, 50 for what follows from the end of another process (a closed
   connection, a collective that timed out), 60 for a bare sign that something ended (an exit code).
3. A line does not count if it calls itself a warning, if the training made three steps after it, or if its writer was
   ended by the launcher because another had failed.
4. Of what is left, the lowest tens win, and among those the first in time.

Logs are read in one pass with bounded memory, in any encoding, with bars and colours. 100 MB of training output take
about 10 s, 100 MB of nothing but different errors about a minute. Of a log over 320 MB the first 64 and the last 256 MB
are read.

## Rules of your own

Files `*.yaml` in `~/.config/hpc-launch/rules/` (yours), `/etc/hpc-launch/rules/` (the machine's) and the folder
`rules/` of each folder on `$HPC_LAUNCH_SITE_PATH` and of each team that `sites add` added hold more rules; one with the
id of another replaces it:

```yaml
- id: our-tape-robot
  cause: fs_stale_or_io              # one of the finer names below
  class: filesystem_error            # where it differs from that of the cause
  order: 20
  match: 'tape robot (?P<node>\\S+) is busy'    # Python's re. Groups: node (at fault), at (only named), rank, peer
  verdict: RETRY                     # where it differs from that of the class
  advice: wait for the robot
  source: our wiki
  examples: ['ERROR: tape robot t3 is busy']
```

A match has to contain some fixed word, by which lines are sorted out fast. A rule that cannot be used is said
([HL690](findings.md#hl690)), and the others count.

## The classes
"""


def failures() -> str:
    """A section for each class of failures: what it means, how it is known, what happens, what a person does."""
    book = rulebook.shipped()
    lines = ["# What ended a run", "", MADE.format(source="hpc_launch/recover/rules"), "", FAILURES_INTRO.strip(), ""]
    lines += ["| class | what it is | by default |", "|---|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {facts.title} | `{facts.verdict}` |" for name, facts in book.classes.items()]
    for name, facts in book.classes.items():
        lines += ["", f"### `{name}`", "", f"**{facts.title}.** {facts.means}", ""]
        rules = [rule for rule in book.rules.values() if book.class_of(rule) == name and rule.role != "context"]
        rules.sort(key=lambda rule: rule.order)
        if rules:
            lines += ["Known by lines such as:", "", "```text", *(rule.examples[0] for rule in rules[:10]), "```", ""]
        lines += [f"- hpc-launch {facts.does} (`{facts.verdict}`).", f"- You: {facts.you}"]
        causes = [(key, cause.means) for key, cause in book.causes.items() if cause.failure_class == name]
        if causes:
            lines += ["", "| cause | |", "|---|---|", *(f"| `{key}` | {_cell(means)} |" for key, means in causes)]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    return {
        HERE / "job-file.md": reference("The job file", JOB_INTRO, JobSpec, "hpc_launch/spec/job.py"),
        HERE / "site-profile.md": reference("The site profile", SITE_INTRO, SiteProfile, "hpc_launch/sites/profile.py"),
        HERE / "verbs.md": verbs(),
        HERE / "failures.md": failures(),
        HERE / "schema" / "job.schema.json": json.dumps(json_schema(JobSpec), indent=2) + "\n",
        HERE / "schema" / "site.schema.json": json.dumps(json_schema(SiteProfile), indent=2) + "\n",
    }


def main() -> None:
    """Write what is out of step, or with `--check` only name it and fail."""
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(path.relative_to(HERE.parent))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
