"""The deaths of roles that are tried: what dies and how, and what has to be said of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.faults import wait_until
from tests.prove.roles.stage import SERVES, STRAY, Stage
from tests.prove.rounds import Process, processes

Strike = Callable[[Stage], None]

DIES = "until [ -e $PLACE/go ]; do sleep 0.2; done; date +%s.%N >$PLACE/died; "
"""Once the round says so."""
ANSWERS = "python3 -S -E $PLACE/serve.py 200 & "
NOW = "date +%s.%N >$PLACE/died; "
WAITS = "sleep 600 & wait"
WITHIN_S = 10
"""For a server that never is ready: long enough for its program to start on a busy machine."""
SILENT = (
    "exec python3 -S -E -c 'import os, socket, time; "
    's = socket.create_server(("", int(os.environ["ROLE_PORT"]))); time.sleep(600)\''
)
RANK = """\
import os, signal, time
place = os.environ["PLACE"]
while not os.path.exists(place + "/go"):
    time.sleep(0.1)
if os.environ["RANK"] == "1":
    with open(place + "/died", "w") as file:
        file.write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL) if os.path.exists(place + "/kill") else [][1]
time.sleep(600)
"""


def go(stage: Stage) -> None:
    """The programs do it."""
    stage.order("go")


def of_role(stage: Stage, role: str, *words: str) -> list[Process]:
    """The processes of a role's step, its script or its srun, by words of their commands."""
    found = list(processes(f"{stage.home}/"))
    wanted = (f"roles/{role}", *words)
    return [one for one in found if all(word in one.command for word in wanted)]


def kill(pids: list[int]) -> None:
    """SIGKILL."""
    assert pids, "nothing to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_server(stage: Stage) -> None:
    """The server's own process."""
    kill([one.number for one in processes(f"{stage.home}/") if "serve.py" in one.command and "bash" not in one.command])


def kill_script(stage: Stage) -> None:
    """The script of the server, in the batch step."""
    kill([one.number for one in of_role(stage, "server.sh") if one.command.startswith("bash ")])


def kill_srun(stage: Stage) -> None:
    """The srun of the server."""
    kill([one.number for one in of_role(stage, "server/", "--output") if one.command.startswith("srun")])


def step_of(stage: Stage) -> tuple[int, str]:
    """The slurmstepd of the server's step, and the number of the step."""
    for one in of_role(stage, "server/node.sh"):
        variables = open(f"/proc/{one.number}/environ").read().split("\0")  # noqa: SIM115
        step = next((text.partition("=")[2] for text in variables if text.startswith("SLURM_STEP_ID=")), "")
        if step and not one.command.startswith("srun"):
            parent = int(open(f"/proc/{one.number}/stat").read().rpartition(")")[2].split()[1])  # noqa: SIM115
            return parent, step
    raise LookupError("the server has no step")


def kill_stepd(stage: Stage) -> None:
    """What starts and watches the server's processes on its node."""
    kill([step_of(stage)[0]])


def cancel_step(stage: Stage) -> None:
    """`scancel JOB.STEP`."""
    stage.user.cluster.run(["scancel", f"{stage.run['job_id']}.{step_of(stage)[1]}"], check=True)


def agents(stage: Stage, name: str) -> list[int]:
    """The processes of a program of the agent."""
    found = processes(f"{stage.home}/")
    return [one.number for one in found if f"agent.pyz {name} " in one.command and "srun" not in one.command]


def kill_agent(stage: Stage) -> None:
    """What starts and watches the roles."""
    kill(agents(stage, "roles"))


def kill_holders(stage: Stage) -> None:
    """What holds the ports, on all nodes; then the training ends well."""
    kill(agents(stage, "role_ports"))
    time.sleep(0.5)
    stage.order("go")


def cancel_job(stage: Stage) -> None:
    """`scancel JOB`, by somebody."""
    stage.user.cluster.run(["scancel", stage.run["job_id"]], check=True)


def cancel_run(stage: Stage) -> None:
    """`hpc-launch cancel`."""
    stage.user.launch("cancel", stage.run["run"])


def kill_shell(stage: Stage) -> None:
    """SIGKILL to the batch shell alone."""
    stage.user.cluster.run(["scancel", "--batch", "--signal=KILL", stage.run["job_id"]], check=True)


def lose_node(index: int) -> Strike:
    """Cut the power of a node of the job; it happens when Slurm says so, about 25 s later."""

    def strike(stage: Stage) -> None:
        cluster = stage.user.cluster
        names = sorted(node for one in stage.record("roles.json")["roles"] for node in one["nodes"])
        node = list(dict.fromkeys(names))[index]
        cluster.kill_node(node)
        wait_until(lambda: "down" in cluster.node_states().get(node, ""), explain=lambda: str(cluster.node_states()))

    return strike


@dataclass(frozen=True)
class Kind:
    """One way in which a role, or what it needs, dies.

    Attributes:
        what: For people.
        named: The role that has to be named first; None where no role failed.
        code: Its exit code; None where it has none of its own.
        server: What the server does, as bash.
        train: What the training does.
        keys: More keys of the roles and, as `job`, of the job.
        strike: What the round does once `at` is ready.
        at: The role that has to be ready; None where all happens by itself.
        says: What `why` has to say, too.
        node: Where it fails, among the nodes of the role.
        rank: The rank that has to be named.
        state: Of the run in the end.
        within: Seconds in which the role has to be ready, where it never is.
        own: On a cluster of its own, which the round breaks.
    """

    what: str
    named: str | None
    code: int | None
    server: str = STRAY + SERVES
    train: str = STRAY + WAITS
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    strike: Strike = go
    at: str | None = "train"
    says: str = ""
    node: int = 0
    rank: int | None = None
    state: str = "FAILED|STOPPED"
    within: int = 0
    own: bool = False


def never_ready(what: str, server: str, says: str, **ready: Any) -> Kind:
    """A server that is not ready in time."""
    keys = {"server": {"ready": {**(ready or {"http": "/"}), "within": f"{WITHIN_S}s"}}}
    said = f"role_not_ready.*role server: not ready within {WITHIN_S} s: {says}"
    return Kind(what, "server", None, NOW + STRAY + server, keys=keys, at=None, says=said, within=WITHIN_S)


def rank(what: str, says: str) -> Kind:
    """Rank 1 of a torchrun role."""
    train = {"launcher": "torchrun", "script": "$PLACE/rank.py", "processes_per_node": 2, "env": {"PLACE": "$PLACE"}}
    return Kind(what, "train", 1, keys={"train": train}, rank=1, says=says)


LATER = "until [ -e $PLACE/go ]; do sleep 0.2; done; sleep 0.5; exit %d"
SAVES = f"trap 'sleep 1; {NOW} exit 0' TERM; {STRAY}sleep 600 & while :; do wait; done"
TWO = {"job": {"nodes": 3}}

KINDS: tuple[Kind, ...] = (
    # roles
    Kind("a server ends with code 3", "server", 3, STRAY + ANSWERS + DIES + "exit 3"),
    Kind("a server ends with code 0", "server", 0, STRAY + ANSWERS + DIES + "exit 0", says="while the job needs it"),
    Kind("SIGKILL to a server", "server", 137, strike=kill_server),
    Kind("a server kills itself by SIGSEGV", "server", 139, STRAY + ANSWERS + DIES + "kill -SEGV $$"),
    Kind("a server kills itself by SIGABRT", "server", 134, STRAY + ANSWERS + DIES + "kill -ABRT $$"),
    Kind("an exception in a server", "server", 1, STRAY + ANSWERS + DIES + "python3 -S -E -c '1/0'",
         says="ZeroDivisionError"),
    Kind("a server's program does not exist", "server", 127, "exec $PLACE/nothing", at=None),
    Kind("a server ends before it is ready", "server", 4, STRAY + NOW + "exit 4", at=None),
    Kind(
        "the environment of a server cannot be set up", "server", 1,
        keys={"server": {"environment": {"source": ["$PLACE/broken.sh"]}}}, at=None,
    ),
    Kind(
        "SIGKILL to a server whose client ends at once for want of it", "server", 137, strike=kill_server,
        train="while curl -sf -o $PLACE/answer $ROLE_SERVER_URL; do sleep 0.05; done; exit 9",
    ),
    Kind("the training ends with code 7", "train", 7, train=STRAY + DIES + "exit 7"),
    Kind("SIGKILL to the training", "train", 137, train=STRAY + DIES + "kill -KILL $$"),
    Kind("the training ends by SIGTERM", "train", 143, train=STRAY + DIES + "kill -TERM $$"),
    Kind("two die: a server, and the training 0.5 s later", "server", 4, STRAY + ANSWERS + DIES + "exit 4", LATER % 5),
    Kind("two die: the training, and a server 0.5 s later", "train", 5, ANSWERS + LATER % 4, STRAY + DIES + "exit 5"),
    Kind(
        "the second of a server's replicas", "server.1", 6,
        ANSWERS + "[ $HPC_LAUNCH_REPLICA = 1 ] || wait; " + DIES + "exit 6",
        keys={"server": {"replicas": 2}, **TWO},
    ),
    Kind(
        "a server on the second of its two nodes", "server", 8,
        ANSWERS + "[ $SLURM_NODEID = 1 ] || wait; " + DIES + "exit 8", keys={"server": {"nodes": 2}, **TWO}, node=1,
    ),
    Kind("a server beside the training", "server", 3, STRAY + ANSWERS + DIES + "exit 3",
         keys={"server": {"beside": "train"}, "job": {"nodes": 1}}),
    rank("SIGKILL to rank 1 of a torchrun role", "."),
    rank("an exception in rank 1 of a torchrun role", "IndexError"),
    # ports
    Kind("another program has the port of a server", "server", 1,
         ANSWERS + "until curl -so $PLACE/answer 127.0.0.1:$ROLE_PORT; do sleep 0.2; done; " + NOW + SERVES,
         at=None, says="port_in_use"),
    Kind("what holds the ports is killed; the job ends well", None, None, "trap '' TERM; " + STRAY + ANSWERS + WAITS,
         "until [ -e $PLACE/go ]; do sleep 0.2; done; " + NOW, strike=kill_holders, state="COMPLETED"),
    # readiness
    never_ready("a server that does not listen", WAITS, "GET /: .*refused"),
    never_ready("a server that answers 503", "exec python3 -S -E $PLACE/serve.py 503", "GET /: status 503"),
    never_ready("a server that takes connections and says nothing", SILENT, "GET /: .*timed out"),
    never_ready("a server whose port stays closed", WAITS, "port .*refused", tcp=True),
    never_ready("a server whose log lacks the line", ANSWERS + WAITS, "no line matches", log="is ready"),
    never_ready("a server that is stopped by SIGSTOP", ANSWERS + "kill -STOP $! $$", "GET /"),
    # the batch shell and what is between it and the role
    Kind("SIGKILL to the batch shell", None, None, strike=kill_shell),
    Kind("scancel of the job; the training saves", None, None, train=SAVES, strike=cancel_job, state="CANCELLED"),
    Kind("hpc-launch cancel; a server ignores SIGTERM", None, None, "trap '' TERM; " + STRAY + ANSWERS + WAITS,
         strike=cancel_run, state="CANCELLED"),
    Kind("scancel of a server's step", "server", None, strike=cancel_step),
    Kind("SIGKILL to a server's script", "server", 137, strike=kill_script),
    Kind("SIGKILL to a server's srun", "server", 137, strike=kill_srun),
    Kind("SIGKILL to slurmstepd of a server", "server", None, strike=kill_stepd),
    Kind("SIGKILL to what watches the roles", None, None, strike=kill_agent),
    Kind("the job ends well, and a server ignores SIGTERM", None, None, "trap '' TERM; " + STRAY + ANSWERS + WAITS,
         STRAY + DIES, state="COMPLETED"),
    # nodes
    Kind("the node of the training loses power", "train", None, strike=lose_node(1), own=True),
    Kind("the node of a server and the batch script loses power", "server", None, strike=lose_node(0), own=True),
    Kind("the node of a server's second replica loses power", "server.1", None, strike=lose_node(1), own=True,
         keys={"server": {"replicas": 2}, **TWO}),
)  # fmt: skip
"""The three last need a cluster of their own."""
