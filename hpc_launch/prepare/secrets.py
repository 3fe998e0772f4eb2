"""Look up secrets by name in the submitting shell, or in a file that only the user can read. Never write them."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_launch.base.errors import Refused
from hpc_launch.base.files import LONGEST, open_regular
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.user_dirs import config_folder


def find_secrets(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each name; the shell takes precedence over the file. Raises Refused for missing ones."""
    if not names:
        return {}
    findings: list[Finding] = []
    path = config_folder() / "secrets.env"
    stored = _read(path, findings)
    values: dict[str, str] = {}
    for name in names:
        value = environment.get(name) or stored.get(name)
        if value:
            values[name] = value
        else:
            hint = f"export {name} in this shell, or add {name}=… to {path} (mode 0600)"
            findings.append(Finding(FindingCode.SECRET_NOT_SET, f"the secret {name} is not set", hint=hint))
    if findings:
        raise Refused(findings)
    return values


def known_secrets(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the names whose value is known here. For messages, whose failure must stop nothing."""
    stored = _read(config_folder() / "secrets.env", []) if any(not environment.get(name) for name in names) else {}
    return {name: value for name in names if (value := environment.get(name) or stored.get(name))}


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
