"""Checks for a team's CI: the schema, sources and their age, personal settings, and golden scripts.

Golden scripts of a profile: scripts of small jobs, independent of the user and the machine.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import write_atomic
from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.job.document import Document
from hpc_launch.job.yaml_source import read_document
from hpc_launch.plan.build_plan import build
from hpc_launch.site_tools.team_sources import profiles_in
from hpc_launch.sites.layers import chain, merge_layers
from hpc_launch.sites.load_layers import load
from hpc_launch.sites.provenance import provenance
from hpc_launch.sites.read_profile import read_site
from hpc_launch.sites.search_path import BASES, ENDING, find_profile_or_base, search_folders
from hpc_launch.sites.trust import digest, trust

JOB = """# The job of the golden scripts: no queue, no number of GPUs, no account.
name: tiny
nodes: 2
time: 00:15:00
script: train.py
"""
TEAM_ACCOUNT = "abc123"
"""Account for a site that requires one, if none is set."""
_KEPT_VARIABLES = ("PATH", "LANG", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TMPDIR")
_SAMPLE_USER = {"HOME": "/home/alice", "USER": "alice", "HPC_LAUNCH_HOME": "/home/alice/runs"}


class GoldenScript(Struct, frozen=True):
    """The script of one job, or the reason why there is none."""

    job: str
    script: str | None
    findings: tuple[Finding, ...]


def golden_scripts(
    profile: Path, jobs: Sequence[Path], overlay: Path | None, folders: Sequence[Path] = ()
) -> list[GoldenScript]:
    """Render each job file on a profile. Without job files: the built-in job with torchrun, and in the first image.

    `overlay` is a `user.yaml` with accounts and parameter values. `folders` is where parents are looked up, after the
    profile's own folder and before the machine's and the shipped ones.
    """
    with sample_user(overlay, folders) as scratch:
        trust((digest(layer.document.text) for layer in chain(profile, [])), str(profile))  # the scripts are not run
        if jobs:
            return [_golden_script(profile, job.stem, job, ()) for job in jobs]
        built_in = scratch / "job.yaml"
        built_in.write_text(JOB, "utf-8")
        result = [_golden_script(profile, "torchrun", built_in, ("launcher=torchrun",))]
        with suppress(Refused):  # the script says why
            images = load(built_in, site=str(profile), job_folder="/home/alice/project").resolved.site.containers.images
            result += [_golden_script(profile, "container", built_in, (f"container={one}",)) for one in [*images][:1]]
        return result


@contextmanager
def sample_user(overlay: Path | None, folders: Sequence[Path]) -> Iterator[Path]:
    """Environment of a sample user, so that scripts are the same everywhere. Yields a temporary folder."""
    previous = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-golden-") as name:
        scratch = Path(name)
        (scratch / "hpc-launch").mkdir()
        if overlay is not None:
            (scratch / "hpc-launch" / "user.yaml").write_text(overlay.read_text("utf-8"), "utf-8")
        environment = {key: previous[key] for key in _KEPT_VARIABLES if key in previous}
        path = {"HPC_LAUNCH_SITE_PATH": os.pathsep.join(map(str, folders))}
        try:
            os.environ.clear()
            os.environ.update({**environment, **_SAMPLE_USER, **path, "XDG_CONFIG_HOME": name})
            yield scratch
        finally:
            os.environ.clear()
            os.environ.update(previous)


def _golden_script(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    result = _render_job(profile, name, job, sets)
    if result.script is None and any(one.code == FindingCode.INVALID_ACCOUNT for one in result.findings):
        retried = _render_job(profile, name, job, (*sets, f"account={TEAM_ACCOUNT}"))
        return retried if retried.script is not None else result
    return result


def _render_job(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    try:
        loaded = load(job, site=str(profile), sets=sets, job_folder="/home/alice/project")
        plan, findings = build(loaded.resolved)
    except Refused as refused:
        return GoldenScript(name, None, refused.findings)
    if plan is None or errors(findings):
        return GoldenScript(name, None, tuple(findings))
    from hpc_launch.script.parts import runtime_digest
    from hpc_launch.script.render import render

    # Every release has another runtime.sh; what a profile changes is in the script.
    return GoldenScript(name, render(plan).replace(runtime_digest(), "0" * 64), tuple(findings))


MAX_AGE_DAYS = {
    **dict.fromkeys(("node_classes", "fabric", "hosts", "detect"), 1095),
    **dict.fromkeys(("queues", "billing", "account", "paths"), 270),
}
"""Number of days after which a group of facts should be checked again. Hardware rarely changes, limits change every few
months."""
MAX_SOFTWARE_AGE_DAYS = 180
"""The same for all other groups: modules, images, variables."""
FACT_KEYS = frozenset(
    "scheduler node_classes queues account billing pytorch sbatch srun rules launchers versions stacks options "
    "login_shell prelude env fabric paths caches internet network launch containers".split()
)
"""Keys of a profile that state facts about the system."""
PERSONAL_KEYS = frozenset({"account", "wckey", "mail-user"})
"""sbatch options, and a key of a job, that belong to one person or project."""
_HOME = re.compile(r"/(home|users|u)/(?!\$)[A-Za-z0-9_.-]+(/|\Z)")


def missing_sources(document: Document) -> Iterator[Finding]:
    """HL312 for missing information in a shared profile: its maintainer, and the source of each group."""
    code, sources, data = FindingCode.UNSOURCED_FACTS, provenance(document), document.data
    without_page = data.get("kind") == "base" or data.get("scheduler") == "local"
    required = ["contact"] if without_page else ["contact", "url", "status"]
    required += ["verified_on", "verified_by"] if data.get("status") == "verified" and not without_page else []
    for key in (key for key in required if not data.get(key)):
        hint = "add it (see `hpc-launch docs writing a profile`)"
        yield Finding(code, f"a shared profile requires `{key}`", document.places.get(()), hint)
    for group in (key for key in data if _plain(key) in FACT_KEYS):
        fact = sources.fact((_plain(group),))
        missing = [name for name in ("source", "as_of", "grade") if getattr(fact, name) is None]
        if missing:
            message, hint = f"`{group}` is missing {', '.join(missing)}", "set it at the top level, or below `facts:`"
            yield Finding(code, message, document.key_places.get((group,)), hint)


def _plain(key: str) -> str:
    """A key without its merge operator."""
    return key.rstrip("+-=").lstrip("+")


def outdated_facts(document: Document, today: dt.date) -> Iterator[Finding]:
    """HL312 as a warning for each group of facts that should be checked again."""
    sources = provenance(document)
    for group in (key for key in document.data if key in FACT_KEYS):
        as_of = sources.fact((group,)).as_of
        max_age = MAX_AGE_DAYS.get(group, MAX_SOFTWARE_AGE_DAYS)
        if as_of is not None and as_of < (today - dt.timedelta(max_age)).isoformat():
            message = f"`{group}` is as of {as_of}; such facts should be checked every {max_age} days"
            place = document.key_places.get((group,))
            yield Finding(FindingCode.UNSOURCED_FACTS, message, place, "check the facts and update `as_of`", "warning")


def personal_settings(document: Document, stem: str) -> Iterator[Finding]:
    """HL321 for personal settings, and HL313 as a warning for raw shell lines."""
    code, name = FindingCode.PERSONAL_PROFILE, document.data.get("name")
    if name is not None and name != stem:
        message = f"the profile `{name}` is in the file {stem}{ENDING}"
        hint = "`--site` finds it by its file name: use the same name for both"
        yield Finding(code, message, document.places.get(("name",)), hint)
    for path, text in document.written.items():
        place = document.places.get(path)
        if path[-1] in PERSONAL_KEYS and path[:-1] and path[-2] in ("defaults", "sbatch", "add"):
            hint = "remove it; each user sets it in user.yaml: `sites: {NAME: {account: …}}`"
            yield Finding(code, f"`{path[-1]}: {text}` is a personal setting in a shared profile", place, hint)
        elif _HOME.search(text) and path[0] in ("paths", "caches", "containers", "defaults", "env", "prelude"):
            hint = "use `${home}` or `${user}`, or move it to user.yaml"
            yield Finding(code, f"`{text}` looks like a personal home folder", place, hint, "warning")
        if path[-1] == "raw" and isinstance(path[-2], int):
            hint = "use a typed step if possible, which is easier to review"
            yield Finding(FindingCode.UNTRUSTED_CODE, f"raw shell line `{text}`", place, hint, "warning")


GOLDEN = "golden"
"""Folder next to the profiles: job files, `user.yaml` with accounts and parameters, and the scripts of each profile."""
_NEEDS_VALUES = frozenset({FindingCode.INVALID_ACCOUNT, FindingCode.INVALID_PARAMETER})
"""Codes for a missing account or template parameter."""


def files_of(names: Sequence[str]) -> list[Path]:
    """Profile files by name, by path, or of whole folders including their bases. Raises Refused, UsageError."""
    files: list[Path] = []
    for name in names:
        folder = Path(name)
        if os.path.isdir(folder):
            profiles = [*profiles_in(folder), *profiles_in(folder / BASES)]
            if not profiles:
                raise UsageError(f"no profile found in {name}", "put profiles at its top level, as NAME.yaml")
            files += profiles
        else:
            files.append(find_profile_or_base(name))
    return files


def check(path: Path, *, update_golden: bool, today: dt.date | None = None) -> list[Finding]:
    """All errors and warnings about a profile."""
    document, faults = read_document(path)
    if document is None:
        return faults
    day = today or dt.datetime.now(dt.timezone.utc).date()
    findings = [*missing_sources(document), *outdated_facts(document, day), *personal_settings(document, path.stem)]
    profile_findings: list[Finding] = []
    kind = document.data.get("kind", "system")
    if kind == "base":
        merge_layers(chain(path, profile_findings, review=True), None, profile_findings)
    else:
        read_site(path, None, profile_findings, own=True, review=True)
    findings += [fault for fault in profile_findings if fault not in findings]
    if kind != "base" and not errors(profile_findings):
        findings += _golden(path, update=update_golden)
    return list(dict.fromkeys(findings))


def _golden(profile: Path, *, update: bool) -> list[Finding]:
    """HL322 for each script that differs from its golden script. Without a folder of golden scripts nothing is
    checked."""
    folder = profile.parent / GOLDEN
    if update and not os.path.isdir(folder):
        folder.mkdir()
        (folder / "torchrun.yaml").write_text(f"{JOB}launcher: torchrun\n", "utf-8")
    if not os.path.isdir(folder):
        return []
    jobs = sorted(path for path in folder.glob(f"*{ENDING}") if path.name != "user.yaml")
    user_file = folder / "user.yaml"
    folders = search_folders()[:-1]
    findings: list[Finding] = []
    for golden_script in golden_scripts(profile, jobs, user_file if os.path.isfile(user_file) else None, folders):
        golden = folder / profile.stem / f"{golden_script.job}.sh"
        if golden_script.script is None:
            for fault in errors(list(golden_script.findings)):
                is_users = fault.code in _NEEDS_VALUES
                findings.append(replace(fault, hint=f"set it in {user_file}") if is_users else fault)
            continue
        if update:
            golden.parent.mkdir(exist_ok=True)
            if os.path.realpath(golden.parent) != os.path.join(os.path.realpath(profile.parent), GOLDEN, profile.stem):
                raise UsageError(f"{golden.parent} leads elsewhere by a link", "replace the link by a folder")
            write_atomic(golden, golden_script.script)  # replaces a link
        findings += _compare_script(golden, golden_script.script)
    return findings


def _compare_script(golden: Path, script: str) -> list[Finding]:
    code = FindingCode.GOLDEN_SCRIPT_DIFFERS
    hint = "if the change is intended, run `hpc-launch sites check --update-golden` and review the difference"
    try:
        expected = golden.read_text("utf-8")
    except OSError:
        return [Finding(code, "no golden script for this job", Place(str(golden)), hint)]
    if expected == script:
        return []
    lines = enumerate(zip_longest(expected.splitlines(), script.splitlines(), fillvalue=""), 1)
    line, new = next(((at, new) for at, (old, new) in lines if old != new), (1, "other line endings"))
    message = f"the script differs, first in `{' '.join(new.split())}`"
    return [Finding(code, message, Place(str(golden), line, 1), hint)]


def check_all(names: Sequence[str], *, update_golden: bool) -> tuple[int, list[Finding]]:
    """Number of profiles, and all findings about them."""
    files = files_of(names)
    findings: list[Finding] = []
    for path in files:
        try:
            findings += check(path, update_golden=update_golden)
        except Refused as refused:
            findings += refused.findings
    return len(files), findings
