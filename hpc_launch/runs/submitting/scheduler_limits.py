"""Submissions that the scheduler refuses because of a limit, which may have room later."""

from __future__ import annotations

import re

LIMIT = re.compile(r"limit|policy", re.IGNORECASE)
"""Found in the reason of such a refusal."""

RETRY_S = 300.0
"""How long drivers wait after one."""
