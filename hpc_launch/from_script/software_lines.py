"""Lines that set up software: modules, files to source, conda and virtual environments."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.old_job import OldJob
from hpc_launch.from_script.values import Word

if TYPE_CHECKING:
    from collections.abc import Iterable

_MODULE_PRINTS = frozenset("list avail av spider show display whatis keyword help info-all savelist".split())
_MODULE_INIT = re.compile(r"(/etc/profile|/lmod/|/modules/|modules?\.sh|/init/(ba)?sh\Z|/etc/bashrc|z00_lmod)")


def module(job: OldJob, words: Sequence[Word], lines: Iterable[int], ledger: Ledger) -> None:
    """`module …` and Lmod's `ml …`."""
    short = words[0].text == "ml"
    rest = [word for word in words[1:] if not word.text.startswith("--")]
    force = len(rest) < len(words) - 1
    verb = rest[0].text if rest else "list"
    names = [word.text for word in rest[1:]]
    if short and verb not in {"load", "unload", "purge", "use", "swap", "list", "av", "avail", "restore", "reset"}:
        verb, names = "load", [word.text for word in rest]
    if any(not word.value.known for word in rest):
        ledger.not_understood(lines, "a module whose name is known only in the job")
    elif verb in {"load", "add", "try-load", "switch", "swap"}:
        if verb in {"switch", "swap"} and len(names) == 2:
            job.module_unload.append(names[0])
            names = names[1:]
            ledger.taken(lines, "site: prelude")
        minus = [name[1:] for name in names if name.startswith("-")]
        job.module_unload += minus
        loaded = [name for name in names if not name.startswith("-")]
        job.modules += loaded
        ledger.taken(lines, *(["environment.modules"] if loaded else []), *(["site: prelude"] if minus else []))
    elif verb in {"unload", "rm", "del"}:
        job.module_unload += names
        job.modules = [name for name in job.modules if name not in names]
        ledger.taken(lines, "site: prelude")
    elif verb in {"purge", "reset"}:
        job.purge = "reset" if verb == "reset" else "force-purge" if force else "purge"
        job.modules.clear()
        ledger.taken(lines, "site: prelude")
    elif verb == "use":
        job.module_use += [name for name in names if not name.startswith("-")]
        ledger.taken(lines, "site: prelude")
    elif verb in _MODULE_PRINTS:
        ledger.unnecessary(lines, "prints only")
    else:
        ledger.not_understood(lines, f"`module {verb}`: list the modules that it loads")


def source(job: OldJob, words: Sequence[Word], lines: Iterable[int], ledger: Ledger, *, exports: bool) -> None:
    """`source FILE` and `. FILE`."""
    if len(words) < 2:
        ledger.not_understood(lines, "sources nothing")
        return
    path = words[1].text
    if not words[1].value.known:
        ledger.not_understood(lines, "a file whose name is known only in the job")
    elif os.path.basename(path) == "activate" and len(words) > 2:
        job.conda = words[2].text
        ledger.taken(lines, "environment.conda")
    elif path == "activate":
        ledger.not_understood(lines, "activates no environment")
    elif path.endswith("/bin/activate"):
        job.venv = path[: -len("/bin/activate")]
        ledger.taken(lines, "environment.venv")
    elif re.search(r"/\.?(bashrc|bash_profile|profile|zshrc)\Z", path):
        ledger.unnecessary(lines, "the job sets up its own environment: name in `environment.source` what it needs")
    elif path.startswith(("/etc/", "/usr/share/", "/opt/cray", "/opt/lmod")) and _MODULE_INIT.search(path):
        ledger.unnecessary(lines, "the job's shell has the module command; if not, the site profile sources this file")
    elif exports:
        ledger.not_understood(lines, "`set -a` exports the file's variables: put `set -a` into the file, or use `env:`")
        job.sources.append(path)
    else:
        job.sources.append(path)
        ledger.taken(lines, "environment.source")


def conda(job: OldJob, words: Sequence[Word], lines: Iterable[int], ledger: Ledger) -> None:
    """`conda activate NAME`, and the same of mamba."""
    texts = [word.text for word in words]
    if texts[1:2] == ["activate"] and len(texts) > 2 and words[-1].value.known:
        job.conda = texts[-1]
        ledger.taken(lines, "environment.conda")
    elif texts[1:2] in (["activate"], ["init"], ["deactivate"], ["list"], ["info"], ["env"]):
        ledger.unnecessary(lines, "the job activates its own environment")
    else:
        ledger.not_understood(lines, f"`{texts[0]}`: run it once before submitting")
