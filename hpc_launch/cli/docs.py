"""`docs`: the manual, in the terminal."""

from __future__ import annotations

import shlex

import click

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.terminal import print_note
from hpc_launch.view.manual import find_page, finding_text, page_text, pages, search

MORE = 5
"""Further sections that are named."""


@click.command("docs")
@click.argument("words", nargs=-1)
def command(words: tuple[str, ...]) -> None:
    """Print a page of the manual: by its name, by the code of a finding, or the section that the words find.

    Without words, print the names of all pages.

    \b
    hpc-launch docs
    hpc-launch docs recovery
    hpc-launch docs HL201
    hpc-launch docs requeue preemption
    """
    if not words:
        click.echo("\n".join(pages()))
        return
    page = find_page(words)
    text = page_text(page) if page else finding_text(words[0]) if len(words) == 1 else None
    if text is not None:
        _show(text)
        return
    found = search(words)
    if not found:
        raise UsageError(f"no page has {shlex.join(words)}", "try fewer words; `hpc-launch docs` lists the pages")
    _show(f"{found[0].text}\n\n({found[0].page})")
    for part in found[1 : MORE + 1]:
        print_note(f"see also `hpc-launch docs {part.page}`: {part.heading}")


def _show(text: str) -> None:
    click.echo_via_pager(f"{text.strip()}\n")  # on a terminal; else it only prints
