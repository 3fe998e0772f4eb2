"""The status of a finished run as kept in the index: bytes, without what only `status RUN` shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hpc_launch.run.status.run_status import RunStatus


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    as_of: float | None
    """When the source said so, in seconds since the epoch."""
    status: RunStatus


def encode_final(status: RunStatus, now: float) -> bytes:
    """The status of a finished run as bytes, with its last attempt only."""
    attempts = tuple(replace(attempt, evidence=()) for attempt in status.attempts[-1:])
    kept = replace(status, attempts=attempts, age_s=None, final_stamp=None)
    return _ENCODER.encode(_Kept(None if status.age_s is None else now - status.age_s, kept))


def decode_final(data: bytes, now: float) -> RunStatus | None:
    """The status from these bytes; None where another release wrote them."""
    try:
        kept = _DECODER.decode(data)
    except msgspec.DecodeError:
        return None
    return kept.status if kept.as_of is None else replace(kept.status, age_s=max(0.0, now - kept.as_of))


def _path_out(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _path_in(kind: type, value: Any) -> Path:
    return kind(value)  # type: ignore[no-any-return]


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_path_out)
_DECODER = msgspec.msgpack.Decoder(_Kept, dec_hook=_path_in)
