"""The status of a finished run as kept in the index: bytes, without what only `status RUN` shows."""

from __future__ import annotations

import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from hpc_launch.runs.status.run_status import AttemptStatus, Progress, RunStatus
from hpc_launch.runs.status.startup_summary import Startup


class FinalStatus(msgspec.Struct, frozen=True, array_like=True):
    """The status of a finished run, once as JSON has it and once as the views need it."""

    as_of: float | None
    """When the source said so, in seconds since the epoch."""
    json: dict[str, Any]
    """The object of `list --json`, without the age."""
    whole: bytes
    """RunStatus with its last attempt, packed: unpacking it takes longer than all the rest."""

    def age_s(self, now: float) -> float | None:
        """How old the source's answer is."""
        return None if self.as_of is None else max(0.0, now - self.as_of)

    def as_json(self, now: float) -> dict[str, Any]:
        """The object of `list --json`."""
        return self.json | {"state_age_s": self.age_s(now)}

    def status(self, now: float) -> RunStatus:
        """The status for a view."""
        return replace(_WHOLE.decode(zlib.decompress(self.whole)), age_s=self.age_s(now))


def encode_final(status: RunStatus, now: float) -> bytes:
    """The status of a finished run as bytes."""
    attempts = tuple(replace(attempt, evidence=()) for attempt in status.attempts[-1:])
    whole = _ENCODER.encode(replace(status, attempts=attempts, age_s=None, final_stamp=None))
    as_of = None if status.age_s is None else now - status.age_s
    return _ENCODER.encode(FinalStatus(as_of, status.as_json(attempts=False), zlib.compress(whole, 1)))


def decode_final(data: bytes) -> FinalStatus:
    """The status from these bytes."""
    return _DECODER.decode(data)


def _path_out(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _path_in(kind: type, value: Any) -> Any:
    return kind(value)


_KINDS = (RunStatus, AttemptStatus, Progress, Startup)

LAYOUT = zlib.crc32(repr([(one.name, one.type) for kind in _KINDS for one in fields(kind)]).encode())
"""Changes with the fields of these types: then the bytes cannot be decoded any more."""

_ENCODER = msgspec.msgpack.Encoder(enc_hook=_path_out)
_DECODER = msgspec.msgpack.Decoder(FinalStatus)
_WHOLE = msgspec.msgpack.Decoder(RunStatus, dec_hook=_path_in)
