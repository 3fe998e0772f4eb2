"""Which site this machine is of: the order of the ways to know, ambiguity, and what a broken profile does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused, Unreachable
from hpc_launch.sites.detect_profile import Detection, Machine, detect
from hpc_launch.sites.load_layers import read_sources, resolve

from .conftest import BODY, Write


def machine(
    environment: Mapping[str, str] | None = None,
    *hosts: str,
    cluster: str | None = None,
    files: tuple[str, ...] = (),
    slurm: bool = True,
) -> Machine:
    return Machine(environment or {}, hosts, files.__contains__, lambda: cluster, lambda: slurm)


def chosen(found: Detection) -> str | None:
    return found.chosen.name if found.chosen else None


def test_the_shipped_profiles_are_known_by_what_their_sites_set(write: Write) -> None:
    assert chosen(detect(machine({"SYSTEMNAME": "juwelsbooster"}))) == "juwels-booster"
    assert chosen(detect(machine({"CC_CLUSTER": "fir"}))) == "fir"
    assert chosen(detect(machine(None, "login05.frontier.olcf.ornl.gov"))) == "frontier"
    # A short name that many machines have needs a second thing that agrees.
    assert chosen(detect(machine(None, "uan01"))) is None
    assert chosen(detect(machine(None, "uan01", files=("/appl/local/laifs",)))) == "lumi-g"


def test_a_variable_counts_before_a_host_and_a_host_before_the_cluster(write: Write) -> None:
    write(
        first=f"name: first\ndetect: [{{env: {{OUR_SITE: 'o*'}}}}]{BODY}",
        second=f"name: second\ndetect:\n  - {{host: '*.example.org'}}{BODY}",
        third=f"name: third\ndetect: [{{cluster: beta}}]{BODY}",
    )
    at_all = machine({"OUR_SITE": "one"}, "login1.example.org", cluster="beta")
    assert chosen(detect(at_all)) == "first"
    assert chosen(detect(machine({"OUR_SITE": "x"}, "login1.example.org", cluster="beta"))) == "second"
    found = detect(machine(None, "login1", cluster="beta"))
    assert (chosen(found), found.cluster) == ("third", "beta")


def test_a_profile_of_the_user_goes_before_those_of_others(write: Write, tmp_path: Path) -> None:
    """A shared folder may get a profile that matches every machine."""
    write(theirs=f"name: theirs\ndetect: [{{env: {{HOME: '*'}}}}]{BODY}")
    mine = tmp_path / "config" / "hpc-launch" / "sites" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(f"name: mine\ndetect: [{{cluster: beta}}]{BODY}")
    assert chosen(detect(machine({"HOME": "/home/alice"}, cluster="beta"))) == "mine"
    assert chosen(detect(machine({"HOME": "/home/alice"}, cluster="gamma"))) == "theirs"


def test_slurm_is_asked_only_if_nothing_else_decides(write: Write) -> None:
    write(here=f"name: here\ndetect: [{{env: {{OUR_SITE: '*'}}}}, {{cluster: beta}}]{BODY}")

    def ask() -> str:
        raise AssertionError

    known = Machine({"OUR_SITE": "1"}, (), lambda _: False, ask, lambda: True)
    assert chosen(detect(known)) == "here"


def test_all_keys_of_a_probe_must_agree(write: Write) -> None:
    write(here=f"name: here\ndetect: [{{cluster: cluster, host: '*.example.org'}}]{BODY}")
    assert chosen(detect(machine(None, "login.example.org", cluster="cluster"))) == "here"
    assert chosen(detect(machine(None, "login.example.com", cluster="cluster"))) is None


def deaf(*hosts: str) -> Machine:
    """A machine whose controller does not answer."""

    def ask() -> str:
        raise Unreachable("scontrol: Unable to contact slurm controller (connect failure)")

    return Machine({}, hosts, lambda _: False, ask, lambda: True)


def test_a_controller_that_does_not_answer_is_named(write: Write) -> None:
    write(here=f"name: here\ndetect: [{{cluster: beta}}]{BODY}")
    found = detect(deaf("gate1"))
    assert found.chosen is None
    assert "the Slurm controller is unreachable: scontrol: Unable to contact" in found.message
    assert "--site NAME" in found.hint
    Path("job.yaml").write_text("name: x\ncommand: 'true'\n")
    with pytest.raises(Unreachable, match="controller is unreachable") as caught:
        resolve(read_sources(Path("job.yaml"), detect=lambda _: found))
    assert caught.value.exit_code == 4


def test_two_that_fit_are_named_and_none_is_taken(write: Write) -> None:
    write(one=f"name: one\ndetect: [{{cluster: beta}}]{BODY}", two=f"name: two\ndetect: [{{cluster: beta}}]{BODY}")
    found = detect(machine(cluster="beta"))
    assert found.chosen is None
    assert "one (Slurm cluster name beta); two (Slurm cluster name beta)" in found.message
    assert "select one with" in found.hint
    Path("job.yaml").write_text("name: x\ncommand: 'true'\n")
    with pytest.raises(Refused, match="HL300 no site specified, and several profiles match"):
        resolve(read_sources(Path("job.yaml"), detect=lambda _: found))


def test_a_namesake_further_down_is_known_by_its_own_probes(write: Write) -> None:
    write(fir=f"name: fir\nextends: fir\ntitle: ours{BODY}")
    found = detect(machine({"CC_CLUSTER": "fir"}))
    assert found.chosen is not None
    assert found.chosen.layer == "HPC_LAUNCH_SITE_PATH"


def test_a_broken_profile_is_named_and_stops_no_other(write: Write) -> None:
    write(bad="name: bad\ndetect: [{hots: x}]\n", worse="name: worse\ndetect: [{host: x]\n")
    found = detect(machine({"CC_CLUSTER": "fir"}))
    assert chosen(found) == "fir"
    assert {one.name for one in found.unread} == {"bad", "worse"}


def test_this_machine_is_the_site_only_where_there_is_no_slurm(write: Write) -> None:
    assert chosen(detect(machine(slurm=False))) == "local"
    assert chosen(detect(machine(slurm=True))) is None


def test_who_names_a_site_is_not_asked(write: Write) -> None:
    write(here=f"name: here{BODY}")
    Path("job.yaml").write_text("name: x\nsite: here\ncommand: 'true'\n")

    def never(_: Path) -> Detection:
        raise AssertionError

    loaded = resolve(read_sources(Path("job.yaml"), detect=never))
    assert (loaded.resolved.site.name, loaded.detected) == ("here", None)


def test_a_job_that_names_none_gets_the_detected_one(write: Write) -> None:
    write(here=f"name: here\ndetect: [{{cluster: beta}}]{BODY}")
    Path("job.yaml").write_text("name: x\ncommand: 'true'\n")
    loaded = resolve(read_sources(Path("job.yaml"), detect=lambda project: detect(machine(cluster="beta"), project)))
    assert (loaded.resolved.site.name, loaded.detected) == ("here", "Slurm cluster name beta")
