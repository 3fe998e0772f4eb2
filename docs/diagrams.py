"""Draw the diagrams of docs/explanation/concepts.md as SVG: boxes on a grid, and arrows between them.

`docs/generate.py` writes them to docs/images; they follow the light or dark mode of the reader's browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLUMN, ROW, WIDTH, HEIGHT, EDGE = 170, 92, 138, 50, 12
"""Distances of the grid, the size of a box and the margin, in pixels."""

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933; text-anchor: middle }
.small { font-size: 11px; fill: #52606d }
rect { fill: #eef2ff; stroke: #4f5bd5; stroke-width: 1.5 }
.end rect { fill: #e6f6ec; stroke: #2f855a } .bad rect { fill: #fdecea; stroke: #c53030 }
.side rect { fill: #f5f5f5; stroke: #7b8794 }
path { fill: none; stroke: #52606d; stroke-width: 1.5 } marker path { fill: #52606d; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb } .small { fill: #cbd2d9 } rect { fill: #2b2f55; stroke: #8f99ff }
  .end rect { fill: #1c3a2a; stroke: #68d391 } .bad rect { fill: #43211f; stroke: #fc8181 }
  .side rect { fill: #2d3238; stroke: #9aa5b1 } path { stroke: #cbd2d9 } marker path { fill: #cbd2d9 }
}
"""


@dataclass(frozen=True)
class Box:
    """A box with its middle in this column and row; halves are allowed."""

    name: str
    column: float
    row: float
    about: str = ""
    """A second, smaller line."""

    kind: str = ""
    """`end`, `bad` or `side`, or plain."""


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their names, with a word beside it."""

    start: str
    end: str
    word: str = ""


@dataclass(frozen=True)
class Diagram:
    """A diagram and what it shows, for readers who cannot see it."""

    title: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]

    def svg(self) -> str:
        """The text of the SVG file."""
        width = round(max(box.column for box in self.boxes) * COLUMN + WIDTH + 2 * EDGE)
        height = round(max(box.row for box in self.boxes) * ROW + HEIGHT + 2 * EDGE)
        boxes = {box.name: box for box in self.boxes}
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
            'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *(_arrow(boxes[arrow.start], boxes[arrow.end], arrow.word) for arrow in self.arrows),
            *(_box(box) for box in self.boxes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _middle(box: Box) -> tuple[float, float]:
    return EDGE + WIDTH / 2 + box.column * COLUMN, EDGE + HEIGHT / 2 + box.row * ROW


def _box(box: Box) -> str:
    x, y = _middle(box)
    shift = -3 if box.about else 4
    texts = f'<text x="{x:g}" y="{y + shift:g}">{escape(box.name)}</text>'
    if box.about:
        texts += f'<text class="small" x="{x:g}" y="{y + 14:g}">{escape(box.about)}</text>'
    rect = f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
    return f'<g class="{box.kind}">{rect}{texts}</g>' if box.kind else f"<g>{rect}{texts}</g>"


def _arrow(start: Box, end: Box, word: str) -> str:
    (x1, y1), (x2, y2) = _middle(start), _middle(end)
    if abs(y1 - y2) < HEIGHT:
        side = 1 if x2 > x1 else -1
        x1, x2 = x1 + side * WIDTH / 2, x2 - side * (WIDTH / 2 + 2)
    else:
        side = 1 if y2 > y1 else -1
        y1, y2 = y1 + side * HEIGHT / 2, y2 - side * (HEIGHT / 2 + 2)
    drawn = f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" marker-end="url(#tip)"/>'
    if not word:
        return drawn
    beside = ((x1 + x2) / 2, (y1 + y2) / 2 - 6) if y1 == y2 else ((x1 + x2) / 2 + 8, (y1 + y2) / 2 + 4)
    anchor = "" if y1 == y2 else ' style="text-anchor: start"'
    return drawn + f'<text class="small" x="{beside[0]:g}" y="{beside[1]:g}"{anchor}>{escape(word)}</text>'


CONCEPTS = Diagram(
    "A job file and a site profile become a plan and a script. A run folder holds the attempts, each with one job. "
    "After an attempt, a verdict decides whether another one follows.",
    [
        Box("job file", 0, 0, "job.yaml, --set"),
        Box("site profile", 0, 1, "the cluster"),
        Box("plan", 1.15, 0.5, "checked: findings"),
        Box("script", 2.3, 0.5, "plain bash"),
        Box("attempt 1", 3.45, 0.5, "job 4711"),
        Box("verdict", 3.45, 1.75, "why it ended", "side"),
        Box("attempt 2", 2.3, 1.75, "job 4712"),
        Box("COMPLETED", 1.15, 1.75, "the last step is done", "end"),
    ],
    [
        Arrow("job file", "plan"),
        Arrow("site profile", "plan"),
        Arrow("plan", "script"),
        Arrow("script", "attempt 1"),
        Arrow("attempt 1", "verdict", "it fails"),
        Arrow("verdict", "attempt 2"),
        Arrow("attempt 2", "COMPLETED"),
    ],
)

STATES = Diagram(
    "The states of a run: SUBMITTING, PENDING, STARTING, RUNNING and ENDING, then COMPLETED or FAILED. RETRYING leads "
    "back to PENDING. STUCK, STOPPED, CANCELLED and UNKNOWN are the other states.",
    [
        Box("SUBMITTING", 0, 0, "no job id yet"),
        Box("PENDING", 1.15, 0, "in the queue"),
        Box("STARTING", 2.3, 0, "no output yet"),
        Box("RUNNING", 3.45, 0, "output"),
        Box("ENDING", 3.45, 1.25, "cleaning up"),
        Box("RETRYING", 2.3, 1.25, "another follows"),
        Box("STUCK", 0, 1.25, "a person must act", "bad"),
        Box("COMPLETED", 3.45, 2.5, "finished", "end"),
        Box("FAILED", 2.3, 2.5, "no other attempt", "bad"),
        Box("STOPPED", 1.15, 2.5, "never started", "bad"),
        Box("CANCELLED", 0, 2.5, "by a person", "side"),
        Box("UNKNOWN", 1.15, 1.25, "no source knows", "side"),
    ],
    [
        Arrow("SUBMITTING", "PENDING"),
        Arrow("PENDING", "STARTING"),
        Arrow("STARTING", "RUNNING"),
        Arrow("RUNNING", "ENDING"),
        Arrow("ENDING", "COMPLETED"),
        Arrow("ENDING", "FAILED"),
        Arrow("ENDING", "RETRYING"),
        Arrow("RETRYING", "PENDING"),
        Arrow("PENDING", "STUCK"),
    ],
)

DIAGRAMS = {"concepts.svg": CONCEPTS, "states.svg": STATES}
"""By the names of their files in docs/images."""
