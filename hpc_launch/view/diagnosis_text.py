"""A diagnosis for a person, and for a script."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpc_launch.performance.run_samples import Remark
from hpc_launch.recover.diagnosis import Diagnosis, FirstFailure, Quote, Verdict
from hpc_launch.view.format_values import clean, cut, moment

WIDEST = 200
"""Characters of a quoted line that are shown."""

LONGEST_LINE = 1 << 16
"""Characters of a line that are read at once: one may have no end."""

CONTEXT = 2
"""Lines before a quoted one among which that to be shown with it is found."""

_MARKS = re.compile(r"^(?:\[\w<>]+\]:?)?[ ^~]*$")
"""Lines that only underline another."""


@dataclass(frozen=True)
class Going:
    """How an attempt goes, or went, in which nothing went wrong. `state`: of a run not over; `words`: how far it is."""

    state: str | None
    reason: str | None
    words: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()


def as_data(diagnosis: Diagnosis, verdict: Verdict, going: Going | None = None) -> dict[str, Any]:
    """The object of `why --json`. The reason of the verdict is the advice to a person."""
    first = diagnosis.first_failure
    remarks = going.remarks if going is not None else ()
    data: dict[str, Any] = {
        "class": diagnosis.failure_class,
        "cause": diagnosis.cause or None,
        "verdict": verdict.action,
        "confidence": diagnosis.confidence,
        "first_failure": {"node": first.node, "rank": first.rank, "time": first.time},
        "evidence": [{"file": quote.file, "line": quote.line, "text": quote.text} for quote in diagnosis.evidence],
        "also": [*diagnosis.also, *(f"{remark.kind}: {remark.text}; {remark.todo}" for remark in remarks)],
        "advice": verdict.reason,
    }
    if going is not None:
        data["state"] = going.state
        data["remarks"] = [
            {
                "kind": remark.kind,
                "node": remark.node,
                "rank": remark.rank,
                "text": remark.text,
                "advice": remark.todo,
                "evidence": [{"file": quote.file, "line": quote.line, "text": quote.text} for quote in remark.quotes],
            }
            for remark in remarks
        ]
    return data


def told(
    diagnosis: Diagnosis,
    verdict: Verdict,
    folders: Mapping[str, str],
    going: Going | None = None,
    *,
    colour: bool = False,
) -> list[str]:
    """The diagnosis in a few lines. `folders`: under `""` the folder that the evidence's files lie in."""
    if going is not None and going.state is not None:
        return _alive(going, folders, diagnosis.also, colour=colour)
    good = diagnosis.failure_class == "success"
    name = diagnosis.failure_class
    title = click.style(name, fg="green" if good else "red", bold=True) if colour else name
    cause = f" ({clean(diagnosis.cause)})" if diagnosis.cause and diagnosis.cause != name else ""
    lines = [f"{title}{cause}, confidence {diagnosis.confidence}"]
    where = _where(diagnosis.first_failure)
    if where and not good:
        lines.append(f"  first      {where}")
    for quote in diagnosis.evidence:
        lines += _quoted(quote, folders.get("", ""))
    lines += [f"  also       {cut(clean(text), WIDEST)}" for text in diagnosis.also]
    if not good:
        lines.append(f"  verdict    {verdict.action}")
        if diagnosis.bad_nodes:
            lines.append(f"  bad nodes  {', '.join(map(clean, diagnosis.bad_nodes))}")
        lines.append(f"  next       {clean(verdict.reason)}")
    return lines + _remarked(going, folders)


def _alive(going: Going, folders: Mapping[str, str], also: tuple[str, ...], *, colour: bool) -> list[str]:
    """A run that goes on: its state, how far it is, and what may make it slow."""
    state = click.style(str(going.state), bold=True) if colour else str(going.state)
    lines = [", ".join((state, *going.words))]
    if going.reason:
        lines.append(f"  reason     {clean(going.reason)}")
    lines += [f"  also       {cut(clean(text), WIDEST)}" for text in also]
    slow = _remarked(going, folders)
    seen = ", and nothing that would make it slow was seen" if going.state == "RUNNING" else ""
    return lines + (slow or [f"  nothing failed so far{seen}"])


def _remarked(going: Going | None, folders: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for remark in going.remarks if going is not None else ():
        lines.append(f"  slow       {remark.kind}: {clean(remark.text)}")
        for quote in remark.quotes:
            lines += _quoted(quote, folders.get("", "")) if quote.line else [f"  {clean(quote.file)}"]
        lines.append(f"  try        {clean(remark.todo)}")
    return lines


def _where(first: FirstFailure) -> str:
    parts = []
    if first.rank is not None:
        parts.append(f"rank {first.rank}")
    if first.node is not None:
        parts.append(f"on {clean(first.node)}")
    if first.time is not None:
        parts.append(f"at {moment(first.time, time.time())}")
    return " ".join(parts)


def _quoted(quote: Quote, folder: str) -> list[str]:
    place = f"{clean(quote.file)}:{quote.line}" if quote.line else clean(quote.file)
    return [
        f"  {place}",
        *(f"    | {cut(clean(text), WIDEST)}" for text in _before(quote, folder)),
        f"    > {cut(clean(quote.text), WIDEST)}",
    ]


def _before(quote: Quote, folder: str) -> list[str]:
    """The lines before a quoted one, where its file can be read again."""
    if quote.line <= 1:
        return []
    path = Path(folder) / quote.file
    found: list[str] = []
    try:
        if not path.is_file():
            return []
        with open(path, encoding="utf-8", errors="replace") as stream:
            number = 1
            while number < quote.line and (text := stream.readline(LONGEST_LINE)):
                if number >= quote.line - CONTEXT:
                    found.append(text.rstrip("\n")[:WIDEST])
                number += text.endswith("\n")
    except OSError:
        return []
    return [text for text in found if text.strip(" ^~") and "\0" not in text and not _MARKS.search(text)][-1:]
