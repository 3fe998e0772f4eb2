"""Checkpoints on disk: one folder a step, put in place whole, the newest whole one found again.

A job can be killed at any moment, in the middle of a save too. So a checkpoint is written under a
temporary name and renamed when it is complete, the one before it is kept, and reading starts with the
newest and falls back when that one turns out to be damaged.
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
    """Let every rank `write` into a temporary folder, then put it in place. Every rank calls this."""
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
    """The newest undamaged checkpoint, or None: looked up by rank 0, so that all ranks agree on it."""
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
    """Name the first file that is not whole. torch.save writes zip files, and those carry checksums."""
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
    # Without this the rename can reach the disk before the data does, and a power cut leaves a torn file.
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
