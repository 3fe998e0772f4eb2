"""Which messages about a run did not arrive, by the files in its folder (agent/notify_event.py)."""

from __future__ import annotations

import os

from hpc_launch.agent.notify_event import CHANNELS, MOST_TRIES, claim_path, events, is_final, read
from hpc_launch.runs.layout import RunFolder


def notify_problems(run: RunFolder) -> list[str]:
    """One line for each channel that did not get its last message."""
    folder = str(run.path)
    if run.is_foreign or not os.path.isdir(os.path.join(folder, "notify")):
        return []
    lines: dict[str, str] = {}
    # By time, but a driver may note the end of a short run before the job notes its start.
    for name, event in sorted(events(folder), key=lambda one: (is_final(one[0]), float(one[1].get("time") or 0))):
        for channel in CHANNELS:
            tries = [read(claim_path(folder, name, channel, number)) for number in range(1, MOST_TRIES + 1)]
            last = next((one for one in reversed(tries) if one), None)
            if last is None:
                continue
            lines.pop(channel, None)
            if last.get("state") in ("failed", "unknown"):
                count = sum(bool(one) for one in tries)
                what = f"the message `{event.get('event')}` did not reach the {channel}: {last.get('why')}"
                lines[channel] = f"{what} (try {count} of {MOST_TRIES})"
    return list(lines.values())
