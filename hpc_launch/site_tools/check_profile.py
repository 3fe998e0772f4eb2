"""Checks for a team's CI: the schema, sources and their age, personal settings, and golden scripts."""

from __future__ import annotations

import datetime as dt
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import write_atomic
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.yaml_source import read_document
from hpc_launch.site_tools.golden_jobs import JOB, golden_scripts
from hpc_launch.site_tools.list_profiles import profile_file
from hpc_launch.site_tools.sharing_checks import missing_sources, outdated_facts, personal_settings
from hpc_launch.sites.layers import chain, merge_layers
from hpc_launch.sites.read_profile import read_site
from hpc_launch.sites.search_path import BASES, ENDING, search_path

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
            profiles = [*sorted(folder.glob(f"*{ENDING}")), *sorted((folder / BASES).glob(f"*{ENDING}"))]
            if not profiles:
                raise UsageError(f"no profile found in {name}", "put profiles at its top level, as NAME.yaml")
            files += profiles
        else:
            files.append(profile_file(name))
    return files


def check(path: Path, *, update_golden: bool, today: dt.date | None = None) -> list[Finding]:
    """All errors and warnings about a profile."""
    document, faults = read_document(path)
    if document is None:
        return faults
    day = today or dt.datetime.now(dt.timezone.utc).date()
    findings = [*missing_sources(document), *outdated_facts(document, day), *personal_settings(document, path.stem)]
    profile_findings: list[Finding] = []
    folders = [folder for _, folder in search_path()]
    kind = document.data.get("kind", "system")
    if kind == "base":
        merge_layers(chain(path, profile_findings, own=True, folders=folders), None, profile_findings)
    else:
        read_site(path, None, profile_findings, own=True, folders=folders, examples=True)
    profile_findings = [fault for fault in profile_findings if fault.code != FindingCode.UNTRUSTED_CODE]
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
    folders = [folder for _, folder in search_path()][:-1]
    findings: list[Finding] = []
    for golden_script in golden_scripts(profile, jobs, user_file if os.path.isfile(user_file) else None, folders):
        golden = folder / profile.stem / f"{golden_script.job}.sh"
        if golden_script.script is None:
            findings += [_with_user_hint(fault, user_file) for fault in errors(list(golden_script.findings))]
            continue
        if update:
            golden.parent.mkdir(exist_ok=True)
            if os.path.realpath(golden.parent) != os.path.join(os.path.realpath(profile.parent), GOLDEN, profile.stem):
                raise UsageError(f"{golden.parent} leads elsewhere by a link", "replace the link by a folder")
            write_atomic(golden, golden_script.script)  # replaces a link
        findings += _compare_script(golden, golden_script.script)
    return findings


def _with_user_hint(fault: Finding, user_file: Path) -> Finding:
    hint = f"for the golden scripts, set it in {user_file}" if fault.code in _NEEDS_VALUES else fault.hint
    return Finding(fault.code, fault.message, fault.place, hint)


def _compare_script(golden: Path, script: str) -> list[Finding]:
    hint = "if the change is intended, run `hpc-launch sites check --update-golden` and review the difference"
    try:
        expected = golden.read_text("utf-8")
    except OSError:
        return [Finding(FindingCode.GOLDEN_SCRIPT_DIFFERS, "no golden script for this job", Place(str(golden)), hint)]
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
        f"the script differs in {lines}, first `{' '.join(changed[0].split())}`"
        if changed
        else "the script has different line endings"
    )
    return [Finding(FindingCode.GOLDEN_SCRIPT_DIFFERS, message, Place(str(golden), line, 1), hint)]


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
