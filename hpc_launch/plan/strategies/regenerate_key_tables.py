"""Regenerate key_tables/*.json from the installed libraries: `make key-tables`."""

from __future__ import annotations

import json
import sys

import msgspec

from hpc_launch.plan.strategies.key_tables import FOLDER, LIBRARIES, LibraryKeys
from hpc_launch.plan.strategies.library_query import list_keys


def text_of(keys: LibraryKeys) -> str:
    """The file's text: one key a line, in the library's own order."""
    data = {name: value for name, value in msgspec.to_builtins(keys).items() if value}
    return json.dumps(data, indent=1) + "\n"


def main() -> int:
    """Write the table of each installed library, and name those that are missing."""
    missing = []
    for library in LIBRARIES:
        keys = list_keys(library)
        if keys is None:
            missing.append(library)
            continue
        (FOLDER / f"{library}.json").write_text(text_of(keys), encoding="utf-8")
        print(f"{library} {keys.release}")
    if missing:
        print(f"not installed, or its layout changed: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
