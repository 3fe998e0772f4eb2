"""Writes docs/sites: a page for each shipped profile, and a table of all. `make docs`; a test holds them in step."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.site_page import MADE, Shipped, launcher_of, page, request, table
from hpc_launch.base.findings import Finding, errors
from hpc_launch.base.resources import shipped
from hpc_launch.sites.layers import chain, put_together
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import fill
from hpc_launch.spec.reader import read

HERE = Path(__file__).parent / "sites"


def shipped_profiles() -> list[Shipped]:
    """All that a job can name, by name. Raises ValueError for one that cannot be read."""
    found = []
    for path in sorted(shipped("site_configs").glob("*.yaml")):
        findings: list[Finding] = []
        layers = chain(path, findings)
        merged = put_together(layers, None, findings)
        filled = put_together(layers, None, findings)
        fill(filled, findings, examples=True)
        profile, faults = read(filled, SiteProfile)
        if profile is None or errors([*findings, *faults]):
            raise ValueError("\n".join(map(str, [*findings, *faults])))
        if profile.scheduler.type != "local":
            found.append(Shipped(profile, merged, layers))
    return found


def overview(all_of_them: list[Shipped]) -> str:
    """The page with a row for each profile."""
    rows = []
    for site in (one.profile for one in all_of_them):
        queue = site.queues[site.default_queue or next(iter(site.queues))]
        node = site.node_classes[queue.node_class]
        stack = site.stacks.get(queue.stack or node.stack or "")
        modules = " ".join(stack.environment.modules) if stack else ""
        launcher, step = launcher_of(site), site.launch.step
        rows.append(
            (
                f"[{site.name}]({site.name}.md)",
                site.grade or "",
                request(node),
                f"`{launcher}`" if launcher == step else f"`{launcher}` by `{step}`",
                f"`{site.containers.runtime}`",
                f"`{modules}`" if modules else "the job's own",
                node.arch or "",
                site.fabric.kind or "not known",
                {None: "not known", "none": "no"}.get(site.internet.compute) or str(site.internet.compute),
            )
        )
    head = ("site", "grade", "GPUs of a node", "launcher", "images", "modules", "processor", "network", "internet")
    return "\n".join([*README.strip().splitlines(), "", *table(head, rows)]) + "\n"


README = f"""
# The shipped sites

{MADE.format(file="*.yaml")}

One [job file](../../tests/golden/shipped/job.yaml), unchanged, is rendered for each of these sites by the tests: no
queue, no number of GPUs and no launcher stand in it. The table shows what comes of it in each site's default queue. A
page says where each fact is from, how good the source is, what is not known, and where the script differs from the
site's own example. No profile was tried on its system unless its page says so: read the script before the first job,
and tell what is wrong.

The account, and whatever else is personal, stands in the user's `user.yaml`.
"""


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    found = shipped_profiles()
    return {HERE / "README.md": overview(found), **{HERE / f"{one.profile.name}.md": page(one) for one in found}}


def main() -> None:
    """Write what is out of step and remove pages of profiles that are gone."""
    made = pages()
    HERE.mkdir(exist_ok=True)
    for path in set(HERE.glob("*.md")) - set(made):
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text("utf-8") != text:
            print(path.relative_to(HERE.parent.parent))
            path.write_text(text, "utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
