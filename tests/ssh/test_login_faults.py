"""Why ssh does not log in: each missing step, planted for a user of real sshd, is named with the step that adds it."""

from __future__ import annotations

import fcntl
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster import Cluster
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.marks import prove

PORT = 2222
READY = """\
rm -rf ~/.ssh && mkdir -m 700 ~/.ssh && cd ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f id_ed25519 && cp id_ed25519.pub authorized_keys
awk -v key="$(cut -d' ' -f1,2 "$HOST_KEY.pub")" 'BEGIN {print "[n2]:2222,[10.77.0.2]:2222 " key}' >known_hosts
printf 'Host n2\\n Port 2222\\n' >config; chmod 600 config
"""
"""What a user needs who logs in to n2; then a case takes something away."""


@dataclass(frozen=True)
class Case:
    """Commands of the user that plant a fault, and what is said: message and hint."""

    plant: str
    says: str
    hint: str


CASES = {
    "nothing": Case("true", "", ""),
    "no key": Case(
        "rm id_ed25519*",
        "HL664 cannot reach n2 over ssh from n2: it accepts none of your keys",
        "`ssh-keygen -t ed25519`",
    ),
    "not authorized": Case(": >authorized_keys", "HL664 .*: it accepts none of your keys \\(", "`ssh-copy-id n2`"),
    "a key that others can read": Case(
        "chmod 644 id_ed25519", "HL664 .*: others can read the key .*/.ssh/id_ed25519", "`chmod 600 .*id_ed25519`"
    ),
    "a passphrase without an agent": Case(
        "ssh-keygen -q -p -P '' -N secret -f id_ed25519 >/dev/null",
        "HL664 .*: it accepts none of your keys",
        "`ssh-add`",
    ),
    "a home that others can write": Case(
        "chmod 777 ~", "HL664 .*: it accepts none of your keys", "`chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` there"
    ),
    "a config that others can write": Case(
        "chmod 666 config", "HL664 .*: others can change .*/.ssh/config", "`chmod go-w .*/.ssh/config`"
    ),
    "an unknown host key": Case(
        "rm known_hosts", "HL665 .*: its host key is unknown here", "run `ssh n2` once, compare its key and accept it"
    ),
    "another host key": Case(
        "ssh-keygen -q -t ed25519 -N '' -f other; echo \"[n2]:2222 $(cut -d' ' -f1,2 other.pub)\" >known_hosts",
        "HL665 .*: its host key is not the known one",
        "`ssh-keygen -R n2`",
    ),
    "no sshd at the port": Case(
        "sed -i s/2222/2223/ config", "HL663 .*: .*Connection refused", "start sshd there, or correct its port"
    ),
    "no such host": Case("echo ' HostName n2.invalid' >>config", "HL663 .*resolve", "correct the name"),
}
SAMPLE = ("nothing", "a home that others can write", "another host key")


@pytest.fixture
def host_key(cluster: Cluster) -> Iterator[str]:
    """The host key of an sshd on n2 that is as strict as usual, for one test at a time."""
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    folder = cluster.layout.root / "ssh"
    lock = (folder / "strict.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    config = folder / "strict_config"
    text = (folder / "sshd_config").read_text().replace("StrictModes no", f"StrictModes yes\nPort {PORT}")
    config.write_text(text.replace("PidFile none", f"PidFile {folder / 'strict.pid'}"))
    listens = f"until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.1; done"
    done = cluster.node_exec("n2", ["bash", "-ec", f"/usr/sbin/sshd -f {config}; {listens}"])
    assert done.returncode == 0, done.stderr
    yield str(folder / "host_key")
    cluster.node_exec("n2", ["bash", "-c", f"kill $(cat {folder / 'strict.pid'})"])
    lock.close()


@pytest.mark.parametrize("case", [name if name in SAMPLE else prove(name) for name in CASES])
def test_the_missing_step_is_named(cluster: Cluster, host_key: str, case: str) -> None:
    fault = CASES[case]
    check = f"exec {sys.executable} -m hpc_launch.schedulers.ssh.ssh_hosts check '' n2"
    words = ["bash", "-ec", f"{READY}{fault.plant}\ncd ~; {check}"]
    done = cluster.run(words, user="bob", node="n1", env={"HOST_KEY": host_key})
    cluster.run(["chmod", "755", cluster.environment("bob")["HOME"]], user="bob")
    assert done.returncode == 0, done.stderr
    if not fault.says:
        assert done.stdout == ""
        return
    found = json.loads(done.stdout)
    assert found["host"] == "n2"
    assert re.match(fault.says, found["message"]), found
    assert re.search(fault.hint, found["hint"]), found
