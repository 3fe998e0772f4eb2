"""The node check on the first node: collect the results of all nodes and name those that are not fit for the job.

    python3 -I agent.pyz judge ATTEMPT_DIR --job ID --port PORT --node NAME... [--memory-mib N]

Run by the job's script. Each node appends lines of JSON to a file of its own (check.py): the checks that it has begun,
with the seconds that the judge waits for them, and their results. Where the attempt's folder is not shared, srun or ssh
passes the lines on, to the log of the step. The judge waits until each node has reported the checks that it began. Once
half of the nodes have passed one, the others get as long as they said, or FACTOR times as long as it took there.

The nodes connect to the judge at the port of the training's rendezvous. Nothing that arrives there is believed.

    ATTEMPT_DIR/node-check.json     the outcome; created once
    stderr                          one line for each finding, for the job's log

check_compare.py decides which nodes are bad. Exits with 76 if one is, with 78 after a fallback that is fatal, else 0.
"""

import argparse
import asyncio
import json
import os
import resource
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from hpc_launch.agent import check_full, say, write_atomic
from hpc_launch.agent.check_compare import Finding, Results, compare, judged
from hpc_launch.agent.check_host import ANSWER, FOLDER, IMAGE, INSIDE, NETWORK, PORT, order_file, result, unknown

BAD_NODES, FALLBACK = 76, 78
LOGS = ("check.log", "check-image.log")
"""What the steps of the check print, in the attempt's folder agent/."""
IN_IMAGE = (IMAGE, "software", "gpu compute", check_full.IMPORT)
"""What the part of the check inside an image reports."""
SILENT_S = 3.0
"""A node with a check under way that writes nothing for so long has stopped as a whole."""
START_S = 12.0
"""How long a node may take to start the check, at least."""
FIRST_S, PER_NODE_S = 240.0, 0.04
"""How long a check is waited for that half of the nodes have not passed, and in addition for each node."""
FACTOR = 6.0
STEP_S = 6.0
"""How much longer than its limit a measurement may take: the node itself ends what hangs."""
LOOK_S = 0.05


def log(text: str) -> None:
    """A line in the job's log."""
    say("node check: " + text)


class Owed(NamedTuple):
    """A result that is missing."""

    since: float
    wait: float
    firm: bool = False
    """Whether it is waited for so long and no longer, whatever the others have passed."""


class Node:
    """What one node has reported."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last = 0.0
        """When it has reported first, and last."""
        self.owed = {"start": Owed(0.0, START_S)}
        self.results: Dict[str, Dict[str, Any]] = {}
        self.took: Dict[str, float] = {}
        """The seconds until each check had passed."""
        self.ended = self.ended_inside = False
        """Whether nothing more will come of it, or of the part inside the image."""

    def keep(self, words: Dict[str, Any], now: float) -> None:
        """Keep what it reports. A late result does not count."""
        self.first, self.last = now if self.first is None else self.first, now
        for check, wait in words.get("begun", {}).items():
            if check not in self.results:
                self.owed[check] = Owed(now, wait)
        for one in words.get("results", ()):
            check = one["check"]
            owed = self.owed.pop(check, None)
            if check in self.results:
                continue
            self.results[check] = result(one["ok"], one["text"], one.get("value"))
            if owed is not None and one["ok"]:
                self.took[check] = now - owed.since
        if words.get("done"):
            self.ended_inside = True
            self.ended = self.ended or words.get("part") != INSIDE

    def give_up(self, late: List[str], now: float) -> None:
        """Wait no longer for it, because of these checks."""
        during, seconds = ", ".join(late), now - (self.first or 0.0)
        check, text = "answer", "stopped answering within %.0f s, during: %s" % (seconds, during)
        if now - self.last < SILENT_S and not self.ended:
            check, text = late[0], "%s: no answer within %.0f s" % (during, seconds)  # what hangs holds up the rest
        self.results[check] = result(False, text)
        self.owed = {}


class Judge:
    """Collects the reports of the nodes."""

    def __init__(self, attempt: str, names: List[str], memory_mib: int = 0, gpus: int = 0) -> None:
        self.attempt, self.memory_mib, self.gpus = attempt, memory_mib, gpus
        self.nodes = {name: Node() for name in names}
        self.port: Optional[Port] = None
        self.rounds: List[List[List[str]]] = []
        """The pairs of each round of `preflight: full`."""
        self.steps = 0
        self.medians: Dict[str, str] = {}
        self.began = time.monotonic()
        self.read_to: Dict[str, int] = {}
        """How much of each file has been read."""
        self.named: Dict[Tuple[str, str], float] = {}
        """Findings that are in the log, with the seconds since the first node began."""

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def report_file(self, name: str) -> str:
        """Where a node reports."""
        return os.path.join(self.attempt, FOLDER, name + ".jsonl")

    def prepare(self) -> None:
        """Create the file of each node: it exists before the node looks for it, where the folder is shared."""
        os.makedirs(os.path.join(self.attempt, FOLDER), mode=0o700, exist_ok=True)
        for name in self.nodes:
            open(self.report_file(name), "w").close()

    def wait(self) -> None:
        """Wait until no node owes a result, and name bad nodes as soon as they are certain."""
        known = 0
        while any(node.owed for node in self.nodes.values()):
            began = time.monotonic()
            self.read(self.seconds())
            self.give_up(self.seconds())
            count = sum(len(node.results) for node in self.nodes.values())
            if count != known:
                known = count
                self.review(early=True)
            time.sleep(max(LOOK_S, 3 * (time.monotonic() - began)))  # a look at thousands of nodes takes a while

    def read(self, now: float) -> None:
        """Read what is new: the files after the logs, which say at last that a node has ended."""
        paths = [os.path.join(self.attempt, "agent", log) for log in LOGS]
        paths += [self.report_file(name) for name, node in self.nodes.items() if node.owed]
        for line in (line for path in paths for line in self.new_lines(path)):
            try:
                words = json.loads(line.decode()) if line.startswith(b"{") else {}
                self.nodes[words["node"]].keep(words, now)
            except (ValueError, KeyError, TypeError, AttributeError):  # a line of another program
                continue

    def give_up(self, now: float) -> None:
        """Wait no longer for what is overdue, or cannot come any more."""
        passed: Dict[str, List[float]] = {}
        for node in self.nodes.values():
            for check, seconds in node.took.items():
                passed.setdefault(check, []).append(seconds)
        half = (len(self.nodes) + 1) // 2
        usual = {check: sorted(ones)[half - 1] for check, ones in passed.items() if len(ones) >= half}
        most = FIRST_S + PER_NODE_S * len(self.nodes)
        for node in self.nodes.values():
            if node.ended_inside:  # the fault of no node: srun ends its step on all of them
                for check in set(IN_IMAGE) & set(node.owed):
                    del node.owed[check]
                    node.results[check] = unknown("no Python in the image, or the check inside ended early")
            late = []
            for check, owed in sorted(node.owed.items()):
                limit = max(owed.wait, FACTOR * usual[check]) if check in usual else most
                if node.ended or now > owed.since + (owed.wait if owed.firm else limit):
                    late.append(check)
            if late:
                node.give_up(late, now)

    def new_lines(self, path: str) -> List[bytes]:
        """The complete lines since the last call."""
        try:
            with open(path, "rb") as file:
                file.seek(self.read_to.get(path, 0))
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return []
        self.read_to[path] = self.read_to.get(path, 0) + sum(len(line) + 1 for line in lines)
        return lines

    def results(self) -> Results:
        """The results, compared with each other."""
        found: Results = {name: dict(node.results) for name, node in self.nodes.items()}
        for name, node in self.nodes.items():
            if not node.owed:
                found[name].setdefault("answer", result(True, ""))
            for check in (PORT, NETWORK) if self.port is not None and self.port.crowded else ():
                if found[name].get(check, {}).get("ok") is False:
                    found[name][check] = unknown("too many other connections: %s" % found[name][check]["text"])
        compare(found, self.memory_mib)
        self.medians = check_full.compare_measured(found, self.rounds, self.gpus)
        return found

    def review(self, early: bool = False) -> Tuple[List[Finding], List[Finding], Dict[str, str]]:
        """The outcome so far. Names bad nodes in the log."""
        bad, common, unchecked = judged(self.results(), early)
        begun = [node.first for node in self.nodes.values() if node.first is not None]
        since = self.seconds() - min(begun, default=0.0)
        for one in bad:
            if (one["node"], one["check"]) not in self.named:
                log("%s: %s" % (one["node"], one["text"]))
            one["seconds"] = round(self.named.setdefault((one["node"], one["check"]), since), 2)
        return bad, common, unchecked

    def measure(self, quick: bool = False) -> None:
        """Let the nodes that are fit measure: each alone, then pairs, then all of them; `quick`: only the last."""
        if not quick:
            self.step(check_full.MEASUREMENT, check_full.MEASURE_S, [[name] for name in self.able()])
            self.rounds = check_full.rounds_of(self.able())
        for number, pairs in enumerate(self.rounds, 1):
            self.step(check_full.PAIR % number, check_full.PAIR_S, pairs)
        able = self.able()
        if len(able) > (1 if quick else 2):  # two nodes have measured all of them
            self.step(check_full.ALL, check_full.ALL_S + check_full.ALL_PER_NODE_S * len(able), [able])
        self.step("", 0.0, [])

    def able(self) -> List[str]:
        """The nodes that can measure."""
        found = self.results()
        bad = {one["node"] for one in judged(found)[0] if one["check"] != check_full.NETWORK}
        needs = (PORT, check_full.IMPORT)
        return [name for name in found if name not in bad and all(found[name].get(one, {}).get("ok") for one in needs)]

    def step(self, task: str, limit: float, groups: List[List[str]]) -> None:
        """Ask the nodes of these groups to measure, and wait for it; without a task, it is the end."""
        places = {}
        for name in (name for group in groups for name in group):
            node = self.nodes[name]
            places[name] = node.results[PORT]["value"], node.results[check_full.IMPORT]["value"][self.steps]
            node.owed[task] = Owed(self.seconds(), limit + STEP_S, firm=True)
        path = order_file(self.attempt, self.steps)
        write_atomic(path, json.dumps({"task": task, "limit": limit, "groups": groups, "places": places}))
        self.steps += 1
        self.wait()


STRANGERS = 1024
"""Connections at the same time, besides two for each node."""
LONGEST_S = 10.0


class Port(threading.Thread):
    """Answers each connection at a port, once all its data has come, with the time."""

    def __init__(self, port: int, nodes: int) -> None:
        """Start to listen, for IPv4 and IPv6. Raises OSError if the port cannot be used."""
        super().__init__(daemon=True)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each node
        self.most, self.open = 2 * nodes + STRANGERS, 0
        self.crowded = False
        """Whether there were so many connections of other users that a node may have found no place."""
        self.loop = asyncio.new_event_loop()
        listening = asyncio.start_server(self.answer, None, port, backlog=4096)
        self.server = self.loop.run_until_complete(listening)

    def run(self) -> None:
        self.loop.run_forever()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self.open += 1
        self.crowded = self.crowded or self.open > self.most
        try:
            if self.open <= self.most:
                await asyncio.wait_for(all_of(reader), LONGEST_S)
                writer.write(ANSWER + b"%.6f\n" % time.time())
                await writer.drain()
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def all_of(reader: asyncio.StreamReader) -> None:
    """Read until the end."""
    while await reader.read(1 << 16):
        pass


def main(words: List[str]) -> int:
    """Collect, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("--node", action="append", default=[])
    for name in ("job", "transport"):
        parser.add_argument("--" + name, default="")
    for name in ("full", "quick"):
        parser.add_argument("--" + name, action="store_true")
    for name in ("port", "memory-mib", "gpus"):
        parser.add_argument("--" + name, type=int, default=0)
    args = parser.parse_known_args(words)[0]
    judge = Judge(args.attempt, args.node, args.memory_mib, args.gpus)
    judge.port = Port(args.port, len(args.node))
    judge.port.start()
    judge.prepare()
    judge.wait()
    if args.full:
        judge.measure(args.quick)
    bad, common, unchecked = judge.review()
    fatal = [one for one in common if one["check"] == check_full.NETWORK and args.transport == "fatal"]
    record: Dict[str, Any] = {
        "job_id": args.job,
        "nodes": len(args.node),
        "seconds": round(judge.seconds(), 2),
        "bad": bad,
        "common": common,
        "not_checked": unchecked,
        "medians": judge.medians,
    }
    write_atomic(os.path.join(args.attempt, "node-check.json"), json.dumps(record))
    for one in common:
        ends = "so the job ends" if one in fatal else "the training starts anyway"
        log("on %d of %d nodes: %s (%s)" % (one["nodes"], len(args.node), one["text"], ends))
    for check, reason in sorted(unchecked.items()):
        log("not checked: %s (%s)" % (check, reason))
    if judge.medians:
        log("medians: %s" % "; ".join("%s %s" % pair for pair in judge.medians.items()))
    if bad or fatal:
        return BAD_NODES if bad else FALLBACK
    log("%d %s in %.1f s" % (len(args.node), "node passed" if len(args.node) == 1 else "nodes passed", judge.seconds()))
    return 0
