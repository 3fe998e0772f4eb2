"""Look up secrets by name in the submitting shell, or in a file that only the user can read. Never write them."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import Refused
from hpc_launch.base.files import LONGEST, config_folder, open_regular
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.plan.recorded_parts import NotifyPlan


def find_secrets(names: Sequence[str]) -> dict[str, str]:
    """Return the value of each name; the shell takes precedence over the file. Raises Refused for missing ones."""
    values, findings = look_up(names)
    if findings:
        raise Refused(findings)
    return values


def look_up(names: Sequence[str], place: Place | None = None) -> tuple[dict[str, str], list[Finding]]:
    """The values that are known here; HL210 for each name without one, HL214 for a file that cannot be used.

    `place`: that of the names.
    """
    file, findings = config_folder() / "secrets.env", list[Finding]()
    stored = _read(file, findings) if any(not os.environ.get(name) for name in names) else {}
    values = {name: value for name in names if (value := os.environ.get(name) or stored.get(name))}
    for name in (name for name in names if name not in values):
        hint = f"export {name} in this shell, or add {name}=… to {file} (mode 0600)"
        findings.append(Finding(FindingCode.SECRET_NOT_SET, f"the secret {name} is not set", place, hint))
    return values, findings


def secrets_of(notify: NotifyPlan | None, names: Sequence[str]) -> dict[str, str]:
    """What a job takes from its submitter. Raises Refused where one of `names` is missing."""
    return {**look_up(notify_secrets(notify))[0], **find_secrets(names)}


def _read(path: Path, findings: list[Finding]) -> dict[str, str]:
    """Parse NAME=VALUE lines; blank lines and `#` comments are ignored."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                message, hint = f"other users can read the file (mode {mode:04o})", f"run `chmod 600 {path}`"
                findings.append(Finding(FindingCode.INSECURE_SECRETS_FILE, message, Place(str(path)), hint))
                return {}
            lines = stream.read(LONGEST).splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        hint = "write one NAME=VALUE per line, in UTF-8"
        message = f"cannot read the file: {reason}"
        findings.append(Finding(FindingCode.INSECURE_SECRETS_FILE, message, Place(str(path)), hint))
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip().removeprefix("export ").strip(): value.strip() for name, _, value in pairs}


def notify_secrets(notify: NotifyPlan | None) -> tuple[str, ...]:
    """The variable with the address of a run's webhook. A later attempt goes on without."""
    return (notify.secret,) if notify is not None and notify.secret is not None else ()
