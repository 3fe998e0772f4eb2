"""Values of a site profile that decide which code a job runs or which secrets it gets. They require trust.

Everything is found in the parsed data, never by searching text: YAML has many spellings of one word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.document import KeyPath
from hpc_launch.spec.type_hints import fields_of, members


class CodeValue(Struct, frozen=True):
    """A value that requires trust: what it is, and its text."""

    path: KeyPath
    kind: str
    text: str


STEPS = {
    "raw": "raw shell line",
    "source": "file to source",
    "venv": "virtual environment",
    "module_use": "folder of modules",
    "copy": "file to copy",
}
"""Actions of a prelude step that require trust. A module file is a program, and a copy may replace a start-up file."""
ENVIRONMENT = {
    "source": "file to source",
    "conda": "Conda environment",
    "venv": "virtual environment",
    "python": "interpreter",
}
JOB_KEYS = {
    "script": "program", "module": "program", "command": "program", "args": "arguments of the program",
    "secrets": "names of secrets", "container": "image", "workdir": "working folder", "run_dir": "run folder",
    "code": "code folder", "strategy": "configuration of the training",
}  # fmt: skip
"""Keys of a job file that require trust in `defaults:`, besides `checkpoint`: loading a checkpoint may run code."""
CONTAINERS = {
    "images": "image",
    "binds": "folder to mount",
    "options": "option of the container runtime",
    "folder": "folder of images",
}
OPTIONS = frozenset(
    "wrap export export-file get-user-env chdir output error input bb bbf burst-buffer burst-buffer-file container "
    "environment environment-file image volume entrypoint uenv view prolog epilog task-prolog task-epilog multi-prog "
    "bcast send-libs preserve-env".split()
)
"""Options of sbatch and srun that run programs, change their environment, or write files."""

VARIABLES = frozenset(
    "ENV BASH_ENV BASHOPTS SHELLOPTS PS4 PROMPT_COMMAND IFS CDPATH GLOBIGNORE PATH HOME SHELL EDITOR VISUAL PAGER "
    "GCONV_PATH LOCPATH NLSPATH GLIBC_TUNABLES CC CXX NVCC CUDAHOSTCXX PERL5LIB PERL5OPT PERL5DB RUBYLIB RUBYOPT "
    "NODE_OPTIONS NODE_PATH JAVA_TOOL_OPTIONS _JAVA_OPTIONS CLASSPATH LUA_PATH LUA_CPATH LUA_INIT TCLLIBPATH "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES "
    "CUDA_INJECTION64_PATH HSA_TOOLS_LIB ROCP_TOOL_LIB NCCL_CONF_FILE FI_PROVIDER_PATH UCX_MODULE_DIR VIRTUAL_ENV "
    "TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR TORCH_HOME HF_HOME CUDA_CACHE_PATH NETRC "
    "AR AS LD CPP FC NVCC_CCBIN HIPCC CCACHE_PREFIX TRITON_CACHE_MANAGER".split()
)
"""Variables by which a program runs or loads other code, or trusts other servers."""
VARIABLE_PREFIXES = (
    "LD_", "BASH_FUNC_", "PYTHON", "CONDA_", "MODULE", "LMOD_", "XDG_", "GIT_", "SSH_", "SLURM_", "SRUN_", "SBATCH_",
    "PDSH_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "I_MPI_HYDRA_", "HYDRA_", "APPTAINER", "SINGULARITY", "PODMAN_",
    "CHARLIECLOUD_", "SHIFTER", "ENROOT_", "PIP_", "UV_", "HPC_LAUNCH_", "AWS_", "WANDB_", "PET_", "CMAKE_",
)  # fmt: skip
HARMLESS = frozenset(
    "PYTHONUNBUFFERED PYTHONNOUSERSITE PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONSAFEPATH "
    "SLURM_CPU_BIND SLURM_MPI_TYPE SLURM_NETWORK SRUN_CPUS_PER_TASK SLURM_CPUS_PER_TASK no_proxy NO_PROXY".split()
)
_NAMES_SERVER = re.compile(r"(URL|URI|ENDPOINT|SERVER|HOST|ADDR|ADDRESS|COMM_ID)(E?S)?$|PROXY$")
_OPTIONS_OF_PROGRAM = re.compile(r"(FLAGS|OPTIONS|OPTS)$")
"""make, tar, gcc and nvcc run other programs by their options: MAKEFLAGS=--eval=$(shell …) needs no path."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|COOKIE|AUTH|JWT|DSN|(^|_)PAT(_|$)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"(?<!\$)\$\{(?:env|shell)\.([^}]*)\}")
_NUMBER = re.compile(r"\$\{(?:job\.id|shell\.(?:SLURM_\w*ID|SLURM_N\w+|\w*RANK))\}")
"""Placeholders that stand for numbers."""
_DESCRIPTIVE = frozenset("facts fact published unknown about why note source as_of when".split())
"""Fields that a job never uses. (`source` is one in `prelude` and `environment`; a queue may have any such name.)"""


def values_requiring_trust(data: Mapping[str, Any]) -> Iterator[CodeValue]:
    """All such values of a profile, whose keys must be without operators and short forms."""
    yield from _walk(data, (), SiteProfile)


def _walk(value: Any, path: KeyPath, type_: Any) -> Iterator[CodeValue]:
    """`type_`: the type that the schema gives to the value; Any below keys of a job file."""
    kind = _kind(path, value) if path and value is not None else None
    if kind is not None:
        yield CodeValue(path, kind, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        return
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    wanted = type(value)
    member = next((one for one in members(type_) if one.kind is wanted or (wanted is dict and one.is_struct)), None)
    fields = fields_of(member.kind) if member is not None and member.is_struct else {}
    inner = member.args[-1] if member is not None and member.args else Any
    for key, child in children:
        in_step = "prelude" in path or "environment" in path
        if key not in fields or key not in _DESCRIPTIVE or (key == "source" and in_step):
            yield from _walk(child, (*path, key), fields[key].type if key in fields else inner)


def _kind(path: KeyPath, value: Any) -> str | None:
    """What a value is, if it requires trust."""
    key = path[-1]
    if isinstance(value, str) and any(_SECRET.search(name) for name in _PLACEHOLDER.findall(value)):
        return "value of a variable that may be secret"
    for at, name in enumerate(path[:-1]):
        if (kind := _below(str(name), path[at + 1 :], value)) is not None:
            return kind
    if path[0] == "caches" and len(path) == 2:
        return "folder of a cache, from which libraries load code"
    if path == ("bad_nodes", "file"):
        return "file whose lines everybody sees in the options of the job"
    if path[0] == "account" and "variables" in path and isinstance(value, str) and _SECRET.search(value):
        return "variable that may be secret"
    if key == "plugin" and "fabric" in path and _is_place(value):
        return "network plugin"
    if path == ("network", "master", "suffix") and "." in str(value):
        # torchrun unpickles what the server at this address sends.
        return "domain of the rendezvous"
    return None


def _below(name: str, rest: KeyPath, value: Any) -> str | None:
    """What a value is by the key `name` above it and the path from there."""
    if name == "prelude" and len(rest) > 1:
        action, inside = str(rest[1]), rest[2:]
        if not inside:
            return STEPS.get(action)
        if action in ("set", "prepend") and len(inside) == 1:
            return _variable(inside[0], value)
        return "module file" if action == "module_load" and _is_path(value) else None
    if name == "env":
        inside = rest[2:] if isinstance(rest[0], int) and rest[1:2] and rest[1] in ("set", "prepend") else rest
        return _variable(inside[0], value) if len(inside) == 1 and isinstance(inside[0], str) else None
    if name == "environment":
        return ENVIRONMENT.get(str(rest[0])) or ("module file" if rest[0] == "modules" and _is_path(value) else None)
    if name == "defaults":
        if rest[:2] == ("launcher", "options") and len(rest) == 3:
            return "option of the launcher"
        if rest[0] == "checkpoint":  # when to warn the training is harmless
            return "checkpoint folder" if rest[1:2] in (("dir",), ("resume",)) else None
        if rest[-1] == "set" and rest[0] in ("retry", "drill"):
            return "change of the job"
        return JOB_KEYS.get(str(rest[0]))
    if name == "internet":
        return "proxy, to which programs send keys and data" if rest == ("proxy",) else None
    if name == "containers":
        return CONTAINERS.get(str(rest[0])) or ("module file" if rest[0] == "modules" and _is_path(value) else None)
    if name in ("srun_options", "mpirun_options") and len(rest) == 1:
        return None if name == "srun_options" and _is_harmless_option(str(value)) else f"option of {name[:-8]}"
    if name in ("sbatch", "srun") and isinstance(value, str | int | float | bool):
        names = [str(rest[-1]), *([str(value)] if "rename" in rest else [])]
        described = {"require", "forbid", "since", "drop"} & set(map(str, rest))
        requires = any(map(_is_code_option, names)) or _names_file(str(value))
        return f"option --{names[-1]} of {name}" if not described and requires else None
    return None


def _variable(name: object, value: Any) -> str | None:
    name = str(name)
    if name in HARMLESS:
        return None
    if _NAMES_SERVER.search(name.upper()):
        return f"variable {name}, by which programs send keys and data to a server"
    # No list is complete: GCC_EXEC_PREFIX, OMP_TOOL_LIBRARIES, RDMAV_DRIVERS and CUDA_HOME all lead to code.
    listed = name in VARIABLES or name.startswith(VARIABLE_PREFIXES) or _OPTIONS_OF_PROGRAM.search(name)
    may_run = listed or _is_place(value) or any(mark in str(value) for mark in ("$(", "`", "|"))
    return f"variable {name}, by which programs may load code" if may_run else None


def _is_place(value: Any) -> bool:
    """Whether a text may be a path or an address."""
    text = _NUMBER.sub("", str(value))
    return "/" in text or "${" in text


def _is_path(value: Any) -> bool:
    """Whether a module is named by its file, or by a name that only the job knows."""
    text = str(value)
    return isinstance(value, str) and (text.startswith(("/", ".", "~")) or ".." in text or "${" in text)


def _is_code_option(name: str) -> bool:
    # getopt_long(3) accepts any abbreviation that is unique.
    return name.startswith("container-") or any(option.startswith(name) for option in OPTIONS)


def _names_file(text: str) -> bool:
    """Whether the value of an option is a path: a plug-in of the site may add an option that reads or writes it."""
    return text.startswith(("/", "./", "../", "~")) or (text.startswith("${") and "/" in text)


def _is_harmless_option(text: str) -> bool:
    """Whether a word is a long option of srun that does not run or write anything. Other words may be a program."""
    match = re.match(r"--([a-z][a-z0-9-]*)(?:=|\Z)", text)
    return match is not None and not _is_code_option(match[1]) and not _names_file(text[match.end() :])
