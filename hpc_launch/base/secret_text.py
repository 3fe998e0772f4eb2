"""What looks like a secret: names of variables and options, and the forms that services give their keys."""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"(^|[_.])(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)$")
"""Searched in the name of a variable."""
SECRET_OPTION = re.compile(
    r"(?i)(^|[-_])(api[-_]?key|(auth|access|hf|hub|api|github)[-_]?token|secret([-_]key)?|password|passwd)$"
)
"""Searched in the name of an argument. `pad_token` and `sort_key` are no secrets."""
SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-(?:proj|ant|svcacct|or)-[\w-]{16,}|sk-[A-Za-z0-9]{16,}|"
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|"
    r"(?<=://)[^\s/:@$]+:[^\s/@$]+(?=@(?!sha\d)))|-----BEGIN [A-Z ]*KEY"
)
"""What the services themselves mark as a key, a private key, and a password in a URL."""
