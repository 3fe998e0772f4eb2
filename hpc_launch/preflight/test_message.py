"""Send a test message to the receivers of a job's `notify:`."""

from __future__ import annotations

import json
import os
import subprocess
import time

from msgspec import Struct, to_builtins

from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.attempts import find_secrets, notify_secrets
from hpc_launch.retry.notifications import NOTIFY, WAIT_S


class SentTest(Struct, frozen=True):
    """What became of a test message."""

    channel: str
    state: str
    """`sent`, `failed` or `unknown`."""
    why: str


def send_test(plan: LaunchPlan) -> list[SentTest]:
    """Send a test message to the webhook and the command of a job, and wait. Raises Refused for a missing secret."""
    notify = plan.notify
    if notify is None:
        return []
    secrets = find_secrets(notify_secrets(notify))
    channels = {name: value for name, value in to_builtins(notify)["channels"].items() if value}
    event = {"event": "test", "run": plan.name, "site": plan.site, "time": time.time(), "channels": channels}
    done = subprocess.run(
        [*NOTIFY, "test"],
        input=json.dumps(event),
        stdout=subprocess.PIPE,
        env={**os.environ, **secrets},
        text=True,
        check=True,
        timeout=len(channels) * 2 * WAIT_S,
    )
    return [SentTest(name, one["state"], one["why"]) for name, one in json.loads(done.stdout).items()]
