"""Generate docs/reference/sites: a page per shipped profile, and an overview (`make docs`). A test compares them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from docs.page_links import relative
from docs.site_page import MADE, UNKNOWN, Shipped, launcher_of, page, request, runtime_of, table
from hpc_launch.base.findings import Finding, errors
from hpc_launch.base.installed import shipped
from hpc_launch.job.reader import read
from hpc_launch.site_tools.show_profiles import basis
from hpc_launch.sites.layers import chain, merge_layers
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import fill

HERE = Path(__file__).parent / "reference" / "sites"


@cache
def shipped_profiles() -> tuple[Shipped, ...]:
    """Return all profiles that a job can name, sorted by name. Raise ValueError for an invalid profile."""
    found = []
    for path in sorted(shipped("site_configs").glob("*.yaml")):
        findings: list[Finding] = []
        layers = chain(path, findings)
        merged = merge_layers(layers, None, findings)
        filled = merge_layers(layers, None, findings)
        fill(filled, findings, examples=True)
        profile, faults = read(filled, SiteProfile)
        if profile is None or errors([*findings, *faults]):
            raise ValueError("\n".join(map(str, [*findings, *faults])))
        if profile.scheduler.type != "local":
            found.append(Shipped(profile, merged, layers))
    return tuple(found)


def overview(profiles: Sequence[Shipped]) -> str:
    """Return the overview page, with a row per profile."""
    rows = []
    for one in profiles:
        site = one.profile
        queue = site.queues[site.default_queue or next(iter(site.queues))]
        node = site.node_classes[queue.node_class]
        stack = site.stacks.get(queue.stack or node.stack or "")
        modules = " ".join(stack.environment.modules) if stack else ""
        launcher, step = launcher_of(site), site.launch.step
        rows.append(
            (
                f"[{site.name}]({site.name}.md)",
                basis([layer.document for layer in one.layers]) or "",
                site.grade or "",
                request(node),
                f"`{launcher}`" if launcher == step else f"`{launcher}` with `{step}`",
                runtime_of(one),
                f"`{modules}`" if modules else "set by the job",
                node.arch or "",
                site.fabric.kind or UNKNOWN,
                {None: UNKNOWN, "none": "no"}.get(site.internet.compute) or str(site.internet.compute),
            )
        )
    head = (
        "site",
        "basis",
        "grade",
        "GPU request (whole node)",
        "launcher",
        "containers",
        "modules",
        "architecture",
        "network",
        "internet",
    )
    text = "\n".join([*README.strip().splitlines(), "", *table(head, rows)]) + "\n"
    return relative(text, HERE / "README.md")


README = f"""
# Shipped site profiles

{MADE.format(file="*.yaml")}

To use a profile, set `site: NAME` in the job file or `--site NAME`. Put your account and other personal settings into
`user.yaml`.

The tests render the same [job file](../../../tests/golden/shipped/job.yaml) for each of these sites. It names no queue,
no number of GPUs and no launcher. The table shows the result in each site's default queue. The page of a site gives the
source of each fact and its grade, what is not known, and how the script differs from the site's own example; for eight
systems, [each line of both](evidence/published/README.md).

No profile has been tried on its system yet: read the script before your first job, and report errors. The column
`basis` says whether the request and the environment rest on the pages of the `centre`, or in part on the scripts of
`others`; `hpc-launch sites list` shows the same word. Centres can [take over their profile](how-to/for-centres.md).
"""


def pages() -> dict[Path, str]:
    """Return every generated file with its content."""
    found = shipped_profiles()
    return {HERE / "README.md": overview(found), **{HERE / f"{one.profile.name}.md": page(one) for one in found}}


def main() -> None:
    """Write the outdated pages and delete the pages of removed profiles."""
    made = pages()
    HERE.mkdir(exist_ok=True)
    for path in set(HERE.glob("*.md")) - set(made):
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text("utf-8") != text:
            print(path.relative_to(HERE.parents[2]))
            path.write_text(text, "utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
