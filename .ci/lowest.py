"""Print each dependency of pyproject.toml at the lowest version allowed: `click>=8.1.7` becomes `click==8.1.7`."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

for asked in tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]["dependencies"]:
    lowest = re.fullmatch(r"([\w-]+)>=([\d.]+)(,[^;]*)?(;.*)?", asked)
    if lowest is None:
        sys.exit(f"pyproject.toml: no lowest version in {asked!r}; write it as NAME>=VERSION")
    print(f"{lowest[1]}=={lowest[2]}{lowest[4] or ''}")
