"""What a program says at its end: that it was done, or stopped early on purpose."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD_OF_END = re.compile(
    r"(?i)early[ _-]?stopp(?!\w* counter)|stopp\w* early|signaling Trainer to stop|\btrain_runtime\b"
    r"|\btraining (?:is |has )?(?:been )?(?:completed?|finished|done)\b"
)
"""Of programs, Lightning's callback (pytorch/callbacks/early_stopping.py) and Transformers' Trainer."""


def word_of_end(lines: Sequence[str], at: int) -> str | None:
    """The line in which a program says that it was done, or stopped early on purpose; None for none.

    `lines`: its log, the newest first; `at`: that of its last step. A word just before that one counts, too.
    """
    return next((line.strip() for line in lines[: at + 5] if _WORD_OF_END.search(line)), None)
