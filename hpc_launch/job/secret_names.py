"""Names of variables whose values are secret."""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
"""Searched in the name of a variable."""
