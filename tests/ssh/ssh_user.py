"""A user whose site is a list of hosts, and what they look at there."""

from __future__ import annotations

from tests.slurm.user import User

PROFILE = """\
name: hosts
title: Hosts of the tests
status: verified
grade: A
source: tests/cluster/ssh.py
as_of: 2026-11-23
contact: hpc-launch
scheduler:
  type: ssh
  shared: {shared}
  {scheduler}
node_classes:
  host: {{cpus: 2, gpus: {gpus}}}
queues:
  all: {{node_class: host, memory: omit}}
defaults:
  environment:
    python: ${{launcher.python}}
  preflight: {preflight}
"""


class SshUser(User):
    """A user who never calls Slurm."""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "HPC_LAUNCH_SITE": "hosts"}

    def profile(
        self, scheduler: str, *, shared: bool = True, preflight: str = '"off"', more: str = "", gpus: int = 0
    ) -> None:
        """Write the site profile, with more keys of its scheduler. Other tests may use the hosts at the same time:
        without `shared`, a test needs the fixture `leases`."""
        keys = {"scheduler": scheduler, "shared": str(shared).lower(), "preflight": preflight, "gpus": gpus}
        self.job(PROFILE.format(**keys) + more, "sites/hosts.yaml")

    def kill(self, node: str, victim: str) -> None:
        """Kill this test's processes on a host by a word of their command, or the sshd above them."""
        listed = self.cluster.node_exec(node, ["ps", "-ww", "-u", self.cluster.user, "-o", "pid=,ppid=,args="]).stdout
        words = [line.split(None, 2) for line in listed.splitlines() if str(self.home) in line]
        found = {line[0] for line in words if victim in line[2]}
        if victim == "sshd":
            found = {line[1] for line in words if "agent.pyz on_host" in line[2]} - {line[0] for line in words}
        assert found, listed
        assert self.cluster.node_exec(node, ["kill", "-KILL", *found]).returncode == 0

    def nothing_left(self, seconds: float = 15) -> None:
        """As of every user, but soon: no scheduler takes its time."""
        super().nothing_left(seconds)
