"""The mark `torch`: a test that needs PyTorch, and with arguments further libraries, of which `hpc-launch` needs none.

`make check` leaves these tests out, so the mark must be there: a test that imports one of the libraries in this process
without it fails. One that imports it in a child process fails in an environment without the library, which is where
`make minimums` and the workflow's check run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

LIBRARIES = frozenset({"accelerate", "deepspeed", "lightning", "nvidia_resiliency_ext", "torch", "transformers"})


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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collecting imports every test module, in `make check` too."""
    if found := _imported():
        raise pytest.UsageError(f"a test module imports {', '.join(found)}; import it inside a test marked `torch`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test without the mark that imports a library."""
    before = _imported()
    yield
    found = _imported() - before
    if found and item.get_closest_marker("torch") is None:
        pytest.fail(f"this test imports {', '.join(found)}; mark it with @pytest.mark.torch", pytrace=False)
