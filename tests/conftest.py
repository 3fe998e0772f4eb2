"""Fixtures and options for every test; those of the Slurm cluster are in `tests.cluster.plugin`."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = ["tests.cluster.plugin", "tests.libraries"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files")


def pytest_configure() -> None:
    """Let the programs under test hear Ctrl-C where this process was told to ignore it (`nohup`, `make test &`).

    An ignored signal stays ignored across exec; a handled one goes back to its default.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
