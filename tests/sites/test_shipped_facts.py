"""The facts of the shipped profiles, checked against each other where a rule can be written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.generate_sites import shipped_profiles
from docs.site_page import Shipped
from hpc_launch.sites.detect_profile import Machine, detect
from hpc_launch.sites.provenance import provenance
from hpc_launch.sites.queues import Queue

from .shipped import GOLDEN, known_surroundings, planned

__all__ = ["known_surroundings"]


@cache
def systems() -> dict[str, Shipped]:
    """Profiles of systems. A template has the limits of its user's own cluster."""
    return {one.profile.name: one for one in shipped_profiles() if one.profile.kind == "system"}


def queues() -> Iterator[tuple[str, Queue]]:
    for name, one in systems().items():
        for key, queue in one.profile.queues.items():
            yield f"{name} {key}", queue


def is_timed(queue: Queue) -> bool:
    return bool(queue.limits) and all(row.time is not None for row in queue.limits)


def is_limited(queue: Queue) -> bool:
    """Whether the site bounds the nodes of a job itself: by nodes, or by GPUs or node-minutes of a user or a job."""
    ranges = [row.gpus or row.nodes for row in queue.limits]
    closed = bool(ranges) and not any(text.endswith("-") for text in ranges)
    gpus = queue.gpus is not None and not queue.gpus.endswith("-")
    return closed or gpus or queue.gpus_per_user is not None or queue.node_minutes is not None


def test_a_queue_has_both_limits_or_names_the_page_that_was_read() -> None:
    silent = []
    for name, queue in queues():
        given = {"time": is_timed(queue), "nodes": is_limited(queue) or "no limit of" in queue.about}
        silent += [f"{name}: {key}" for key, known in given.items() if not known and key not in queue.unknown]
        silent += [f"{name}: {key} is known and unknown" for key in queue.unknown if given[key]]
        assert all("." in page for page in queue.unknown.values()), f"{name}: names no page"
    assert silent == []


def test_nine_of_ten_queues_have_a_limit_of_time_and_a_bound_of_nodes() -> None:
    """A job of any size is checked there before it is submitted."""
    every = dict(queues())
    both = [name for name, queue in every.items() if is_timed(queue) and (is_limited(queue) or queue.size is not None)]
    assert len(both) >= 0.9 * len(every), sorted(every.keys() - set(both))


def test_the_size_of_a_queue_is_not_stated_as_its_limit() -> None:
    both = [
        name
        for name, queue in queues()
        if queue.size and any(row.nodes.endswith(f"-{queue.size}") for row in queue.limits)
    ]
    assert both == []


def test_a_system_is_not_detected_by_a_name_that_others_may_have() -> None:
    """A host name has a domain or the system's name in it, or something else must agree."""
    loose = [
        f"{name}: {rule.host}"
        for name, one in systems().items()
        for rule in one.profile.detect
        if rule.host and not (rule.env or rule.path or rule.cluster)
        if "." not in rule.host and re.split("[-0-9]", name)[0] not in rule.host
    ]
    assert loose == []


def test_no_shipped_profile_asks_slurm_s_controller_for_its_name() -> None:
    """One rule would let the detection wait for the controller on every system."""
    rules = {name: one.profile.detect for name, one in systems().items()}
    assert [name for name, its in rules.items() if any(rule.cluster for rule in its)] == []


LOGIN_NODES = {
    "access1.iris-cluster.uni.lux": "iris",
    "berzelius1.nsc.liu.se": "berzelius",
    "br012.ib.bridges2.psc.edu": "bridges-2",
    "dt-login03.delta.ncsa.illinois.edu": "delta",
    "gh-login01.delta.ncsa.illinois.edu": "deltaai",
    "kl2.hsn.cm.kestrel.hpc.nlr.gov": "kestrel",
    "kl5.hpc.nlr.gov": "kestrel",
    "login01.expanse.sdsc.edu": "expanse",
    "login01.leonardo.local": "leonardo",
    "login23-g-1.hpc.itc.rwth-aachen.de": "claix-2023",
    "login05.frontier.olcf.ornl.gov": "frontier",
    "login1.ls6.tacc.utexas.edu": "lonestar6",
    "login1.stampede3.tacc.utexas.edu": "stampede3",
    "login1.vista.tacc.utexas.edu": "vista",
    "login-1.saga.sigma2.no": "saga",
    "vglogin0007.vega.izum.si": "vega",
}


@pytest.mark.parametrize(("host", "site"), LOGIN_NODES.items())
def test_a_login_node_is_known_by_the_name_of_the_machine(host: str, site: str) -> None:
    found = detect(Machine({}, (host,), lambda _: False, lambda: None, lambda: True))
    assert found.chosen is not None, found
    assert found.chosen.name == site


def test_a_job_that_demands_a_network_plugin_loads_it_or_is_told_what_does() -> None:
    without = []
    for name in systems():
        script = (GOLDEN / name / "torchrun.sh").read_text("utf-8")
        demanded = re.search(r"export NCCL_NET=(?!IB\b|Socket\b)", script)
        if demanded and "module load" not in script:
            _, findings = planned(name, "launcher=torchrun")
            without += [name] if not any("network plugin" in one.message for one in findings) else []
    assert without == []


def test_time_outs_of_infiniband_are_in_nccl_s_range() -> None:
    """Source: NVIDIA/nccl docs/userguide/source/env.rst, by which a time-out of 0 or above 31 never ends."""
    accepted = {"NCCL_IB_TIMEOUT": range(1, 32), "NCCL_IB_RETRY_CNT": range(8)}
    layers = {layer.path: Path(layer.path).read_text("utf-8") for one in systems().values() for layer in one.layers}
    outside = [
        f"{path}: {name}={value}"
        for path, text in layers.items()
        for name, value in re.findall(r"(NCCL_IB_TIMEOUT|NCCL_IB_RETRY_CNT): (\d+)", text)
        if int(value) not in accepted[name]
    ]
    assert outside == []


def test_a_default_job_stops_for_a_module_of_a_release_only_if_the_centre_names_it() -> None:
    guessed = []
    for name, one in systems().items():
        site = one.profile
        queue = site.queues[site.default_queue or next(iter(site.queues))]
        stack = queue.stack or site.node_classes[queue.node_class].stack
        pinned = stack and any(re.search(r"/\d", module) for module in site.stacks[stack].environment.modules)
        places = {str(layer.path): layer for layer in one.layers}
        if stack and pinned and (place := one.merged.origin("stacks", stack).place):
            grade = provenance(places[place.file].document).fact(("stacks", stack)).grade
            guessed += [f"{name}: {stack}"] if grade not in ("A", "B") else []
    assert guessed == []


def test_a_profile_overrides_a_variable_of_its_base_on_a_source_as_good_as_the_bases() -> None:
    """Or it says why. A value that repeats the base's is none."""
    weak = []
    for name, one in systems().items():
        before: dict[str, tuple[object, str]] = {}
        for layer in one.layers:
            known, here = provenance(layer.document), {}
            for at, setting in enumerate(layer.document.data.get("env") or []):
                given = [*(setting.get("set") or {}).items(), *((key, None) for key in setting.get("drop") or [])]
                for key, value in given:
                    fact = known.fact(("env", at))
                    here[key] = (value, fact.grade or "C")
                    old, grade = before.get(key, (value, "C"))
                    if key in before and not setting.get("why") and (old == value or here[key][1] > grade):
                        weak.append(f"{name}: {key}")
            before |= here
    assert weak == []


def test_an_image_of_a_site_has_a_version() -> None:
    """What `latest` names can change between two attempts of a run."""
    images = [image.path for one in shipped_profiles() for image in one.profile.containers.images.values()]
    assert len(images) >= 5
    assert [path for path in images if "latest" in path or not re.search(r"\d{2}\.\d{2}|\d{8}", path)] == []


def test_a_node_class_has_its_own_network_where_its_description_names_another() -> None:
    """Omni-Path and Slingshot are not InfiniBand: a class inherits the site's network unless it has one."""
    words = {"Omni-Path": "omni-path", "Slingshot": "slingshot", "HDR": "infiniband", "NDR": "infiniband"}
    wrong = []
    for name, one in systems().items():
        for key, node in one.profile.node_classes.items():
            kind = node.fabric.kind or one.profile.fabric.kind
            wrong += [f"{name} {key}" for word, its in words.items() if word in node.about and kind != its]
    assert wrong == []
