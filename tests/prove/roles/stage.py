"""Where a round with roles happens: its programs, its job file, and its records."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.prove.rounds import processes
from tests.slurm.user import User

PROGRAM = """\
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()
        self.wfile.write(os.environ["HPC_LAUNCH_RUN_NAME"].encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", int(os.environ["ROLE_PORT"])), Handler).serve_forever()
"""
"""A server that answers with the name of its run."""
SERVES = "exec python3 -S -E $PLACE/serve.py 200"
STRAY = "setsid sleep 987 & "
"""A process in a session of its own, which nobody else ends."""
GRACE_S = 3
LEFT_S = 40.0
"""In this time every process of a job that has ended is gone; Slurm waits for KillWait if its shell was killed."""


class Stage:
    """A user with one run of roles."""

    def __init__(self, user: User) -> None:
        """Put the program there."""
        self.user, self.home, self.run = user, user.home, dict[str, Any]()
        user.cluster.write(self.home / "serve.py", PROGRAM)

    @property
    def attempt(self) -> Path:
        """The folder of the first attempt."""
        return Path(self.run["folder"], "attempts", "001")

    def job(self, name: str, roles: dict[str, dict[str, Any]], **keys: Any) -> str:
        """The path of a job file; the `does` of a role is text of bash, in which $PLACE is the user's folder."""
        written = {}
        for role, spec in roles.items():
            own = {key: value for key, value in spec.items() if key != "does"}
            if "does" in spec:
                own["command"] = ["bash", "-c", spec["does"].replace("$PLACE", str(self.home))]
            written[role] = {"grace": f"{GRACE_S}s", **own}
        wanted = {"name": name, "cpus_per_node": 1, "retry": {"max_attempts": 1}, "roles": written, **keys}
        return str(self.user.cluster.write(self.home / f"{name}.yaml", json.dumps(wanted, indent=1)))

    def submit(self, file: str) -> None:
        """Submit it."""
        self.run = self.user.submit(file)

    def record(self, path: str) -> dict[str, Any]:
        """A record of the attempt; empty until it is there."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.attempt / path).read_text())
            return found
        return {}

    def role(self, name: str) -> dict[str, Any]:
        """What roles.json says of a role."""
        return next((one for one in self.record("roles.json").get("roles", ()) if one["name"] == name), {})

    def until(self, name: str, state: str, seconds: float = 60) -> None:
        """Wait until a role is in a state."""
        wait_until(
            lambda: self.role(name).get("state") == state or bool(self.record("end.json")), patience(seconds), self.told
        )

    def told(self) -> str:
        """The end of the job's log, for a message."""
        log = self.attempt / "batch.log"
        return log.read_text(errors="replace")[-1500:] if log.exists() else f"no log: {self.user.cluster.jobs()}"

    def order(self, name: str) -> None:
        """Make a file that the programs wait for."""
        self.user.cluster.write(self.home / name, "")

    def time_of(self, name: str) -> float | None:
        """The time that a program wrote into a file."""
        with suppress(OSError, ValueError):
            return float((self.home / name).read_text().split()[0])
        return None

    def over(self) -> float | None:
        """When the job's script ended, by its own record; None where there is none yet."""
        with suppress(OSError):
            return (self.attempt / "end.json").stat().st_mtime
        return None

    def left(self) -> list[str]:
        """The processes of this user's folder on all nodes, once they had time to go."""
        end, found = time.monotonic() + patience(LEFT_S), [""]
        while found and time.monotonic() < end:
            found = [one.command[:200] for one in processes(f"{self.home}/") if one.command]
            time.sleep(0.2)
        return found
