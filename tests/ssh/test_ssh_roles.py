"""Several programs in one job, on hosts without a scheduler."""

from __future__ import annotations

import json

import pytest

from tests.marks import prove
from tests.slurm.test_roles import SERVES, roles, states, wait_for, why
from tests.ssh.ssh_user import SshUser

HOSTS = "hosts: {n1: 1, n2: 2}"


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize("shared", [prove(True), False])
def test_a_client_finds_its_server_on_another_host(user: SshUser, shared: bool) -> None:
    user.profile(HOSTS, shared=shared)
    log = user.completed(roles(user, SERVES, "curl -sf $ROLE_SERVER_URL >/dev/null && echo found $ROLE_SERVER_HOST"))
    assert "found n1" in log
    assert [states(user)[name]["nodes"] for name in ("server", "train")] == [["n1"], ["n2"]]
    user.nothing_left()


def test_the_role_that_fails_first_is_named_and_nothing_is_left(user: SshUser) -> None:
    user.profile(HOSTS)
    done = user.launch("submit", roles(user, f"{SERVES} & sleep 3; exit 6", "setsid sleep 300 & sleep 300"), "--wait")
    assert done.returncode == 1
    first = why(user)["first_failure"]
    assert (first["role"], first["node"]) == ("server", "n1")
    assert user.status()["attempts"][0]["exit_code"] == 6
    user.nothing_left()


@pytest.mark.prove
def test_torchrun_and_a_restarted_server(user: SshUser) -> None:
    user.profile(HOSTS)
    program = (
        "import os, time, urllib.request as ask\n"
        "for step in range(8):\n"
        "    time.sleep(1)\n"
        "    try: print('step', step, ask.urlopen(os.environ['ROLE_SERVER_URL']).status, flush=True)\n"
        "    except OSError as error: print('later', error, flush=True)\n"
    )
    user.cluster.write(user.home / "train.py", program)
    train = {"launcher": "torchrun", "script": "train.py", "processes_per_node": 2, "command": None}
    serve = f"{SERVES} & sleep 4; test -e second && wait; touch second; exit 9"
    log = user.completed(roles(user, serve, "", train=train, server={"restart": 1}))
    assert states(user)["server"]["restarts"] == 1
    assert "[rank1]: step 7 200" in log
    assert json.loads(user.launch("list", "--json").stdout)[0]["roles"]
    wait_for(user, "train", "ended")
