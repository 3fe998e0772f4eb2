"""Start the roles of a job in their order, watch all of them, and end them together.

    python3 -I agent.pyz roles slurm|local|ssh ATTEMPT_DIR HOST[=ADDRESS]...   started by parts/step_roles.sh

Each role has a script of its own, as a job of one program would, in ATTEMPT_DIR/roles/NAME; replica K has NAME.K. What
each is to do is in roles/plan.json, which the batch script wrote; what each does, in roles.json.

Exit code: 0 once every role with `ends: job` has ended well, else the code of the role that failed first.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, List, Optional

from hpc_launch.agent import program, say, write_atomic
from hpc_launch.agent.role_process import ENDED, READY, STARTING, WAITING, Host, Json, RoleProcess

LOOK_S = 0.1
"""Between two looks at the roles."""
PORTS_S = 120.0
"""For each node to say which ports its roles have."""
END_S = 15.0
"""For what ends the processes of a role on its nodes, by a step of Slurm."""


class Failure(Exception):
    """Why the job ends, and with which exit code. `ended` is false for a role that did not end by itself."""

    def __init__(self, role: RoleProcess, code: int, why: str, *, node: str = "") -> None:
        super().__init__(why)
        self.role, self.code, self.node, self.ended = role, code, node or role.hosts[0], bool(node)
        self.time = time.time()

    def record(self) -> Json:
        """What roles.json says of it."""
        place = {"name": self.role.name, "role": self.role.role, "node": self.node}
        return dict(place, exit_code=self.code, why=str(self), ended=self.ended, time=self.time)


class Roles:
    """All roles of the job."""

    def __init__(self, scheduler: str, attempt: str, hosts: List[str]) -> None:
        self.scheduler, self.attempt, self.folder = scheduler, attempt, os.path.join(attempt, "roles")
        pairs = [host.partition("=") for host in hosts]
        known = [Host(name, address or name) for name, _, address in pairs]
        self.hosts = [host.name for host in known]
        with open(os.path.join(self.folder, "plan.json")) as file:
            plan = json.load(file)["roles"]
        self.roles: List[RoleProcess] = []
        for name, spec in plan.items():
            self.roles += [RoleProcess(name, at, spec, self.folder, known) for at in range(len(spec["nodes"]))]
        self.holder: "Optional[subprocess.Popen[bytes]]" = None
        self.told = self.warned = False
        self.failure: Optional[Failure] = None
        self.written: Optional[Json] = None

    def run(self) -> int:
        """Until the job is over; its exit code."""
        signal.signal(signal.SIGTERM, self.on_term)
        code = 1
        try:
            self.hold_ports()
            self.write("endpoints.json", [one.endpoint() for one in self.roles])
            code = self.watch()
        except Failure as failure:
            self.failure, code = failure, failure.code
            say("role %s: %s" % (failure.role.name, failure))
            self.write_state()  # the end may take its time, and does not always come
        finally:
            self.end_all()
            self.write_state()
            self.let_ports_go()
        return code

    def on_term(self, _number: int, _frame: object) -> None:
        self.told = True

    # --- Ports ---

    def hold_ports(self) -> None:
        """Have each node choose the ports of the roles that begin on it, and hold them until the job ends."""
        words = ["python3", *program("role_ports"), self.attempt, *self.hosts]
        words = self.over_ssh(words) if self.scheduler == "ssh" else self.on_nodes(self.hosts) + words
        self.holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + PORTS_S
        for one in self.roles:
            chosen: Optional[Json] = None
            while chosen is None and not self.told:
                chosen = self.ports_of(one)
                if chosen is not None:
                    one.port, one.master_port, one.named = chosen["port"], chosen["master"], chosen["named"]
                elif self.holder.poll() is not None or time.monotonic() > end:
                    raise Failure(one, 1, "%s did not choose ports for it" % one.hosts[0])
                else:
                    time.sleep(LOOK_S / 2)

    def let_ports_go(self) -> None:
        """Have the nodes end what is left, by a file: srun would kill what it starts soon after a signal."""
        with open(os.path.join(self.folder, "over"), "w"):
            pass
        if self.holder is not None:
            if self.holder.poll() is not None:  # somebody killed what ends the rest
                self.clean(one for one in self.roles if one.process is not None)
            try:
                self.holder.wait(END_S)
            except subprocess.TimeoutExpired:
                self.holder.terminate()
                self.holder.wait()

    def ports_of(self, one: RoleProcess) -> Optional[Json]:
        """What its first node has chosen; None until it has."""
        try:
            with open(os.path.join(self.folder, "ports-%d.json" % one.node)) as file:
                chosen: Json = json.load(file)[one.name]
        except (OSError, ValueError):
            return None
        return chosen

    def on_nodes(self, hosts: List[str]) -> List[str]:
        """What starts a command on each of these nodes, beside what runs there; nothing on this machine."""
        if self.scheduler != "slurm":
            return []
        count = str(len(hosts))
        unset = ["env", "-u", "SLURM_MEM_PER_CPU", "-u", "SLURM_MEM_PER_GPU"]
        options = ["--job-name=hpc-launch", "--overlap", "--mem=0", "--nodelist=" + ",".join(hosts)]
        return [*unset, "srun", *options, "--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1"]

    def over_ssh(self, words: List[str]) -> List[str]:
        """What runs it on each host, until the connection ends (fan_out.py, on_host.py)."""
        folder = os.path.join(self.folder, "ports")
        os.mkdir(folder)
        agent = " ".join(map(shlex.quote, ["python3", *program("on_host")]))
        line = ': >"$HPC_LAUNCH_ATTEMPT_DIR/$HPC_LAUNCH_NODE.began"; exec %s' % " ".join(map(shlex.quote, words))
        names = ("HPC_LAUNCH_RUN_DIR", "HPC_LAUNCH_RUN_NAME", "HPC_LAUNCH_JOB_ID")
        variables = ["%s=%s" % (name, shlex.quote(os.environ[name])) for name in names]
        with open(os.path.join(folder, "node.sh"), "w") as file:
            file.write("begin() {\n    export HPC_LAUNCH_NODE=$1 HPC_LAUNCH_ATTEMPT_DIR=%s\n" % shlex.quote(folder))
            file.write("    export %s\n    exec %s bash -c %s\n}\n" % (" ".join(variables), agent, shlex.quote(line)))
            file.write('"$@"\n')
        return [sys.executable, *program("fan_out"), folder, *self.hosts]

    # --- From the start to the end ---

    def watch(self) -> int:
        """Start what may start, and look at what runs. Returns 0 once the job is done; raises Failure."""
        parent = os.getppid()  # without the job's script the job is over, and all roles are ended: none of them failed
        while not self.told and os.getppid() == parent:
            self.warn()
            for one in self.roles:
                self.look_at(one)
            if all(one.state == ENDED for one in self.roles if one.ends_job):
                return 0
            self.write_state()
            time.sleep(LOOK_S)
        return 143

    def look_at(self, one: RoleProcess) -> None:
        """Start a role, or say what has changed. Raises Failure where that ends the job."""
        before = one.state
        one.look()
        if one.state == WAITING and all(other.state in (READY, ENDED) for other in self.awaited(one)):
            one.start(self.environment(one))
            say("role %s starts on %s" % (one.name, ",".join(one.hosts)))
        elif one.overdue and one.probe is not None:
            raise Failure(one, 1, "not ready within %d s: %s" % (one.probe.within, one.probe.answer))
        elif one.state == READY and before != READY:
            say("role %s is ready" % one.name)
        elif one.state == ENDED and before != ENDED:
            self.on_end(one, one.code or 0)

    def awaited(self, one: RoleProcess) -> List[RoleProcess]:
        return [other for other in self.roles if other.role in one.spec["after"]]

    def environment(self, one: RoleProcess) -> Dict[str, str]:
        """The job's, for the nodes of the role alone."""
        variables = dict(os.environ, **one.variables(self.roles))
        if self.scheduler == "slurm":
            variables.update(dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(one.hosts)))
            variables.update(dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(one.hosts))))
            for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
                variables.pop(name, None)
        return variables

    def on_end(self, one: RoleProcess, code: int) -> None:
        """A role has ended: the job's own end, a restart, or a failure."""
        if one.ends_job and code == 0:
            say("role %s is done" % one.name)
            return
        if one.restarts == one.spec["restart"]:
            raise self.first_failure(one)
        one.again()
        say("role %s ended with exit code %d: restart %d of %d" % (one.name, code, one.restarts, one.spec["restart"]))
        self.clean([one])
        os.rename(one.folder, "%s.ended-%d" % (one.folder, one.restarts))

    def first_failure(self, seen: RoleProcess) -> Failure:
        """That of the role which ended first: a client may fail for want of its server, and its script end before the
        server's."""
        known = [one for one in self.roles if one is seen or one.state in (STARTING, READY)]
        for one in known:
            one.look()
        ends = [(end, one) for one in known for end in [one.first_end()] if end is not None]
        end, first = min(ends, key=lambda pair: pair[0].time)
        code, needed = end.code or first.code or 0, "" if first.ends_job else " while the job needs it"
        return Failure(first, code or 1, "ended with exit code %d on %s%s" % (code, end.node, needed), node=end.node)

    def warn(self) -> None:
        """Pass on the request to save to the roles that end the job: their servers stay until they have ended."""
        if self.warned or not os.path.exists(os.path.join(self.attempt, "stop")):
            return
        self.warned = True
        for one in self.roles:
            if one.ends_job and one.alive:
                with open(os.path.join(one.folder, "stop"), "a"):
                    pass

    # --- The end ---

    def end_all(self) -> None:
        """End the roles that still run: those that end the job first, as they may save, then their servers."""
        for own in (True, False):
            running, begin = [one for one in self.roles if one.alive and one.ends_job is own], time.monotonic()
            for one in running:
                one.signal(signal.SIGTERM)
            while any(one.alive and time.monotonic() - begin < one.spec["grace"] for one in running):
                time.sleep(LOOK_S)
            stubborn = [one for one in running if one.alive]
            if stubborn:
                say("killed, as they ran on after their grace time: %s" % " ".join(one.name for one in stubborn))
            for one in running:  # what is left on the nodes ends with their ports, on all of them at once
                one.signal(signal.SIGKILL)
                one.wait()

    def clean(self, roles: Iterable[RoleProcess]) -> None:
        """End what is left of these roles on their nodes, whatever their sessions."""
        for one in roles:
            if self.scheduler == "ssh":  # each host ends its part when its connection ends
                one.signal(signal.SIGKILL)
                continue
            words = ["python3", *program("job_processes"), "end", one.folder]
            with open(os.devnull, "r+b") as null:
                try:
                    subprocess.call(self.on_nodes(one.hosts) + words, stdin=null, stdout=null, timeout=END_S)
                except (OSError, subprocess.TimeoutExpired) as error:
                    say("role %s: %s" % (one.name, error))

    def write_state(self) -> None:
        """roles.json, where something has changed."""
        failed = None if self.failure is None else self.failure.record()
        state = {"roles": [one.record() for one in self.roles], "failed": failed}
        if state != self.written:
            self.write("roles.json", state)
            self.written = state

    def write(self, name: str, data: Any) -> None:
        """Replace a file of the attempt at once."""
        write_atomic(os.path.join(self.attempt, name), json.dumps(data, indent=1), sync=False)


def main(words: List[str]) -> int:
    """Run the roles of an attempt on these hosts."""
    return Roles(words[0], words[1], words[2:]).run()
