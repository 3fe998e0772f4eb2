"""Fixtures and options for every test; those of the Slurm cluster are in `tests.cluster.plugin`."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import settings

pytest_plugins = ["tests.cluster.plugin", "tests.libraries"]

# How long an example takes says something of the machine's load only.
settings.register_profile("any load", deadline=None)
settings.register_profile("quick", settings.get_profile("any load"), max_examples=15)
settings.load_profile("any load")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files")


def pytest_configure() -> None:
    """Let the programs under test receive the signals that `nohup` and `make test &` make this process ignore.

    An ignored signal stays ignored across exec; a handled one is reset to its default.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def pytest_collection_finish() -> None:
    """Keep what collection made out of every later garbage collection."""
    gc.collect()
    gc.freeze()
