"""Host files in DeepSpeed's format, and DeepSpeed's filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.job.hostlist import SlotHost, filter_hosts, read_hostfile

NAMES = st.from_regex(r"[a-z0-9_][a-zA-Z0-9._-]{0,20}", fullmatch=True)
HOSTS = st.lists(
    st.builds(SlotHost, NAMES, st.integers(1, 16)), min_size=1, max_size=8, unique_by=lambda host: host.name
)


def test_comments_ranges_and_further_words() -> None:
    text = "# the cluster\r\n\n  n[1-2]\tslots=4 type=A800  # old\nlocalhost slots=2"
    assert [str(host) for host in read_hostfile(text, "f")[0]] == ["n1 slots=4", "n2 slots=4", "localhost slots=2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-oProxyCommand=touch${IFS}x slots=4", "is an option of ssh"),
        ("-oProxyCommand=x[1-2] slots=4", "is an option of ssh"),
        ("[-1]x slots=4", "not a number"),
        ("a@b slots=4", "not a valid host name"),
        ("a;b slots=4", "not a valid host name"),
        ("a\x1b[31m slots=4", "unbalanced brackets"),
        ("a\x00 slots=4", "not a valid host name"),
        ("n1", "expected `NAME slots=N`"),
        ("n1 slots=x", "expected `NAME slots=N`"),
        ("n1 slots=4 slots=8", "expected `NAME slots=N`"),
        ("n1 4", "expected `NAME slots=N`"),
        ("n1 slots=0", "0 slots"),
        ("n0 slots=2", "already listed in line 1"),
        ("n[0-3] slots=2", "already listed in line 1"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(line: str, message: str) -> None:
    _, findings = read_hostfile(f"n0 slots=1\n{line}\n", "hostfile")
    assert [str(finding.place) for finding in findings] == ["hostfile:2"]
    assert message in findings[0].message
    assert findings[0].message.isprintable()


def test_a_file_without_hosts_is_refused() -> None:
    assert "no hosts" in read_hostfile("# nothing\n", "f")[1][0].message


@given(HOSTS)
def test_what_is_written_is_read(hosts: list[SlotHost]) -> None:
    text = "".join(f"{host}\n" for host in hosts)
    assert read_hostfile(text, "f") == (tuple(hosts), [])


@given(st.text())
def test_any_text_gives_safe_names_or_findings(text: str) -> None:
    hosts, findings = read_hostfile(text, "f")
    assert hosts or findings
    for host in hosts:
        assert host.name.isascii()
        assert not host.name.startswith("-")
        assert not set(host.name) & set(" \t\n'\"$`\\;&|<>()@:")
    assert len({host.name for host in hosts}) == len(hosts)
    assert all(finding.message.isprintable() for finding in findings)


def filtered(**filters: str) -> list[tuple[str, int, tuple[int, ...]]]:
    hosts, message = filter_hosts([SlotHost("a", 4), SlotHost("b", 4), SlotHost("c", 2)], **filters)
    assert message is None
    return [(host.name, host.slots, host.devices) for host in hosts]


def test_filters_as_deepspeed_documents_them() -> None:
    assert filtered() == [("a", 4, ()), ("b", 4, ()), ("c", 2, ())]
    assert filtered(include="c@a:0,2") == [("a", 2, (0, 2)), ("c", 2, ())]
    assert filtered(exclude="b@a:1") == [("a", 3, (0, 2, 3)), ("c", 2, ())]
    assert filtered(exclude="a:0,1,2,3") == [("b", 4, ()), ("c", 2, ())]
    assert filtered(include="a:0,1,2,3") == [("a", 4, ())]


@pytest.mark.parametrize("text", ["d", "a:4", "a:x", "a:", "a@a", "@", "-oProxyCommand=x", "a:-1", "a@b@c:9"])
def test_a_wrong_filter_is_refused(text: str) -> None:
    assert filter_hosts([SlotHost("a", 4), SlotHost("b", 4), SlotHost("c", 2)], include=text)[1] is not None


def test_filters_exclude_each_other_and_leave_something() -> None:
    hosts = [SlotHost("a", 1)]
    assert "both set" in str(filter_hosts(hosts, "a", "a")[1])
    assert "no host" in str(filter_hosts(hosts, exclude="a")[1])
