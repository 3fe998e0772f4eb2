"""Fixtures that every test may ask for; those of the Slurm cluster are in `tests.cluster.plugin`."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.cluster.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
