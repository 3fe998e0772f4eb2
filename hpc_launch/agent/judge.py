"""The node check on the first node: collect the results of all nodes and name those that are not fit for the job.

    python3 -I agent.pyz judge ATTEMPT_DIR --job ID --port PORT --node NAME... [--memory-mib N] [--shared DIR...]

Standard library of Python 3.6 or later, run by the job's script. It reads the file of each node (check_send.py), and
listens on the port that the training's rendezvous will use, until each node has reported (check.py) or its time is
over (check_reports.py).

    ATTEMPT_DIR/node-check.json     the outcome; created once
    stderr                          one line for each finding, for the job's log

check_compare.py decides which nodes are bad. Exits with 76 if a node is bad, else with 0.
"""

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent.check_compare import Finding, Results, compare, judged
from hpc_launch.agent.check_host import remove
from hpc_launch.agent.check_image import IMAGE_LOG, PART
from hpc_launch.agent.check_reports import BEAT_PER_NODE_S, Reports
from hpc_launch.agent.check_rounds import NETWORK, Rounds, compare_measured
from hpc_launch.agent.check_send import COMMON, FOLDER, Port, report_file, task_file
from hpc_launch.agent.folders import new_file

BAD_NODES = 76
LONGEST = 1 << 20
"""Bytes that are read from a file at once."""
FIRST = ("start", "answer", PART)
"""Checks without which there is no part inside the image."""
LOG, ENDED = "check.log", ".ended"
"""The output of the check's step, as IMAGE_LOG is of its part inside; a second file appears when one has ended."""
OVER_S = 3.0
LOOK_S = 0.25
SENT, SENT_BY_ALL = 1 << 18, 1 << 28
"""Bytes that each node sends to measure its link, and the most that the first node receives in total."""


def say(text: str) -> None:
    """A line in the job's log."""
    sys.stderr.write("[hpc-launch %s] node check: %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))
    sys.stderr.flush()


class Judge:
    """Collects the reports of the nodes."""

    def __init__(
        self,
        attempt: str,
        nodes: List[str],
        memory_mib: int = 0,
        rounds: Optional[Rounds] = None,
        *,
        image: bool = False,
    ) -> None:
        self.attempt, self.memory_mib = attempt, memory_mib
        self.rounds = rounds
        """The measurements of `preflight: full`."""
        self.port: Optional[Port] = None
        self.medians: Dict[str, str] = {}
        self.reports = Reports(nodes)
        self.inside = Reports(nodes if image else [], PART)
        """What the part inside the image has reported (check_image.py)."""
        self.measuring = self.inside if image else self.reports
        self.began = time.monotonic()
        self.over: Dict[str, float] = {}
        """Until when something may still come of a step that has ended: what it sent is on its way."""
        self.read_to: Dict[str, int] = {}
        """How much of each file has been read."""
        self.named: Dict[Tuple[str, str], float] = {}
        """Findings that are in the log, with the seconds since the first node began."""

    def collect(self, port: int) -> None:
        """Wait for the reports. Raises OSError if the port cannot be used."""
        self.port = Port(port, len(self.reports.nodes))
        looked, took, answers = self.seconds(), 0.0, 0
        while self.reports.open or self.inside.open:
            self.port.serve(LOOK_S)
            now = self.seconds()
            if now > looked + max(LOOK_S, 10 * took):  # a look at thousands of nodes takes a while
                self.read_reports()
                self.reports.look(now, self.is_over(LOG, now))
                self.look_inside(now)
                if answers != self.reports.answers + self.inside.answers:
                    answers = self.reports.answers + self.inside.answers
                    self.review(early=True)
                self.give_tasks(now)
                looked = self.seconds()
                took = looked - now
        self.port.end()
        if self.rounds is not None:
            for name in self.reports.nodes:
                self.order(name, {})  # one that was given up waits for no task

    def tell_nodes(self, files: Dict[str, str]) -> None:
        """Create the files of the nodes: they exist before a node looks for them."""
        folder, nodes = os.path.join(self.attempt, FOLDER), self.reports.nodes
        os.makedirs(folder, mode=0o700, exist_ok=True)
        sent = min(SENT, SENT_BY_ALL // max(1, len(nodes)))
        common = os.path.join(folder, COMMON)
        with open(common + ".new", "w") as file:
            json.dump({"files": files, "bytes": sent, "beat": BEAT_PER_NODE_S * len(nodes)}, file)
        os.rename(common + ".new", common)
        for name in nodes:
            for path in (task_file(self.attempt, name), report_file(self.attempt, name)):
                with open(path, "wb"):
                    pass

    def is_over(self, log: str, now: float) -> bool:
        """Whether the step with this output has ended, and all that it sent has come."""
        if log not in self.over and os.path.exists(os.path.join(self.attempt, "agent", log + ENDED)):
            self.over[log] = now + OVER_S
        return now > self.over.get(log, now)

    def look_inside(self, now: float) -> None:
        """Give up what is overdue inside the image. That its step has ended is the fault of no node: srun ends it on
        all of them when it cannot start it on one."""
        for name in list(self.inside.open):
            node = self.reports.nodes[name]
            failed = [check for check in FIRST if node.results.get(check, {}).get("ok") is False]
            if (node.done and failed) or self.is_over(IMAGE_LOG, now):
                self.inside.abandon(name, now, "not started" if failed else "its step has ended")
        self.inside.look(now, False)

    def results(self) -> Results:
        """The results of both parts of each node."""
        found: Results = self.reports.results()
        for name, results in self.inside.results().items():
            found[name] = dict(results, **found[name])
        return found

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def part_of(self, report: bytes) -> Reports:
        """Whom a line is about. Within a text of JSON, there are no such quotes."""
        return self.inside if b'"part": "%s"' % PART.encode() in report else self.reports

    def give_tasks(self, now: float) -> None:
        """Send the next tasks of `preflight: full` when every node waits for one."""
        waiting = self.measuring
        nodes = {name: waiting.nodes[name] for name in waiting.nodes if name in waiting.open}
        places = {name: node.place for name, node in nodes.items() if node.place is not None}
        if self.rounds is None or not nodes or len(places) < len(nodes):
            return
        found = self.results()
        self.compare_nodes(found)
        bad = {one["node"] for one in judged(found)[0] if one["check"] != NETWORK}
        able = [name for name in nodes if name not in bad and found[name].get("measurements", {}).get("ok")]
        tasks = self.rounds.next(self.results(), able, places)
        for name, node in nodes.items():
            if name in tasks:
                waiting.assign(name, tasks[name]["task"], now + tasks[name]["limit"])
            elif not tasks or name not in able:
                node.place = None
            else:
                continue
            self.order(name, tasks.get(name, {}))

    def order(self, name: str, task: Dict[str, Any]) -> None:
        """Ask a node to measure something; an empty task ends the measurements."""
        with open(task_file(self.attempt, name), "a") as file:
            file.write(json.dumps(task) + "\n")

    def compare_nodes(self, found: Results) -> None:
        """Compare the nodes with each other."""
        if self.port is not None and self.port.crowded:
            excuse_network(found)
        compare(found, self.memory_mib)
        if self.rounds is not None:
            self.medians = compare_measured(found)
            self.rounds.fold(found)

    def read_reports(self) -> None:
        """Read the files of the nodes, and the logs with what nodes without such a file print."""
        now = self.seconds()
        for name in self.reports.open | self.inside.open:
            for line in self.new_lines(report_file(self.attempt, name)):
                self.part_of(line).keep(line, now)
        for log in (LOG, IMAGE_LOG):
            for line in self.new_lines(os.path.join(self.attempt, "agent", log)):
                if line.startswith(b"{"):  # what the image prints itself is no report about the node
                    (self.inside if log == IMAGE_LOG else self.part_of(line)).keep(line, now)

    def new_lines(self, path: str) -> List[bytes]:
        """The complete lines since the last call."""
        try:
            with open(path, "rb") as file:
                file.seek(self.read_to.get(path, 0))
                *lines, _ = file.read(LONGEST).split(b"\n")
        except OSError:
            return []
        self.read_to[path] = self.read_to.get(path, 0) + sum(len(line) + 1 for line in lines)
        return lines

    def review(self, early: bool = False) -> Tuple[List[Finding], List[Finding], Dict[str, str]]:
        """Name bad nodes as soon as they are certain."""
        found = self.results()
        self.compare_nodes(found)
        bad, common, unchecked = judged(found, early)
        since = self.seconds() - min(self.reports.connected, default=0.0)
        for one in bad:
            if (one["node"], one["check"]) not in self.named:
                say("%s: %s" % (one["node"], one["text"]))
            one["seconds"] = round(self.named.setdefault((one["node"], one["check"]), since), 2)
        return bad, common, unchecked


def excuse_network(found: Results) -> None:
    """Blame no node for a port that was full of the connections of others."""
    for results in found.values():
        for check in ("rendezvous port", "network", "answer"):
            one = results.get(check, {})
            if one.get("ok") is False and (check != "answer" or str(one["text"]).startswith("did not connect")):
                results[check] = dict(one, ok=None, text="too many connections of others: %s" % one["text"])


def existing(folder: str) -> str:
    """A folder, or the one above that exists: the training may create it."""
    folder = os.path.normpath(os.path.expandvars(folder))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def write_tokens(folders: List[str]) -> Dict[str, str]:
    """A file in each shared folder that all nodes have to see; folders that cannot be written are left out."""
    files = {}
    for folder in sorted(set(map(existing, folders))):
        path = os.path.join(folder, ".hpc-launch-check-" + os.urandom(16).hex())
        token = os.urandom(16).hex()
        try:
            with new_file(path) as file:
                file.write(token)
        except OSError:
            continue
        files[path] = token
    return files


def main(words: List[str]) -> Optional[int]:
    """Collect, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("--job", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--memory-mib", type=int, default=0)
    parser.add_argument("--shared", action="append", default=[])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--image", action="store_true")
    args = parser.parse_known_args(words)[0]
    copied = os.path.exists(os.path.join(args.attempt, "agent", "first-host"))  # copies.py
    files = write_tokens([] if copied else args.shared)
    rounds = Rounds(args.gpus) if args.full else None
    judge = Judge(args.attempt, args.node, args.memory_mib, rounds, image=args.image)
    try:
        judge.tell_nodes(files)
        judge.collect(args.port)
    finally:
        for path in files:
            remove(path)
    bad, common, unchecked = judge.review()
    record: Dict[str, Any] = {
        "job_id": args.job,
        "nodes": len(args.node),
        "seconds": round(judge.seconds(), 2),
        "bad": bad,
        "common": common,
        "not_checked": unchecked,
        "medians": judge.medians,
    }
    path = os.path.join(args.attempt, "node-check.json")
    with open(path + ".new", "w") as file:
        json.dump(record, file)
    os.rename(path + ".new", path)
    for one in common:
        say("on %d of %d nodes: %s (the training starts all the same)" % (one["nodes"], len(args.node), one["text"]))
    for check, reason in sorted(unchecked.items()):
        say("not checked: %s (%s)" % (check, reason))
    if judge.medians:
        say("medians: %s" % "; ".join("%s %s" % pair for pair in judge.medians.items()))
    if bad:
        return BAD_NODES
    say("%d %s in %.1f s" % (len(args.node), "node passed" if len(args.node) == 1 else "nodes passed", judge.seconds()))
    return 0
