"""What the first host writes about the others, where ssh starts them: the host, the class and the verdict."""

from __future__ import annotations

import pytest

from hpc_launch.diagnose.decide_verdict import default_action
from tests.diagnose.logs import why_run

STAMP = "[hpc-launch 2026-11-23 07:28:12] "
USED = "n2 is in use by bob: run gpt-261123-091500-7a1c, job ssh-12, since 2026-11-23 09:15"
RANK = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4100\n"


@pytest.mark.parametrize(
    ("line", "cause", "verdict"),
    [
        (
            "the connection ended with code 255: Connection to n2 closed by remote host.",
            "connection",
            "RETRY_ELSEWHERE",
        ),
        ("the connection ended with code 255: ssh: connect to host n2 port 22: No route to host", "connection", None),
        ("the connection ended with code 255: Host key verification failed.", "connection", None),
        ("the connection ended with code 255: srun: error: Node failure on n1", "connection", None),
        ("the connection ended with code 255: torch.OutOfMemoryError: CUDA out of memory.", "connection", None),
        (f"its part of the job ended with code 75: {USED}", "in_use", "RETRY_ELSEWHERE"),
        ("its part of the job ended with code 127: n2 has no python3", "part", "STOP"),
    ],
)
def test_the_host_is_named_and_may_be_replaced(line: str, cause: str, verdict: str | None) -> None:
    logs = {"batch.log": f"{STAMP}n2: {line}\n{STAMP}ssh ended with exit code 255\n", "node-0.rank-0.log": RANK}
    found = why_run("FAILED", 255, logs)
    assert (found.failure_class, found.cause, found.level) == ("node_failure", f"host_{cause}", "infrastructure")
    assert (found.first_failure.node, found.bad_nodes) == ("n2", ("n2",))
    assert default_action(found) == (verdict or "RETRY_ELSEWHERE")
    assert not found.proven_nodes, "one lost connection says nothing to other runs"


def test_a_spare_that_is_lost_is_no_cause() -> None:
    lost = f"{STAMP}the job goes on without the spare n3: the connection ended with code 255: CUDA out of memory."
    found = why_run("FAILED", 3, {"batch.log": f"{lost}\n", "node-0.rank-0.log": "ValueError: bad sample\n"})
    assert (found.failure_class, found.bad_nodes) == ("user_code_error", ())


def test_a_training_cannot_blame_a_host() -> None:
    forged = f"{STAMP}n2: the connection ended with code 255: gone\n"
    forged += f"{STAMP}n2: its part of the job ended with code 75: {USED}\n"
    found = why_run("FAILED", 3, {"batch.log": "", "node-0.rank-0.log": f"{forged}ValueError: bad sample\n"})
    assert (found.failure_class, found.bad_nodes) == ("user_code_error", ())
