"""diagnosis.json: the diagnosis of an attempt whose final state is known, kept so that it is made only once."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from hpc_launch import __version__
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.diagnose.diagnosis import Diagnosis
from hpc_launch.runs.layout import AttemptFolder


class DiagnosisRecord(Struct, frozen=True, kw_only=True):
    """A diagnosis and the release of hpc-launch that made it."""

    version: str
    diagnosis: Diagnosis


def kept_diagnosis(attempt: AttemptFolder) -> Diagnosis | None:
    """The diagnosis on record; None where there is none, or where another release made it."""
    record = read_record(attempt.diagnosis, DiagnosisRecord)
    return record.diagnosis if record is not None and record.version == __version__ else None


def keep_diagnosis(attempt: AttemptFolder, diagnosis: Diagnosis) -> None:
    """Write diagnosis.json. In a run of another user, and on a failed write, the diagnosis is made again later."""
    with suppress(OSError):
        write_record(attempt.diagnosis, DiagnosisRecord(version=__version__, diagnosis=diagnosis))
