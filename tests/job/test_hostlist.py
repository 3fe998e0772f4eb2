"""Host lists, also against Slurm's own reading."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_launch.job.hostlist import MAX_HOSTS, compress, expand, host_key


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
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
        ("n[1-2].cluster", ["n1.cluster", "n2.cluster"]),
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        "n[1-4,07-09],login1,rack[1-2]n[01-03]",
        "n[1-03]",
        "n[08-11]",
        "n[098-101]",
        "n[1,1-2],n1",
        "a, b,,c",
        "a[1-2][3-4]",
    ],
)
def test_scontrol_expands_alike(text: str, slurm: dict[str, str]) -> None:
    assert expand(text) == _hostnames(text, slurm)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hosts=_hosts.filter(bool))
def test_scontrol_reads_what_was_compressed(hosts: list[str], slurm: dict[str, str]) -> None:
    assert sorted(_hostnames(compress(hosts), slurm)) == sorted(set(hosts))
