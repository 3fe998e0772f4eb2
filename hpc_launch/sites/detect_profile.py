"""Detect the site of this machine by matching the `detect:` rules of all profiles on the search path.

The methods are tried in order, and the first one with a match decides: variables set by the site, fully qualified host
names, existing files, and finally Slurm's cluster name, which requires a query to the controller. If two profiles match
by the same method, neither is chosen. The user's own profiles come first: somebody else's profile decides only where
none of them matches.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, Unreachable
from hpc_launch.base.files import FileAccess, has_acl, only_writable_by, read_text, way_to
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.json_records import as_type
from hpc_launch.job.yaml_source import MAX_BYTES, parse_document, read_document
from hpc_launch.sites.profile import DetectionRule
from hpc_launch.sites.search_path import OWN_LAYERS, ProfileFile, profile_files
from hpc_launch.sites.trust import is_trusted

_TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.MULTILINE)


class ProfileCandidate(Struct, frozen=True):
    """A profile on the search path with its detection rules."""

    name: str
    path: Path
    layer: str
    rules: tuple[DetectionRule, ...]
    fault: str | None = None
    """Why its rules could not be read."""


def candidates(project: Path | None = None) -> Iterator[ProfileCandidate]:
    """The nearest profile of each name on the search path.

    If it has no `detect:`, the rules of the next profile with the same name apply: a team's `juwels` overrides ours.
    """
    nearest_by_name: dict[str, ProfileCandidate] = {}
    for file in profile_files(project):
        name = file.path.stem
        nearest = nearest_by_name.get(name) or ProfileCandidate(name, file.path, file.layer, ())
        if not nearest.rules and not nearest.fault:
            rules, fault = _rules(file)
            nearest_by_name[name] = ProfileCandidate(name, nearest.path, nearest.layer, rules, fault)
    yield from nearest_by_name.values()


def _rules(file: ProfileFile) -> tuple[tuple[DetectionRule, ...], str | None]:
    """Rules of one file, and why there are none.

    Parses only that part of the file, because there may be hundreds of files on a slow disk.
    """
    path = file.path
    try:
        text = read_text(path, longest=MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        return (), str(error)
    if "detect" not in text:
        return (), None
    document, faults = parse_document(_top_level_block(text, "detect") or text, str(path))
    if document is None or faults:
        return (), str(faults[0]) if faults else "the file is empty"
    data: Any = document.data.get("detect") or []
    try:
        rules = as_type(data, list[DetectionRule])
    except ValidationError as error:
        return (), f"{path}: detect: {error}"
    # A rule without keys would match every machine.
    rules = [rule for rule in rules if rule != DetectionRule()]
    if file.layer not in OWN_LAYERS and any(map(_is_private, rules)):
        whole, _ = read_document(path)
        if whole is None or whole.text != text or not is_trusted(path, whole):
            rules = [rule for rule in rules if not _is_private(rule)]
            fault = f"{path}: detect: a file that is not trusted may not test parts of variables or private paths"
            return tuple(rules), None if rules else fault
    return tuple(rules), None


def _is_private(rule: DetectionRule) -> bool:
    """Whether a rule asks what only the user may know. The queue shows whether it matches, by the site's partition."""
    parts = any(pattern != "*" and re.search(r"[*?\[]", pattern) for pattern in rule.env.values())
    return parts or (rule.path is not None and not _visible_to_all(Path(rule.path)))


def _visible_to_all(path: Path) -> bool:
    """Whether every user can find out if a path exists, and nobody but this user and root can lead it elsewhere.

    What does not exist hides nothing.
    """
    visible = path.is_absolute()
    try:
        for one, status in way_to(path):
            if not visible:
                return False
            visible = status.st_uid in (0, os.getuid())
            if visible and not stat.S_ISLNK(status.st_mode):
                visible = only_writable_by(status.st_uid, FileAccess(status, has_acl(one))) and status.st_mode & 1 == 1
    except OSError as error:
        return visible and error.errno == errno.ENOENT
    return True


def _top_level_block(text: str, key: str) -> str | None:
    """Lines of a top-level key, or None if the file has no such lines."""
    starts = list(_TOP_KEY.finditer(text))
    for at, match in enumerate(starts):
        if match[1] == key:
            end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
            return text[match.start() : end]
    return None


METHODS = ("variable", "host", "path", "cluster")
"""Detection methods in order of precedence."""


class Machine(Struct, frozen=True):
    """Properties of this machine that rules can match."""

    environment: Mapping[str, str]
    hosts: tuple[str, ...]
    exists: Callable[[str], bool]
    cluster: Callable[[], str | None]
    """Slurm's cluster name, or None if it is not available. Raises Unreachable if the controller does not answer."""
    has_slurm: Callable[[], bool]


class Match(Struct, frozen=True):
    """A matching profile, the method that matched and the reason."""

    name: str
    path: Path
    layer: str
    method: str
    reason: str


class Detection(Struct, frozen=True):
    """Result of the detection. `chosen` is the only matching profile, or `local` on a machine without Slurm."""

    chosen: Match | None
    matches: tuple[Match, ...]
    """All profiles that matched by the deciding method; more than one is ambiguous."""
    unread: tuple[ProfileCandidate, ...]
    cluster: str | None
    """Slurm's cluster name, if it was queried."""
    unreachable: str | None = None
    """Why Slurm's cluster name is not known, if it was queried without an answer."""

    def required(self, place: Place | None = None) -> Match:
        """The chosen site. Raises Refused at `place` where none or several match, Unreachable for want of an answer."""
        if self.chosen is not None:
            return self.chosen
        if self.unreachable is not None:
            raise Unreachable(self.message, self.hint)
        raise Refused([Finding(FindingCode.SITE_NOT_DETECTED, self.message, place, self.hint)])

    @property
    def message(self) -> str:
        """Why no site was chosen."""
        if self.unreachable is not None:
            return f"no site specified, and the Slurm controller is unreachable: {self.unreachable}"
        if self.matches:
            fit = "; ".join(f"{match.name} ({match.reason})" for match in self.matches)
            return f"no site specified, and several profiles match this machine: {fit}"
        return "no site specified, and no profile matches this machine"

    @property
    def hint(self) -> str:
        """How to choose one."""
        flag = "`--site NAME`, `site:` in the job file, or HPC_LAUNCH_SITE"
        if self.unreachable is not None:
            return f"try again once it answers: it knows the cluster's name; or select a site with {flag}"
        if self.matches:
            return f"select one with {flag}"
        learn = "create a profile of this cluster with `hpc-launch sites learn`"
        return f"select one with {flag} (`local` is this machine), or {learn}"


def detect(machine: Machine, project: Path | None = None) -> Detection:
    """Match every profile on the search path by each method. `project` is the folder of a job file."""
    profiles = list(candidates(project))
    unread = tuple(profile for profile in profiles if profile.fault)
    answers: list[str | None] = []
    faults: list[str] = []

    def cluster() -> str | None:
        """Ask once."""
        if not answers:
            try:
                answers.append(machine.cluster())
            except Unreachable as error:
                answers.append(None)
                faults.append(str(error))
        return answers[0]

    asked = replace(machine, cluster=cluster)
    own = [profile for profile in profiles if profile.layer == "user"]
    for group in filter(None, (own, profiles)):
        for method in METHODS:
            matches = tuple(match for profile in group if (match := _first_match(profile, method, asked)))
            if matches:
                return Detection(matches[0] if len(matches) == 1 else None, matches, unread, next(iter(answers), None))
    if faults:
        return Detection(None, (), unread, None, faults[0])
    local = next((profile for profile in profiles if profile.name == "local"), None)
    chosen = None
    if local is not None and not machine.has_slurm():
        chosen = Match("local", local.path, local.layer, "local", "Slurm is not installed on this machine")
    return Detection(chosen, (chosen,) if chosen else (), unread, next(iter(answers), None))


def _method(rule: DetectionRule) -> str:
    """Method of a rule: that of its strongest key. Rules with `cluster` come last, so that Slurm is queried only if
    necessary."""
    if rule.cluster is not None:
        return "cluster"
    return "variable" if rule.env else "host" if rule.host is not None else "path"


def _first_match(profile: ProfileCandidate, method: str, machine: Machine) -> Match | None:
    for rule in profile.rules:
        if _method(rule) == method and (reasons := match_reasons(rule, machine)):
            return Match(profile.name, profile.path, profile.layer, method, " and ".join(reasons))
    return None


def match_reasons(rule: DetectionRule, machine: Machine) -> list[str]:
    """Reasons why a rule matches, one per key. Empty unless all of its keys match."""
    reasons = []
    for name, pattern in rule.env.items():
        value = machine.environment.get(name)
        if value is None or not fnmatchcase(value, pattern):
            return []
        reasons.append(f"{name}={pattern}")  # not the value: a profile may name a secret
    if rule.host is not None:
        matching = [host for host in machine.hosts if fnmatchcase(host, rule.host)]
        if not matching:
            return []
        reasons.append(f"host {matching[0]}")
    if rule.path is not None:
        if not machine.exists(rule.path):
            return []
        reasons.append(f"{rule.path} exists")
    if rule.cluster is not None:
        if machine.cluster() != rule.cluster:
            return []
        reasons.append(f"Slurm cluster name {rule.cluster}")
    return reasons
