"""What a team's CI asks of its profiles: the schema, sources and their age, nothing personal, and golden scripts."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.site_tools.golden_jobs import JOB, made_from
from hpc_launch.site_tools.list_profiles import profile_file
from hpc_launch.site_tools.sharing_checks import missing_sources, outdated_facts, personal_settings
from hpc_launch.sites.layers import BASES, chain, merge_layers
from hpc_launch.sites.read_profile import read_site
from hpc_launch.sites.search_path import ENDING, search_path
from hpc_launch.spec.yaml_source import read_document

GOLDEN = "golden"
"""The folder beside profiles: job files, `user.yaml` with accounts and parameters, and scripts by profile."""
_NEEDS_VALUES = frozenset({FindingCode.INVALID_ACCOUNT, FindingCode.INVALID_PARAMETER})
"""An account, a parameter of a template."""


def files_of(what: Sequence[str]) -> list[Path]:
    """The files of profiles by name, by path, or of whole folders with their bases. Raises Refused, UsageError."""
    found: list[Path] = []
    for one in what:
        folder = Path(one)
        if folder.is_dir():
            inside = [*sorted(folder.glob(f"*{ENDING}")), *sorted((folder / BASES).glob(f"*{ENDING}"))]
            if not inside:
                raise UsageError(f"there is no profile in {one}", "they lie at its top, as NAME.yaml")
            found += inside
        else:
            found.append(profile_file(one))
    return found


def check(path: Path, *, update_golden: bool, today: dt.date | None = None) -> list[Finding]:
    """All that is to be said about a profile, faults and warnings."""
    document, faults = read_document(path)
    if document is None:
        return faults
    day = today or dt.datetime.now(dt.timezone.utc).date()
    findings = [*missing_sources(document), *outdated_facts(document, day), *personal_settings(document, path.stem)]
    read: list[Finding] = []
    folders = [folder for _, folder in search_path()]
    kind = document.data.get("kind", "system")
    if kind == "base":
        merge_layers(chain(path, read, own=True, folders=folders), None, read)
    else:
        read_site(path, None, read, own=True, folders=folders, examples=True)
    findings += [fault for fault in read if fault not in findings]
    if kind != "base" and not errors(read):
        findings += _golden(path, update=update_golden)
    return list(dict.fromkeys(findings))


def _golden(profile: Path, *, update: bool) -> list[Finding]:
    """HL322 for each script that is not the golden one; without a folder of golden scripts nothing is looked at."""
    folder = profile.parent / GOLDEN
    if update and not folder.is_dir():
        folder.mkdir()
        (folder / "torchrun.yaml").write_text(f"{JOB}launcher: torchrun\n", "utf-8")
    if not folder.is_dir():
        return []
    jobs = sorted(path for path in folder.glob(f"*{ENDING}") if path.name != "user.yaml")
    users = folder / "user.yaml"
    folders = [folder for _, folder in search_path()][:-1]
    findings: list[Finding] = []
    for made in made_from(profile, jobs, users if users.is_file() else None, folders):
        golden = folder / profile.stem / f"{made.job}.sh"
        if made.script is None:
            findings += [_about_users(fault, users) for fault in errors(list(made.findings))]
            continue
        if update:
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(made.script, "utf-8")
        findings += _compared(golden, made.script)
    return findings


def _about_users(fault: Finding, users: Path) -> Finding:
    hint = f"for the golden scripts say it in {users}" if fault.code in _NEEDS_VALUES else fault.hint
    return Finding(fault.code, fault.message, fault.place, hint)


def _compared(golden: Path, script: str) -> list[Finding]:
    hint = "if that is meant: `hpc-launch sites check --update-golden`, and look at what changes"
    try:
        expected = golden.read_text("utf-8")
    except OSError:
        return [
            Finding(
                FindingCode.GOLDEN_SCRIPT_DIFFERS, "there is no golden script of this job", Place(str(golden)), hint
            )
        ]
    if expected == script:
        return []
    pairs = zip(expected.splitlines(), script.splitlines(), strict=False)
    shortest = min(len(expected.splitlines()), len(script.splitlines()))
    line = next((at for at, (old, new) in enumerate(pairs, 1) if old != new), shortest + 1)
    changed = [
        text
        for text in difflib.unified_diff(expected.splitlines(), script.splitlines(), n=0, lineterm="")
        if not text.startswith(("---", "+++", "@@"))
    ]
    lines = "1 line" if len(changed) == 1 else f"{len(changed)} lines"
    message = (
        f"the script is another one in {lines}, first `{' '.join(changed[0].split())}`"
        if changed
        else "other ends of lines"
    )
    return [Finding(FindingCode.GOLDEN_SCRIPT_DIFFERS, message, Place(str(golden), line, 1), hint)]


def check_all(what: Sequence[str], *, update_golden: bool) -> tuple[int, list[Finding]]:
    """How many profiles there are, and all that is to be said about them."""
    files = files_of(what)
    findings: list[Finding] = []
    for path in files:
        try:
            findings += check(path, update_golden=update_golden)
        except Refused as refused:
            findings += refused.findings
    return len(files), findings
