"""Fixtures and options for every test; those of the Slurm cluster are in `tests.cluster.plugin`."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.cluster.plugin", "tests.libraries"]

# How long an example takes says something of the machine's load only.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any load"), max_examples=15)
settings.load_profile("any load")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files")


_home = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this process a home of its own, and let the programs under test be interrupted."""
    for name in list(os.environ):
        if name.startswith(("XDG_", "HPC_LAUNCH_")) and not name.startswith("HPC_LAUNCH_TEST_"):
            del os.environ[name]
    config.stash[_home] = Path(tempfile.mkdtemp(prefix="hpcl-home-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    os.environ["HOME"] = str(config.stash[_home])
    _receive_signals()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove that home."""
    shutil.rmtree(config.stash[_home], ignore_errors=True)


def _receive_signals() -> None:
    """Let the programs under test receive the signals that `nohup` and `make test &` make this process ignore.

    An ignored signal stays ignored across exec; a handled one is reset to its default.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


@pytest.fixture
def kept_environment() -> Iterator[None]:
    """For a test that changes this process's environment as it goes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def pytest_collection_finish() -> None:
    """Keep what collection made out of every later garbage collection."""
    gc.collect()
    gc.freeze()
