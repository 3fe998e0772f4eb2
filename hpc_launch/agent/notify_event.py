"""The notifications of a run on disk: what happened, and who tells each receiver. For notify.py.

    RUN/notify/EVENT.json           what happened, created once by whoever saw it first
    RUN/notify/EVENT.CHANNEL.K      try K to tell a channel (webhook, command): a claim, created once by the sender,
                                    which later replaces it by the result
    SWEEP/notify/points/N           how point N of a sweep ended

A claim says `sending` until its sender knows more. A sender that was killed leaves it so. Then the receiver may have
the message: it is sent again if it tells how the run ended, since a second message is better there than none. All
others are sent at most once.
"""

import contextlib
import glob
import json
import os
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from hpc_launch.agent import create_once, open_regular

MOST_TRIES = 5
PAUSE_S = 60.0
"""Least time between two tries."""
DEAD_S = 120.0
"""After this time the sender of a claim is dead: each sender has a hard limit of a few seconds."""
KEPT_S = {True: 24 * 3600.0, False: 3600.0}
"""How long a message is tried: one that tells how the run ended, and the others."""
LONGEST = 1 << 20
CHANNELS = ("webhook", "command")
MOST_NODES, SAMPLE_TAIL, LEAST_SAMPLES = 64, 256 << 10, 3
"""Nodes whose samples are read; bytes of each, an hour with eight GPUs; samples without which a GPU is left out."""


def read(path: str) -> Dict[str, Any]:
    """A JSON object in a file; empty where there is none."""
    try:
        with open_regular(path) as stream:
            value = json.loads(stream.read(LONGEST).decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def record_event(run: str, name: str, event: Dict[str, Any]) -> bool:
    """Record an event of a run once. Raises OSError."""
    folder = os.path.join(run, "notify")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    return create_once(os.path.join(folder, name + ".json"), json.dumps(event))


def new_event(kind: str, run: str, settings: Dict[str, Any], **facts: Any) -> Dict[str, Any]:
    """What happened to a run, for the receivers in `settings` (`notify:` of the plan)."""
    look = "hpc-launch %s %s" % ("why" if kind in ("stop", "left") else "status", run)
    return dict(facts, event=kind, run=run, time=time.time(), channels=settings.get("channels") or {}, look=look)


def events(run: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The events of a run by name."""
    folder = os.path.join(run, "notify")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        event = read(os.path.join(folder, name)) if name.endswith(".json") and not name.startswith(".") else {}
        if isinstance(event.get("channels"), dict):
            yield name[: -len(".json")], event


def claim(run: str, name: str, event: Dict[str, Any], channel: str) -> Optional[str]:
    """Claim the next try to tell a channel; None where none is due, or another process was first. Raises OSError."""
    number = due(run, name, event, channel)
    if number is None:
        return None
    path = claim_path(run, name, channel, number)
    mine = {"state": "sending", "time": time.time(), "host": os.uname().nodename, "pid": os.getpid()}
    return path if create_once(path, json.dumps(mine)) else None


def sending(run: str) -> bool:
    """Whether a process may be sending a message of a run."""
    tries = [last_try(run, name, channel) for name, _ in events(run) for channel in CHANNELS]
    return any(state == "sending" and age < DEAD_S for _, state, age in tries)


def claim_path(run: str, name: str, channel: str, number: int) -> str:
    """The file of a try."""
    return os.path.join(run, "notify", "%s.%s.%d" % (name, channel, number))


def last_try(run: str, name: str, channel: str) -> Tuple[int, str, float]:
    """How often a channel was tried, and the state and the age of the last try."""
    number = 0
    while number < MOST_TRIES and os.path.exists(claim_path(run, name, channel, number + 1)):
        number += 1
    path = claim_path(run, name, channel, number)
    try:
        return number, str(read(path).get("state")), time.time() - os.stat(path).st_mtime
    except OSError:
        return number, "", 0.0


def due(run: str, name: str, event: Dict[str, Any], channel: str) -> Optional[int]:
    """The number of the next try that may begin now; None for none."""
    number, state, age = last_try(run, name, channel)
    final = is_final(name)
    if number == MOST_TRIES or time.time() - float(event.get("time") or 0) > KEPT_S[final]:
        return None
    lost = final and (state == "unknown" or (state == "sending" and age >= DEAD_S))
    again = age >= PAUSE_S and (state == "failed" or lost)
    return number + 1 if again or number == 0 else None


def point_over(sweep: str, point: str, state: str, settings: Dict[str, Any], site: Any) -> None:
    """Note the end of a point, and the end of the sweep if it is the last one."""
    folder = os.path.join(sweep, "notify", "points")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError), open(os.path.join(folder, point), "x") as stream:
        stream.write(state)
    points = read(os.path.join(sweep, "sweep.json")).get("points") or ()
    if not points or len(os.listdir(folder)) < len(points):
        return
    counts = {}  # type: Dict[str, int]
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as stream:
            text = stream.read(40)
        counts[text] = counts.get(text, 0) + 1
    name = os.path.basename(sweep)
    bad = sum(count for text, count in counts.items() if text != "COMPLETED")
    wanted = settings.get("events") or ()
    if "end" not in wanted and not (bad and "stop" in wanted):
        return
    points = ", ".join("%d %s" % (counts[text], text) for text in sorted(counts))
    state = "FAILED" if bad else "COMPLETED"
    record_event(sweep, "end", new_event("end", name, settings, state=state, points=points, site=site))


def role_words(attempt: str) -> str:
    """What the roles of an attempt's job do: `server ready since 10:14:03, restarts: 1; train waiting`; '' without."""
    texts = []
    for role in read(os.path.join(attempt, "roles.json")).get("roles") or ():
        text = "%s %s" % (role["name"], role["state"])
        if role["state"] == "ended":
            text += " with exit code %s" % role["exit_code"]
        elif role["ready_since"]:
            text += " since %s" % time.strftime("%H:%M:%S", time.localtime(role["ready_since"]))
        texts.append(text + (", restarts: %d" % role["restarts"] if role["restarts"] else ""))
    return "; ".join(texts)


def gpu_samples(attempt: str) -> Iterator[Tuple[Any, Any]]:
    """Each GPU with its use in percent, from the newest samples of an attempt's watchers."""
    for path in sorted(glob.glob(os.path.join(glob.escape(attempt), "agent", "node-*.jsonl")))[:MOST_NODES]:
        with contextlib.suppress(OSError), open_regular(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - SAMPLE_TAIL))
            for line in stream:
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    for gpu in json.loads(line.decode())["gpus"] if b'"sample"' in line else ():
                        yield (path, str(gpu["index"])), gpu["util"]


def uses_of(samples: Iterable[Tuple[Any, Any]]) -> List[List[float]]:
    """The uses of each GPU, from each GPU with its use; a GPU with few samples is left out."""
    uses = {}  # type: Dict[Any, List[float]]
    for gpu, use in samples:
        if isinstance(use, (int, float)):
            uses.setdefault(gpu, []).append(use)
    return [one for one in uses.values() if len(one) >= LEAST_SAMPLES]


def use_words(attempt: str) -> str:
    """How much the GPUs of an attempt were used: `GPUs 31%, 2 of 8 idle`; '' where no samples tell it."""
    means = [sum(use) / len(use) for use in uses_of(gpu_samples(attempt))]
    idle = ", %d of %d idle" % (means.count(0), len(means)) if 0 in means else ""
    return "GPUs %.0f%%%s" % (sum(means) / len(means), idle) if means else ""


def words_of(attempt: str) -> Dict[str, str]:
    """What an event tells of an attempt in words, as far as it is known."""
    words = {"roles": role_words(attempt), "used": use_words(attempt)}
    return {name: text for name, text in words.items() if text}


def is_final(name: str) -> bool:
    """Whether an event tells how a run or its job ended."""
    return name.partition("-")[0] in ("end", "left")
