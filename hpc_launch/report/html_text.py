"""Text as HTML, and the style of the report. All text of a run is foreign: names, reasons, log lines, scripts.

The style is for light and dark, on screen and on paper. No fonts, images or scripts.
"""

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


LIGHT = {
    "queued": "#b9bec7", "starting": "#e3b341", "training": "#2f9e5b", "repeated": "#a5cf6a",
    "checkpointing": "#3b7dd8", "stalled": "#d1495b", "detecting": "#f08a4b",
    "restarting": "#8f5bc4", "ending": "#6f7b8a",
}  # fmt: skip
"""The colour of each category."""
DARK = {
    "queued": "#5b626e", "starting": "#d9a62e", "training": "#3fb56f", "repeated": "#7fa84a",
    "checkpointing": "#5b9bf0", "stalled": "#e0606f", "detecting": "#f39a62",
    "restarting": "#a97bdc", "ending": "#8b96a5",
}  # fmt: skip


def _colours(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


STYLE = (
    ":root{color-scheme:light dark;--back:#fff;--text:#1c2128;--dim:#5c6570;--line:#d5dae1;--soft:#f4f6f8;"
    + _colours(LIGHT)
    + "}@media (prefers-color-scheme:dark){:root{--back:#14181d;--text:#e4e8ed;--dim:#9aa4b0;--line:#343b45;"
    + "--soft:#1d232a;"
    + _colours(DARK)
    + """}}
*{box-sizing:border-box}
body{overflow-wrap:anywhere;margin:0 auto;max-width:70rem;padding:1.5rem 1rem 4rem;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}p{margin:.3rem 0}
.dim{color:var(--dim)}.state{font-weight:600}.bad{color:var(--stalled)}.good{color:var(--training)}
.facts{display:flex;flex-wrap:wrap;gap:.4rem 2.2rem;margin:.8rem 0}
.facts div{max-width:100%}.facts b{display:block;font-size:1.25rem;font-weight:600}
.wide{overflow-x:auto}.wide svg{min-width:52rem}
table{border-collapse:collapse;min-width:min(100%,36rem)}th,td{text-align:left;vertical-align:top;white-space:nowrap;
padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--dim)}
.n{text-align:right;font-variant-numeric:tabular-nums}
.long{white-space:normal;min-width:14rem;overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);padding:.6rem .8rem;overflow-x:auto;margin:.4rem 0;
font:12.5px/1.45 ui-monospace,monospace}.origin{color:var(--dim)}
summary{cursor:pointer;font-weight:600;margin:.8rem 0 .3rem}
svg{display:block;width:100%;height:auto;margin:.5rem 0}.bar{height:1.7rem}
svg text{fill:var(--dim);font:13px system-ui,sans-serif}
.axis{stroke:var(--line);stroke-width:1}.curve{fill:none;stroke:var(--checkpointing);stroke-width:1.8}
.dot{fill:var(--checkpointing)}.begin{stroke:var(--restarting);stroke-dasharray:3 3}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
@media print{body{max-width:none}details{display:block}}
"""
    + "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in LIGHT)
)
