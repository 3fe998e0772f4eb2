"""Log files of anybody's job, as evidence: no run folder, no scheduler, only what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hpc_launch.recover.diagnose import diagnose
from hpc_launch.recover.diagnosis import Diagnosis
from hpc_launch.recover.evidence import Evidence, LogScan
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.recover.scan_log import LogScanner, scan
from hpc_launch.run.diagnosis.artifacts import CHUNK, read_chunks

STDIN = "-"


def diagnose_files(names: Sequence[str], rules: Rulebook, stdin: BinaryIO) -> Diagnosis:
    """What ended the job that wrote these files; `-` is `stdin`. Raises OSError for one that cannot be read."""
    scans = [_scanned(name, number, rules, stdin) for number, name in enumerate(names)]
    return diagnose(Evidence(logs=tuple(scans)), rules)


def _scanned(name: str, number: int, rules: Rulebook, stdin: BinaryIO) -> LogScan:
    if name == STDIN:
        return scan(rules, "stdin", iter(lambda: stdin.read(CHUNK), b""), source=number)
    try:
        return read_chunks(Path(name), LogScanner(rules, name, source=number), wait=True)
    except OSError as error:
        # Of a read that failed, unlike of an open, Python does not say the file.
        raise OSError(error.errno, error.strerror, name) from error
