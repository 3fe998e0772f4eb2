"""One role of a job, or one replica of it: its nodes, ports and environment, the process of its script, and whether it
is ready: it answers by HTTP or TCP, its log says so, or its Ray cluster has all its resources.
"""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

WAITING, STARTING, READY, ENDED = "waiting", "starting", "ready", "ended"
Json = Dict[str, Any]


class Host(NamedTuple):
    """A node of the job, and the address by which others reach it."""

    name: str
    address: str


class End(NamedTuple):
    """How a role began to end."""

    time: float
    code: int
    node: str


EVERY_S = 0.5
"""Between two questions."""
ANSWER_S = 2.0
"""For an answer."""
TAIL_BYTES = 1 << 16


class Probe:
    """The question that a role has to answer. `answer` is the last one, for people. Nobody waits for it: a role that is
    silent, or a file server, must not keep the end of others from being seen."""

    def __init__(self, ready: Optional[Dict[str, Any]], host: str, port: int, folder: str) -> None:
        self.ready, self.host, self.port = ready or {}, host, port
        self.within = self.ready.get("within", 600)
        self.log = os.path.join(folder, "logs", "node-0.log")
        self.ray = os.path.join(folder, "ray.ready")
        self.read, self.rest = 0, ""
        self.answer, self.asked, self.found = "not asked yet", 0.0, False
        self.thread: Optional[threading.Thread] = None

    def is_ready(self) -> bool:
        """Whether an answer was good. Asks again, if it is time to."""
        waits = self.thread is not None and self.thread.is_alive()
        if not (self.found or waits or time.monotonic() - self.asked < EVERY_S):
            self.asked = time.monotonic()
            self.thread = threading.Thread(target=self.ask, daemon=True)
            self.thread.start()
        return self.found

    def ask(self) -> None:
        """Ask once. A role that says nothing of `ready` is ready when its log exists."""
        if "http" in self.ready:
            self.found = self.asks_http(self.ready["http"])
        elif "tcp" in self.ready:
            self.found = self.asks_tcp()
        elif "log" in self.ready:
            self.found = self.reads_log(self.ready["log"])
        else:
            path = self.ray if "ray" in self.ready else self.log
            self.answer = "its Ray cluster is not complete yet" if "ray" in self.ready else "no output yet"
            self.found = any(map(os.path.exists, (path, self.log.replace("node-0.log", "node-0.rank-0.log"))))

    def asks_http(self, path: str) -> bool:
        connection = HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            self.answer = "GET %s: %s" % (path, str(error) or type(error).__name__)
            return False
        finally:
            connection.close()
        self.answer = "GET %s: status %d" % (path, status)
        return 200 <= status < 300

    def asks_tcp(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=ANSWER_S).close()
        except OSError as error:
            self.answer = "port %d: %s" % (self.port, error)
            return False
        return True

    def reads_log(self, pattern: str) -> bool:
        """Whether a line that is new in the log matches."""
        self.answer = "no line matches %r" % pattern
        try:
            with open(self.log, "rb") as file:
                file.seek(self.read)
                data = file.read(TAIL_BYTES)
        except OSError:
            return False
        self.read += len(data)
        lines = (self.rest + data.decode("utf-8", "replace")).split("\n")
        self.rest = lines.pop()[-4096:]
        return any(re.search(pattern, line[:4096]) for line in lines)


class RoleProcess:
    """A role, or one replica of it. `spec` is its part of roles/plan.json, `folder` that of all roles."""

    def __init__(self, role: str, replica: int, spec: Json, folder: str, hosts: List[Host]) -> None:
        self.role, self.replica, self.spec = role, replica, spec
        self.node, count = spec["nodes"][replica]
        own = hosts[self.node : self.node + count]
        self.hosts, self.address = [host.name for host in own], own[0].address
        self.name: str = spec["names"][replica]
        self.script = os.path.join(folder, role + ".sh")
        self.folder = os.path.join(folder, self.name)
        self.port = self.master_port = self.restarts = 0
        self.named: Dict[str, int] = {}
        self.state, self.since = WAITING, time.time()
        self.started: Optional[float] = None
        self.first_ready: Optional[float] = None
        self.ready_since: Optional[float] = None
        self.outages: List[List[Optional[float]]] = []
        self.code: Optional[int] = None
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.probe: Optional[Probe] = None

    @property
    def ends_job(self) -> bool:
        return bool(self.spec["ends"])

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def enter(self, state: str) -> None:
        self.state, self.since = state, time.time()

    def start(self, environment: Dict[str, str]) -> None:
        """Start its script, in a session of its own."""
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        with open(os.path.join(self.folder, "batch.log"), "ab") as log:
            self.process = subprocess.Popen(
                ["bash", self.script, self.folder],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.probe = Probe(self.spec["ready"], self.address, self.port, self.folder)
        self.code = None
        self.enter(STARTING)
        self.started = self.started or self.since

    def first_end(self) -> Optional[End]:
        """Of its processes the first that failed, or for a server ended, by the notes of its nodes
        (parts/await_child.sh); else the end of its script; None while neither is known."""
        found, logs = [], os.path.join(self.folder, "logs")
        for name in os.listdir(logs) if os.path.isdir(logs) else ():
            match = re.match(r"node-(\d+)\.(rank-\d+\.)?exit$", name)
            try:
                with open(os.path.join(logs, name)) as file:
                    code, written = int(file.read() if match else 0) & 255, os.fstat(file.fileno()).st_mtime
            except (OSError, ValueError):  # it is being written
                continue
            if match and (code or not self.ends_job):
                found.append(End(written, code, self.hosts[int(match.group(1))]))
        if found or self.alive or self.process is None:
            return min(found) if found else None
        try:
            written = os.stat(os.path.join(self.folder, "end.json")).st_mtime
        except OSError:
            written = time.time()
        return End(written, self.code or 0, self.hosts[0])

    def look(self) -> None:
        """Notice its end, or that it is ready."""
        if self.process is None or self.state == ENDED:
            return
        code = self.process.poll()
        if code is not None:
            self.code = code if code >= 0 else 128 - code
            self.enter(ENDED)
            self.end_outage()
        elif self.state == STARTING and self.probe is not None and self.probe.is_ready():
            self.enter(READY)
            self.ready_since, self.first_ready = self.since, self.first_ready or self.since
            self.end_outage()

    def end_outage(self) -> None:
        """It is there again, or ended once more before it was known to be."""
        for outage in self.outages[-1:]:
            outage[1] = outage[1] or self.since

    def again(self) -> None:
        """It has ended, and is to start once more."""
        self.restarts += 1
        self.outages.append([self.since, None])
        self.process = None
        self.enter(WAITING)

    @property
    def overdue(self) -> bool:
        """Whether it is not ready in time."""
        return self.state == STARTING and self.probe is not None and time.time() - self.since > self.probe.within

    def signal(self, number: int) -> None:
        """Signal its script; SIGKILL goes to all processes of its session."""
        if self.process is None or not self.alive:
            return
        try:
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
        except OSError:
            pass

    def wait(self) -> None:
        """Until its script has ended."""
        if self.process is not None:
            self.process.wait()
            self.look()

    def endpoint(self) -> Json:
        """Where others reach it."""
        url = "http://%s:%d" % ("[%s]" % self.address if ":" in self.address else self.address, self.port)
        place = {"role": self.role, "replica": self.replica, "host": self.address, "port": self.port}
        return dict(place, url=url, ports=self.named)

    def record(self) -> Json:
        """What roles.json says of it."""
        waits = self.probe.answer if self.probe is not None and self.state == STARTING else None
        return dict(
            self.endpoint(),
            name=self.name,
            nodes=self.hosts,
            state=self.state,
            since=self.since,
            started=self.started,
            first_ready=self.first_ready,
            ready_since=self.ready_since,
            outages=self.outages,
            restarts=self.restarts,
            exit_code=self.code,
            ends_job=self.ends_job,
            waits_for=waits,
        )

    def variables(self, roles: "Iterable[RoleProcess]") -> Dict[str, str]:
        """Its own nodes and ports, and where each role of the job is. Lists for replicas; never NAME_PORT, which
        programs of that name may read: vLLM takes VLLM_PORT for an internal one."""
        own = {
            "HPC_LAUNCH_ROLE": self.role,
            "HPC_LAUNCH_REPLICA": str(self.replica),
            "HPC_LAUNCH_ROLE_NODES": " ".join(self.hosts),
            "HPC_LAUNCH_ROLE_FIRST_NODE": str(self.node),
            "HPC_LAUNCH_ROLE_MASTER_PORT": str(self.master_port),
            "ROLE_HOST": self.address,
            "ROLE_PORT": str(self.port),
        }
        own.update({"ROLE_PORT_" + name.upper(): str(port) for name, port in self.named.items()})
        found: Dict[str, List[str]] = {}
        for one in roles:
            prefix, place = "ROLE_" + one.role.upper(), one.endpoint()
            for key in ("url", "host", "port"):
                found.setdefault("%s_%s" % (prefix, key.upper()), []).append(str(place[key]))
            for name, port in one.named.items():
                found.setdefault("%s_PORT_%s" % (prefix, name.upper()), []).append(str(port))
        return dict(own, **{name: " ".join(values) for name, values in found.items()})
