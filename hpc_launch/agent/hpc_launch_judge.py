"""The node check on the first node: collect the results of all nodes and name those that are not fit for the job.

    python3 -I hpc_launch_judge.py ATTEMPT_DIR --job ID --port PORT --node NAME... [--memory-mib N] [--shared DIR...]

Self-contained: standard library of Python 3.6 or later, run by the job's script. It listens on the port that the
training's rendezvous will use, until each node has reported (hpc_launch_check.py) or has had its time: nodes that lag
behind the others are waited for as long again as half of the nodes took, and at least LAG_S.

    ATTEMPT_DIR/node-check.json     the outcome; created once
    stderr                          one line for each finding, for the job's log

A node is bad if a check fails on it and passes on most of the others: what fails on all of them is not the fault of a
node, so the training starts. Exits with 76 if a node is bad, else with 0.
"""

import argparse
import hmac
import json
import os
import selectors
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

BAD_NODES = 76
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
FIRST_S = 120.0
"""How long half of the nodes may take to connect, and then to answer. A large job takes longer: see PER_NODE_S."""
PER_NODE_S = 0.02
LAG_S = 12.0
ANSWER_LAG_S = 60.0
"""The same for the answer: a GPU's earlier processes may take 50 s to end."""
OVER_S = 3.0
SLOW = 0.4
"""A CPU that is slower than this share of the median is slow."""
SMALL = 0.75
CLOCK_S = 10.0
LIMIT = 1 << 20
OWN_HARDWARE = ("gpus", "gpu state", "gpu processes", "gpu compute", "kernel log")
"""Checks whose failure is a fault of the node even in a job that has no other to compare it with."""

Results = Dict[str, Dict[str, Dict[str, Any]]]
"""node → check → result"""


def say(text: str) -> None:
    """A line in the job's log."""
    sys.stderr.write("[hpc-launch %s] node check: %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))


class Peer:
    """The connection of one node."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = b""
        self.nonce = os.urandom(16).hex()
        self.greeted = False


class Judge:
    """Collects the records of the nodes."""

    def __init__(self, attempt: str, nodes: List[str], files: Dict[str, str]) -> None:
        self.attempt, self.nodes, self.files = attempt, nodes, files
        self.records = {}  # type: Dict[str, Dict[str, Any]]
        self.connected: List[float] = []
        self.answered: List[float] = []
        self.began = time.monotonic()
        self.over: Optional[float] = None
        signal.signal(signal.SIGUSR1, self.step_ended)
        self.selector = selectors.DefaultSelector()
        self.key = os.urandom(32).hex().encode()
        path = os.path.join(attempt, "agent", KEY)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(self.key)

    def collect(self, port: int) -> None:
        """Wait for the records. Raises OSError if the port cannot be used."""
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen(4096)
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ)
        looked = 0.0
        while not set(self.nodes) <= set(self.records) and self.seconds() < self.end():
            for key, _ in self.selector.select(0.5):
                if key.fileobj is server:
                    self.accept(server)
                else:
                    self.read(key.data)
            if time.monotonic() > looked + 1:  # the files of nodes that cannot connect
                looked = time.monotonic()
                self.read_files()
        server.close()

    def step_ended(self, *_: object) -> None:
        """The step that runs the checks has ended: what it sent is on its way, and no more will come."""
        self.over = self.seconds() + OVER_S

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def end(self) -> float:
        """Until when to wait, in seconds since the start."""
        if self.over is not None:
            return self.over
        half, patience = (len(self.nodes) + 1) // 2, FIRST_S + PER_NODE_S * len(self.nodes)
        if len(self.answered) >= half:
            late = self.answered[half - 1]
            waiting = len(self.connected) > len(self.answered)
            return max(2 * late, late + (ANSWER_LAG_S if waiting else LAG_S))
        if len(self.connected) >= half:
            return self.connected[half - 1] + patience
        return patience

    def accept(self, server: socket.socket) -> None:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, Peer(connection))

    def read(self, peer: Peer) -> None:
        """Read what a node sends: a greeting, which is answered at once, then its record until the end."""
        try:
            data = peer.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.data += data
        if not peer.greeted and peer.data.startswith(b"hello\n"):
            peer.greeted, peer.data = True, peer.data[6:]
            self.connected.append(self.seconds())
            try:
                peer.connection.send(
                    json.dumps({"time": time.time(), "files": self.files, "nonce": peer.nonce}).encode() + b"\n"
                )
            except OSError:
                data = b""
        if not data or len(peer.data) > LIMIT or (not peer.greeted and len(peer.data) > 6):
            self.selector.unregister(peer.connection)
            proof, record = peer.data[:64], peer.data[64:]
            if hmac.compare_digest(
                hmac.new(self.key, peer.nonce.encode() + record, "sha256").hexdigest().encode(), proof
            ):
                self.keep(record)
            peer.connection.close()

    def read_files(self) -> None:
        for name in os.listdir(os.path.join(self.attempt, "agent")):
            if name.startswith("check-") and name.endswith(".json") and name[6:-5] not in self.records:
                with open(os.path.join(self.attempt, "agent", name), "rb") as file:
                    self.keep(file.read(LIMIT))

    def keep(self, data: bytes) -> None:
        try:
            record = json.loads(data.decode())
            node = record["node"]
            record["results"] = {entry["check"]: entry for entry in record["results"]}
        except (ValueError, KeyError, TypeError):
            return
        if node in self.nodes and node not in self.records:
            self.records[node] = record
            self.answered.append(self.seconds())

    def results(self) -> Results:
        """All results, with one that says so for a node that did not answer."""
        found = {}  # type: Results
        for node in self.nodes:
            record = self.records.get(node)
            passed = {"ok": record is not None, "text": "did not answer within %.0f s" % self.seconds(), "value": None}
            found[node] = dict(record["results"] if record is not None else {}, answer=passed)
            if record is not None and record.get("clock_ahead_s") is not None:
                found[node]["clock"] = {"ok": True, "text": "", "value": record["clock_ahead_s"]}
        return found


def values(found: Results, check: str, key: str = "") -> Dict[str, float]:
    """The values of a check by node, where it has one."""
    by_node = {}
    for node, results in found.items():
        value = results.get(check, {}).get("value")
        value = value.get(key) if key and isinstance(value, dict) else value
        if isinstance(value, (int, float)):
            by_node[node] = float(value)
    return by_node


def fail(found: Results, node: str, check: str, text: str) -> None:
    """Let a check fail after all."""
    found[node][check] = {"ok": False, "text": text, "value": None}


def compare(found: Results, memory_mib: int) -> None:
    """Compare the nodes with each other: a node can pass every absolute limit and still hold up the others."""
    total = values(found, "memory", "total_mib")
    usual = statistics.median_high(list(total.values())) if total else 0
    for node, mib in total.items():
        if mib < SMALL * usual or (memory_mib and mib < SMALL * memory_mib):
            text = "has %d MiB of memory, not %d" % (mib, usual if mib < SMALL * usual else memory_mib)
            fail(found, node, "memory", text)
    below(found, "cpu", SLOW, "the CPU has %.0f %% of the speed of the other nodes")
    below(found, "gpu links", 1.0, "has %.0f %% of the NVLinks of the other nodes")
    below(found, "infiniband", 1.0, "has %.0f %% of the InfiniBand rate of the other nodes")
    for check in sorted({check for results in found.values() for check in results if check.startswith("interface ")}):
        below(found, check, 1.0, check + " has %.0f %% of the rate of the other nodes")
    clocks = values(found, "clock")
    if len(clocks) > 2:
        usual = statistics.median(list(clocks.values()))
        for node, ahead in clocks.items():
            if abs(ahead - usual) > CLOCK_S:
                words = (abs(ahead - usual), "ahead of" if ahead > usual else "behind")
                fail(found, node, "clock", "the clock is %.0f s %s those of the other nodes" % words)
    same_software(found)


def below(found: Results, check: str, share: float, text: str) -> None:
    """Fail a check on nodes whose value is below a share of the median."""
    by_node = values(found, check)
    usual = statistics.median_high(list(by_node.values())) if len(by_node) > 1 else 0.0
    for node, value in by_node.items():
        if usual > 0 and value < share * usual * 0.999:
            fail(found, node, check, text % (100 * value / usual))


def same_software(found: Results) -> None:
    """Nodes whose Python or PyTorch differs from that of most nodes."""
    names = {node: results.get("software", {}).get("value") for node, results in found.items()}
    versions = {node: json.dumps(value, sort_keys=True) for node, value in names.items() if isinstance(value, dict)}
    if not versions:
        return
    usual, count = Counter(versions.values()).most_common(1)[0]
    for node, text in versions.items():
        if text != usual and 2 * count > len(versions):
            mine, theirs = json.loads(text), json.loads(usual)
            name = min(key for key in set(mine) | set(theirs) if mine.get(key) != theirs.get(key))
            words = (name, mine.get(name, "none"), theirs.get(name, "none"))
            fail(found, node, "software", "%s is %s here and %s on the other nodes" % words)


Finding = Dict[str, Any]


def judged(found: Results) -> Tuple[List[Finding], List[Finding], Dict[str, str]]:
    """What is wrong with single nodes, what fails on most of them, and what could not be checked."""
    bad, common, unchecked = [], [], {}  # type: List[Finding], List[Finding], Dict[str, str]
    for check in sorted({check for results in found.values() for check in results}):
        outcomes = {node: results[check] for node, results in found.items() if check in results}
        failed = [node for node, one in outcomes.items() if one.get("ok") is False]
        passed = [node for node, one in outcomes.items() if one.get("ok") is True]
        blames = len(failed) <= len(passed) or (len(found) == 1 and check in OWN_HARDWARE)
        if failed and blames:
            bad += [{"node": node, "check": check, "text": str(outcomes[node].get("text"))[:300]} for node in failed]
        elif failed:
            text = str(outcomes[failed[0]].get("text"))[:300]
            common.append({"check": check, "text": text, "nodes": len(failed)})
        elif outcomes and not passed:
            unchecked[check] = str(next(iter(outcomes.values())).get("text"))[:300]
    return bad, common, unchecked


def write_tokens(folders: List[str], job: str) -> Dict[str, str]:
    """A file in each shared folder that all nodes have to see; folders that cannot be written are left out."""
    files = {}
    for folder in folders:
        path = os.path.join(folder, ".hpc-launch-check-%s" % job)
        token = os.urandom(16).hex()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
                file.write(token)
        except OSError:
            continue
        files[path] = token
    return files


def main() -> Optional[int]:
    """Collect, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("--job", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--memory-mib", type=int, default=0)
    parser.add_argument("--shared", action="append", default=[])
    args = parser.parse_known_args()[0]
    files = write_tokens(args.shared, args.job)
    judge = Judge(args.attempt, args.node, files)
    try:
        judge.collect(args.port)
    finally:
        # Python would restore the default action at its end, and the step's end may come just then.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for path in files:
            os.unlink(path)
    found = judge.results()
    compare(found, args.memory_mib)
    bad, common, unchecked = judged(found)
    record = {
        "job_id": args.job,
        "nodes": len(args.node),
        "seconds": round(judge.seconds(), 2),
        "bad": bad,
        "common": common,
        "not_checked": unchecked,
    }
    path = os.path.join(args.attempt, "node-check.json")
    with open(path + ".new", "w") as file:
        json.dump(record, file)
    os.rename(path + ".new", path)
    for one in common:
        say("on %d of %d nodes: %s (the training starts all the same)" % (one["nodes"], len(args.node), one["text"]))
    for check, reason in sorted(unchecked.items()):
        say("not checked: %s (%s)" % (check, reason))
    for one in bad:
        say("%s: %s" % (one["node"], one["text"]))
    if bad:
        return BAD_NODES
    say("%d %s in %.1f s" % (len(args.node), "node passed" if len(args.node) == 1 else "nodes passed", judge.seconds()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
