"""Names of files that are no code, and of files that may hold secrets: neither is copied.

Self-contained: standard library of Python 3.6 or later.
"""

from fnmatch import fnmatchcase

SKIPPED = ("__pycache__", ".git", ".hg", ".svn", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")
PRIVATE = tuple(
    ".env .env.* *.env .envrc *.pem *.key *.p12 *.pfx *.jks *.keytab *.kdbx *.gpg *.asc secret secret.* secrets "
    "secrets.* *.secret *.secrets .netrc _netrc .pgpass .my.cnf .git-credentials .pypirc .npmrc .s3cfg .boto .htpasswd "
    "credential* .credential* token token.* *.token *_token api_key* *apikey* id_* *.ppk known_hosts authorized_keys "
    "kaggle.json service-account*.json service_account*.json kubeconfig* .ssh .aws .azure .gcloud .gnupg .kube .docker "
    ".huggingface .config".split()
)
"""In any case of letters, except Python files."""


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is no code."""
    return any(fnmatchcase(name, pattern) for pattern in SKIPPED)


def is_private(name: str) -> bool:
    """Whether a file or folder of this name may hold secrets."""
    name = name.lower()
    return not name.endswith(".py") and any(fnmatchcase(name, pattern) for pattern in PRIVATE)
