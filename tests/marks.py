"""Marks for the parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest


def prove(*values: Any, also: Any = None) -> Any:
    """Values with which only `make prove` runs a test, whose other values run in `make test`. `also`: another mark."""
    return pytest.param(*values, marks=[pytest.mark.prove, *([also] if also else [])])
