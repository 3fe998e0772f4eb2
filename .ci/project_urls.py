"""The parts of the package's metadata that hold the repository's address, for the build (`REPOSITORY_URL`).

The workflows know the address, the sources do not. Without it, the package has no links, and its description is
README.md as it is. With it, the links in the description lead to the files of this release.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Source": "",
    "Documentation": "{tree}/docs/README.md",
    "Changelog": "{tree}/CHANGELOG.md",
    "Issues": "/issues",
}


class ProjectUrls(MetadataHookInterface):
    """Hatchling calls this for the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`."""
        address = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        tree = f"/blob/v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text("utf-8")
        if address:
            text = re.sub(r"(?<!!)\[([^]]*)\]\((?![a-z]+:|#)", rf"[\1]({address}{tree}/", text)
            text = re.sub(r"!\[([^]]*)\]\((?![a-z]+:|#)", rf"![\1]({address}/raw/v{metadata['version']}/", text)
            metadata["urls"] = {name: address + path.format(tree=tree) for name, path in PAGES.items()}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
