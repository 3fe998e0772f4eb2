"""The fixtures of the sites' tests: profiles in a folder, and jobs on them."""

from __future__ import annotations

from tests.sites.conftest import plan, refused, user, write

__all__ = ["plan", "refused", "user", "write"]
