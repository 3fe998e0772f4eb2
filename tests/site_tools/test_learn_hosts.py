"""Drafting a profile from the answers of hosts without a scheduler, whatever they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.job.hostlist import SlotHost
from hpc_launch.schedulers.ssh.ssh_hosts import one_machine
from hpc_launch.site_tools.draft_profile import LearnContext, ProfileDraft
from hpc_launch.site_tools.host_facts import HostFacts, common_network, differences, read_facts
from hpc_launch.site_tools.learn_hosts import PROGRAM, draft_hosts, learn_hosts
from tests.site_tools.drafted import profile

ALICE = LearnContext("alice", frozenset(), "laptop", "2026-11-23")
LISTED = (SlotHost("gpu1", 0), SlotHost("gpu2", 8), SlotHost("gpu3", 0), SlotHost("gpu4", 8))


def answer(number: int, gpus: int = 8) -> dict[str, Any]:
    gpu = {"vendor": "nvidia", "model": "NVIDIA H100 80GB HBM3", "memory": 81559, "driver": "550.54.15"}
    interfaces = [
        {"name": "eno1", "address": f"192.168.0.{number}", "prefix": 24, "speed": 1000},
        {"name": "docker0", "address": "172.17.0.1", "prefix": 16, "speed": 200000},
        {"name": f"ens{number}f0", "address": f"10.0.0.{number}", "prefix": 24, "speed": 100000},
    ]
    python = {"version": "3.11.7", "torch": "2.13.0"}
    facts = {"cpus": 128, "threads_per_core": 2, "memory": 2_000_000 - number, "arch": "x86_64", "gpus": [gpu] * gpus}
    software = {"python": python, "launcher_python": python, "pdsh": "ssh", "runtimes": ["apptainer"]}
    return {**facts, **software, "interfaces": interfaces, "folders": ["/home/alice"]}


def facts(number: int, gpus: int = 8, **more: Any) -> HostFacts:
    return read_facts(json.dumps({**answer(number, gpus), **more}))


def draft(
    hosts: dict[str, HostFacts],
    folders: dict[str, tuple[str, ...]],
    fault: str = "no answer",
    runs: str = "/home/alice",
) -> ProfileDraft:
    return draft_hosts("lab", LISTED, hosts, {"gpu4": fault}, folders, runs, ALICE)


HOSTS = {"gpu1": facts(1), "gpu2": facts(2, python={"version": "3.11.7", "torch": "2.12.0"}), "gpu3": facts(3, 4)}
SHARED: dict[str, tuple[str, ...]] = {"/home/alice": ("gpu1", "gpu2", "gpu3")}


def test_uneven_hosts_become_a_profile(tmp_path: Path) -> None:
    site = profile(draft(HOSTS, SHARED), tmp_path)
    assert site.scheduler.type == "ssh"
    assert [(name, host.slots) for name, host in site.scheduler.hosts.items()] == [
        ("gpu1", 8),
        ("gpu2", 8),
        ("gpu3", 4),
    ]
    assert [host.address for host in site.scheduler.hosts.values()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [host.interface for host in site.scheduler.hosts.values()] == ["ens1f0", "ens2f0", "ens3f0"]
    node = site.node_classes["host"]
    assert (node.gpus, node.gpu_type, node.gpu_vendor, node.gpu_memory) == (8, "h100", "nvidia", 81559)
    assert (node.cpus, node.memory, node.arch) == (128, 1_999_997, "x86_64")
    assert site.containers.runtime == "apptainer"
    assert site.unknown == ["gpu4: left out, no answer"]
    assert "run_dir" not in site.defaults


def test_each_fact_has_its_source() -> None:
    text = draft(HOSTS, SHARED).text()
    assert "# slots: its GPUs; 8 x NVIDIA H100 80GB HBM3, driver 550.54.15; 128 CPUs" in text
    assert "# slots: the host file; 8 x" in text
    assert "10.0.0.0/24, 100000 Mb/s: the fastest network that all hosts are in" in text
    assert "# The hosts differ in PyTorch of python3: 2.13.0 on gpu[1,3]; 2.12.0 on gpu2." in text


def test_what_differs_is_listed_with_its_hosts() -> None:
    other = {"/home/alice": ("gpu1", "gpu3"), "/data": ("gpu1", "gpu2", "gpu3"), "/tmp": ("gpu1",)}
    found = {one.fact: one.values for one in differences(HOSTS, other)}
    assert found == {
        "GPUs": {"8": ["gpu1", "gpu2"], "4": ["gpu3"]},
        "PyTorch of python3": {"2.13.0": ["gpu1", "gpu3"], "2.12.0": ["gpu2"]},
        "folder /home/alice": {"shared": ["gpu1", "gpu3"], "not shared": ["gpu2"]},
    }


def test_the_runs_are_where_all_hosts_see_them(tmp_path: Path) -> None:
    folders = {"/home/alice": ("gpu1",), "/data": ("gpu1", "gpu2", "gpu3")}
    site = profile(draft(HOSTS, folders), tmp_path)
    assert site.defaults == {"run_dir": "/data/${user}/hpc-launch/runs"}
    assert site.scheduler.shared_folders == ["/data"]
    assert profile(draft(HOSTS, SHARED), tmp_path).scheduler.shared_folders is True
    assert profile(draft(HOSTS, {"/home/alice": ("gpu1",)}), tmp_path).scheduler.shared_folders is False


def test_a_home_that_is_not_shared_is_noted_beside_runs_that_are(tmp_path: Path) -> None:
    folders = {"/home/alice": ("gpu1", "gpu2"), "/data/alice": ("gpu1", "gpu2", "gpu3")}
    made = draft(HOSTS, folders, runs="/data/alice")
    site = profile(made, tmp_path)
    assert (site.scheduler.shared_folders, "run_dir" in site.defaults) == (["/data/alice"], False)
    assert re.search(r"shared_folders: .*# /home/alice is another folder on each host", made.text())
    folders.pop("/home/alice")  # nothing can be written there
    assert profile(draft(HOSTS, folders, runs="/data/alice"), tmp_path).scheduler.shared_folders is True


def test_a_network_that_is_another_one_on_each_host_is_not_used() -> None:
    docker = {"name": "docker0", "address": "172.17.0.1", "prefix": 16, "speed": 200000}
    alone = {"name": "eno1", "address": "192.168.7.7", "prefix": 24, "speed": 1000}
    assert not common_network({"gpu1": facts(1, interfaces=[docker]), "gpu2": facts(2, interfaces=[docker, alone])})


HOSTILE = [
    "x\n  defaults: {run_dir: /tmp/evil}\n#",
    "\x1b]0;title\x07\x1b[2J",
    "${env.SECRET} ${param.X",
    "'\"}]: &a *a !!python/object:os.system",
    "\u202e\u2028\x85",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_fault_remains_text(text: str, tmp_path: Path) -> None:
    made = draft(HOSTS, {f"/data {text}": ("gpu1", "gpu2", "gpu3"), **SHARED}, fault=text)
    site = profile(made, tmp_path)
    assert len(site.unknown) == 1
    assert "run_dir" not in site.defaults
    assert made.text().isascii()
    assert re.fullmatch(r"[\n -~]*", made.text())
    assert set(yaml.safe_load(made.text())) == set(made.data)


@pytest.mark.parametrize(
    "more",
    [
        {"cpus": 10**30},
        {"cpus": "8"},
        {"memory": -1},
        {"pdsh": "\x1b[2J"},
        {"pdsh": "x\n"},
        {"pdsh": "x" * 101},
        {"runtimes": ["x"] * 17},
        {"gpus": [answer(1)["gpus"][0]] * 65},
        {"gpus": [{**answer(1)["gpus"][0], "vendor": "x: y"}]},
        {"interfaces": [{"name": "a b", "address": "10.0.0.1", "prefix": 24}]},
        {"interfaces": [{"name": "eth0\n", "address": "10.0.0.1", "prefix": 24}]},
        {"interfaces": [{"name": "eth0", "address": "-oProxyCommand=x", "prefix": 24}]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_an_answer_of_another_kind_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unexpected answer|Expected 4 octets"):
        read_facts(json.dumps({**answer(1), **more}))


LOSES = """\
#!/bin/bash
text=$(cat)
[[ ! $text =~ write.[0-9a-f]{16}. ]] || { bash -c "$text" >/dev/null; exit 255; }
exec bash -c "$text"
"""
"""An ssh to this machine. The connection breaks when the probe files were written."""


def test_a_probe_file_is_removed_though_the_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(LOSES)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("here\n")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home")
    found = learn_hosts(tmp_path / "hosts", "lab")
    assert str(tmp_path / "home") in found.hosts["here"].folders
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("text", ["", "null", "[]", '{"cpus": 1', "[" * 100_000])
def test_an_answer_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unexpected answer"):
        read_facts(text)


def test_the_program_on_the_host_reads_what_is_there(tmp_path: Path) -> None:
    programs = {
        "nvidia-smi": "printf 'NVIDIA A100-SXM4-40GB, 40960, 535.1\\nNVIDIA \\033[2J, [N/A], 535.1\\n'",
        "pdsh": "echo 'rcmd modules: ssh,rsh,exec (default: rsh)'",
        "apptainer": "true",
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "SCRATCH": "/a\x1bb"}
    words = [sys.executable, "-I", "-c", PROGRAM.read_text(), "describe", sys.executable]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
    found = read_facts(done.stdout)
    assert [(gpu.model, gpu.memory, gpu.driver) for gpu in found.gpus] == [
        ("NVIDIA A100-SXM4-40GB", 40960, "535.1"),
        ("NVIDIA ?[2J", 0, "535.1"),
    ]
    assert (found.pdsh, found.runtimes[0], found.folders[0]) == ("rsh", "apptainer", str(tmp_path))
    assert one_machine({"n1": found.machine, "10.77.0.1": found.machine, "n2": " net:[4]", "n3": " net:[4]"}) == {
        "10.77.0.1": "10.77.0.1 and n1 are two names of one machine"
    }
    assert found.launcher_python is not None
    assert found.launcher_python.version == sys.version.split()[0]
    assert "/a\x1bb" not in found.folders
    assert not found.faults
