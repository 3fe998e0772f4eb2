"""The mark `torch`: a test that needs PyTorch, and with arguments further libraries, of which `hpc-launch` needs none.

`make check` leaves these tests out, so the mark must be there: a test that imports one of the libraries in this process
without it fails. One that imports it in a child process fails in an environment without the library, which is where
`make minimums` and the workflow's check run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

LIBRARIES = frozenset(
    "accelerate deepspeed flag_scale lightning nvidia_resiliency_ext ray tensorboard torch transformers wandb".split()
)


def _imported() -> frozenset[str]:
    return LIBRARIES & sys.modules.keys()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose libraries are not installed."""
    missing = {name for name in LIBRARIES if importlib.util.find_spec(name) is None}
    for item in items:
        needed = {name for mark in item.iter_markers("torch") for name in ("torch", *mark.args)}
        if unknown := needed - LIBRARIES:
            raise pytest.UsageError(f"{item.nodeid}: mark `torch` with an unknown library: {', '.join(unknown)}")
        if absent := needed & missing:
            names = ", ".join(sorted(absent))
            item.add_marker(pytest.mark.skip(reason=f"{names} not installed: pip install -e '.[train,libraries]'"))


_importers: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Note a test module that imports a library; a plugin of pytest may import one at any other time."""
    before = _imported()
    report = yield
    if found := _imported() - before:
        _importers.append(f"{collector.nodeid} imports {', '.join(sorted(found))}")
    return report


def pytest_collection_finish() -> None:
    """Collecting imports every test module, in `make check` too."""
    if _importers:
        raise pytest.UsageError(f"{'; '.join(_importers)}: import it inside a test marked `torch`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test without the mark that imports a library."""
    before = _imported()
    yield
    found = _imported() - before
    if found and item.get_closest_marker("torch") is None:
        pytest.fail(f"this test imports {', '.join(found)}; mark it with @pytest.mark.torch", pytrace=False)
