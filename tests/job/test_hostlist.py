"""Host lists, also against Slurm's own reading; host files in DeepSpeed's format, and DeepSpeed's filters."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_launch.job.hostlist import MAX_HOSTS, SlotHost, compress, expand, filter_hosts, host_key, read_hostfile

EXPANDED = [
    ("", []),
    ("login1", ["login1"]),
    ("n[1-3]", ["n1", "n2", "n3"]),
    ("n[1-2,07-09],login1", ["n1", "n2", "n07", "n08", "n09", "login1"]),
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("n[1-03]", ["n1", "n2", "n3"]),
    ("n[98-101]", ["n98", "n99", "n100", "n101"]),
    ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
    ("[1-2]", ["1", "2"]),
    ("a, b,,c\n", ["a", "b", "c"]),
    ("n[1,1-2],n1", ["n1", "n1", "n2", "n1"]),
]
BEYOND_SLURM = ("n[1-2].cluster", ["n1.cluster", "n2.cluster"])


@pytest.mark.parametrize(("text", "hosts"), [*EXPANDED, BEYOND_SLURM])
def test_expand(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1",
        "n1]",
        "n[[1-2]]",
        "n[]",
        "n[1,]",
        "n[4-1]",
        "n[a-b]",
        "n[1-2-3]",
        "n[1-9:2]",
        "n;rm",
        "$(x)",
        "n[1-2",
        "n[-1]",
    ],
)
def test_what_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|number|range"):
        expand(text)


@pytest.mark.parametrize(
    "text", ["n[1-100001]", "n[0-999999999999999999]", "n[1-1000]m[1-1000]", "n[1-60000],m[1-60000]"]
)
def test_too_many_are_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100,000"):
        expand(text)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n10", "n2", "n1", "n2"], "n[1-2,10]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n9"], "n[9,09]"),
        (["b1", "a1", "a"], "a,a1,b1"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["r10n1", "r2n1"], "r2n1,r10n1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["n1", "n3"], "n[1,3]"),
    ],
)
def test_compress(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


@pytest.mark.parametrize("host", ["", "a b", "n[1]", "a,b", "n;rm", "né"])
def test_what_is_no_name_is_not_written(host: str) -> None:
    with pytest.raises(ValueError, match="not a valid host name"):
        compress([host])


def test_a_long_list_is_quick() -> None:
    text = f"n[1-{MAX_HOSTS}]"
    assert compress(reversed(expand(text))) == text


_numbers = (
    st.integers(0, 120).map(str) | st.integers(0, 120).map("{:03}".format) | st.from_regex("[0-9]{1,4}", fullmatch=True)
)
_prefixes = st.sampled_from(["n", "m", "rack1n", "rack10n", "a-", ""])
_hosts = st.lists(st.builds("{}{}".format, _prefixes, _numbers) | st.from_regex("[a-z][a-z0-9.-]{0,5}", fullmatch=True))


@given(_hosts)
def test_what_was_compressed_expands_to_each_name_once_in_order(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == sorted(set(hosts), key=host_key)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which scontrol works without any cluster."""
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=localhost\n")
    return {**os.environ, "SLURM_CONF": str(conf)}


def _hostnames(text: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env=environment,
        check=True,
        text=True,
        capture_output=True,
        timeout=180,
    )
    return done.stdout.split()


@pytest.mark.parametrize("text", [text for text, _ in EXPANDED if text] + ["n[098-101]", "a[1-2][3-4]"])
def test_scontrol_expands_alike(text: str, slurm: dict[str, str]) -> None:
    assert expand(text) == _hostnames(text, slurm)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hosts=_hosts.filter(bool))
def test_scontrol_reads_what_was_compressed(hosts: list[str], slurm: dict[str, str]) -> None:
    assert sorted(_hostnames(compress(hosts), slurm)) == sorted(set(hosts))


# Host files

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


def test_slots_may_be_omitted_where_they_are_to_be_learned() -> None:
    hosts, findings = read_hostfile("n[1-2] type=A800\nn3 slots=4\n", "f", slots_required=False)
    assert (hosts, findings) == ((SlotHost("n1", 0), SlotHost("n2", 0), SlotHost("n3", 4)), [])


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
