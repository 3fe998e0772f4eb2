"""Some rounds of runs of which something is killed; `make prove` plays the others by the same code."""

from __future__ import annotations

import os
import random

import pytest

from tests.prove.ssh_kills import KINDS, QUICK, play
from tests.ssh.ssh_user import SshUser

SEED = int(os.environ.get("HPC_LAUNCH_PROVE_SEED", "4"))


@pytest.mark.parametrize("kind", random.Random(SEED).sample(QUICK, 1))
def test_nothing_is_left_of_a_run_and_it_says_why(user: SshUser, kind: str) -> None:
    node = random.Random(SEED).choice(KINDS[kind][0] or ("n1",))
    assert play(user, SEED, kind, node)[0] == []
