"""Text as HTML. All text of a run is foreign: names, reasons, log lines, scripts."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence

from hpc_launch.view.format_values import clean, log_lines


def escaped(value: object) -> str:
    """One line of text as HTML, with control characters and direction marks shown as escapes."""
    return html.escape(clean(value))


def escaped_lines(text: str, most: int) -> str:
    """Several lines as HTML, at most so many, without escape sequences."""
    lines = text.split("\n")
    shown = [html.escape(piece) for line in lines[:most] for piece in log_lines(line)]
    omitted = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join([*shown, *omitted])


def element(name: str, content: str, **attributes: object) -> str:
    """An element with content that is HTML already. Attributes are escaped; `class_` stands for `class`."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{content}</{name}>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], classes: Mapping[int, str]) -> str:
    """A table. Headers are text, cells HTML. `classes` of columns: `n` aligns to the right, `long` may wrap."""

    def row(kind: str, cells: Sequence[str]) -> str:
        shown = (element(kind, cell, class_=classes.get(at)) for at, cell in enumerate(cells))
        return element("tr", "".join(shown))

    head, body = row("th", list(map(escaped, headers))), "".join(row("td", cells) for cells in rows)
    return element("div", element("table", element("thead", head) + element("tbody", body)), class_="wide")


def document(title: str, style: str, body: str) -> str:
    """A page that may load and run nothing: its only style is the one here, by its hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
