"""One node of a role's Ray cluster; on the first one, the program once all nodes are there.

    PYTHON -I agent.pyz ray_node ROLE_DIR NODE NODES CPUS GPUS PROGRAM...   started on each node of the role

All ports have numbers that the node chose (role_ports.py), so that two clusters never meet; Ray itself would take
random ones, some of them twice (https://docs.ray.io/en/latest/ray-core/configure.html, "Ports"; ray#46453). Ray sees
all CPUs of a node, not those of the job (ray#13607), and puts sockets, whose path is limited to 107 bytes, and logs
below a folder that belongs to the first user (ray#4593): it gets the numbers, and a short folder of its own. `ray stop`
would end every Ray of the user (ray#12264): each node ends what it started.

The program's exit code is that of the role. Python 3.6 or later, with Ray beside it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import Any, Dict, List, NamedTuple

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER

LOOK_S = 0.1
JOIN_S = 600.0
"""For the first node to answer, or for the others to join it."""
END_S = 10.0
"""For Ray to end its processes."""
RAY = [sys.executable, "-c", WITHOUT_CURRENT_FOLDER + "from ray.scripts.scripts import main; main()"]
COUNT = """\
import time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
has = ray.cluster_resources()
print("Ray has", int(has.get("CPU", 0)), "CPUs and", int(has.get("GPU", 0)), "GPUs")
"""
"""Waits until all nodes of the cluster are there."""


class Size(NamedTuple):
    """The nodes of the cluster, and what each of them has."""

    nodes: int
    cpus: int
    gpus: int


class Node:
    """A node, and what runs there."""

    def __init__(self, folder: str, node: int, size: "Size", program: List[str]) -> None:
        self.folder, self.node, self.size, self.program = folder, node, size, program
        self.over = False
        self.hosts = os.environ["HPC_LAUNCH_ROLE_NODES"].split()
        self.ports = self.ports_of(node)
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.started: "List[subprocess.Popen[bytes]]" = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_end)

    def on_end(self, _number: int, _frame: object) -> None:
        self.over = True

    def ports_of(self, node: int) -> Dict[str, Any]:
        """The ports that a node of the role chose."""
        number = int(os.environ["HPC_LAUNCH_ROLE_FIRST_NODE"]) + node
        with open(os.path.join(os.path.dirname(self.folder), "ports-%d.json" % number)) as file:
            ports: Dict[str, Dict[str, Any]] = json.load(file)
        return ports[os.path.basename(self.folder)]

    def address(self) -> str:
        """The address of this node by which the others reach it."""
        return socket.gethostbyname(self.hosts[self.node])

    def start_ray(self) -> "subprocess.Popen[bytes]":
        """Start the head, or a node that joins it."""
        named = self.ports["named"]
        options = {
            "node-ip-address": self.address(),
            "node-manager-port": named["node_manager"],
            "object-manager-port": named["object_manager"],
            "dashboard-agent-listen-port": named["dashboard_agent"],
            "dashboard-agent-grpc-port": named["dashboard_agent_grpc"],
            "runtime-env-agent-port": named["runtime_env"],
            "metrics-export-port": named["metrics"],
            "min-worker-port": self.ports["range"],
            "max-worker-port": self.ports["range"] + self.ports["ranged"] - 1,
            "num-cpus": self.size.cpus,
            "num-gpus": self.size.gpus,
        }  # type: Dict[str, object]
        if self.node == 0:
            options.update({"port": named["gcs"], "dashboard-port": named["dashboard"], "temp-dir": self.temporary})
            if find_spec("grpc") is not None:  # else Ray refuses the option (`ray[client]`)
                options["ray-client-server-port"] = named["client"]
        else:
            options["address"] = self.head()
        words = ["--%s=%s" % pair for pair in options.items()] + (["--head"] if self.node == 0 else [])
        words += ["--block", "--disable-usage-stats"]
        return self.run([*RAY, "start", *words], self.environment())

    def environment(self) -> Dict[str, str]:
        """Without variables by which Ray or MPI would act on the job instead of what they are told."""
        dropped = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "RAY_ADDRESS")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        variables.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        variables.setdefault("RAY_raylet_start_wait_time_s", "120")  # 30 by default; a shared file system may be slow
        return variables

    def run(self, words: List[str], variables: Dict[str, str]) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def head(self) -> str:
        """The address of the head. Other nodes wait until it answers there, and those that share a machine for the one
        before, because Ray names their sockets by what it finds there (ray/_private/node.py, _make_inc_temp)."""
        if self.node:
            self.wait_for(0, "gcs")
        if self.node > 1 and self.hosts[self.node - 1] == self.hosts[self.node]:
            self.wait_for(self.node - 1, "node_manager")
        return "%s:%d" % (socket.gethostbyname(self.hosts[0]), self.ports_of(0)["named"]["gcs"])

    def wait_for(self, node: int, name: str) -> None:
        """Until a node answers at a port. Raises OSError."""
        place = socket.gethostbyname(self.hosts[node]), self.ports_of(node)["named"][name]
        end = time.monotonic() + JOIN_S
        while not self.over:
            try:
                socket.create_connection(place, timeout=2).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(LOOK_S)

    def lead(self) -> int:
        """Run the program on the whole cluster; its exit code."""
        ray = self.start_ray()
        variables = dict(os.environ, RAY_ADDRESS=self.head())
        count = [sys.executable, "-c", WITHOUT_CURRENT_FOLDER + COUNT, variables["RAY_ADDRESS"], str(self.size.nodes)]
        counting = self.run(count, self.environment())
        while counting.poll() is None or counting.returncode:
            if self.over or ray.poll() is not None:
                return 143 if self.over else 1
            if counting.returncode:  # the head did not answer yet
                counting = self.run(count, self.environment())
            time.sleep(LOOK_S)
        with open(os.path.join(self.folder, "ray.ready"), "w"):
            pass
        program = self.run(self.program, variables)
        while program.poll() is None:
            if self.over:
                program.terminate()
                program.wait()
                return 143
            if ray.poll() is not None:
                print("[hpc-launch] Ray's head ended while the program ran", flush=True)
                return 1
            time.sleep(LOOK_S)
        return program.returncode if program.returncode >= 0 else 128 - program.returncode

    def follow(self) -> int:
        """Be a node of the cluster until the program has ended."""
        ray = self.start_ray()
        done = os.path.join(self.folder, "ray.done")
        while not self.over:
            if os.path.exists(done):
                return 0
            if ray.poll() is not None:
                print("[hpc-launch] Ray ended on node %d while the program ran" % self.node, flush=True)
                return 1
            time.sleep(LOOK_S)
        return 143

    def end(self, code: int) -> None:
        """End all that was started here."""
        if self.node == 0 and code == 0:
            with open(os.path.join(self.folder, "ray.done"), "w"):
                pass
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


def main(words: List[str]) -> int:
    """Be this node, and on the first one run the program."""
    folder, (node, nodes, cpus, gpus) = words[0], map(int, words[1:5])
    here = Node(folder, node, Size(nodes, cpus, gpus), words[5:])
    code = 1
    try:
        code = here.lead() if node == 0 else here.follow()
    finally:
        here.end(code)
    return code
