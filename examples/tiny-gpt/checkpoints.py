"""Checkpoints on disk: one folder per step, saved atomically; finds the newest complete one.

A job can be killed at any moment, even during a save. A checkpoint is therefore written under a temporary
name and renamed when it is complete, and the previous one is kept. Loading starts with the newest and falls
back to the previous one if the newest is damaged.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

KEEP = 2


def save(folder: Path, step: int, write: Callable[[Path], None]) -> None:
    """Let every rank `write` into a temporary folder, then rename the folder. All ranks must call this."""
    target = _path(folder, step)
    temporary = target.with_name(target.name + ".tmp")
    if dist.get_rank() == 0:
        for leftover in (temporary, target):  # from a run that was killed here, or a damaged checkpoint
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir(parents=True)
    dist.barrier()
    write(temporary)
    dist.barrier()  # rank 0 may rename only when the slowest rank has written its part
    if dist.get_rank() == 0:
        _to_disk(temporary)
        os.replace(temporary, target)
        for old in _newest_first(folder)[KEEP:]:
            shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def newest_whole(folder: Path, device: torch.device) -> Path | None:
    """Return the newest undamaged checkpoint, or None. Rank 0 finds it, so that all ranks agree."""
    step = _newest_whole_step(folder) if dist.get_rank() == 0 else -1
    agreed = torch.tensor(step, device=device)
    dist.broadcast(agreed, 0)
    return None if agreed < 0 else _path(folder, int(agreed))


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def _newest_whole_step(folder: Path) -> int:
    for candidate in _newest_first(folder):
        if damaged := _damaged_file(candidate):
            print(f"checkpoint {candidate.name} is damaged ({damaged}): trying the one before", flush=True)
        else:
            return int(candidate.name.removeprefix("step-"))
    return -1


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*") if not path.name.endswith(".tmp")), reverse=True)


def _damaged_file(checkpoint: Path) -> str | None:
    """Name the first damaged file. torch.save writes zip files, which have checksums."""
    files = sorted(checkpoint.rglob("*.pt"))
    for path in files:
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return path.name
        except (OSError, zipfile.BadZipFile):
            return path.name
    return None if files else "it is empty"


def _to_disk(folder: Path) -> None:
    # Without this, the rename can reach the disk before the data, and a power failure leaves an incomplete file.
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
