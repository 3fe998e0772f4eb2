"""Batch sizes: global batch = micro batch × accumulation steps × data-parallel size."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place


class Batch(Struct, frozen=True):
    """Samples per step over all GPUs, samples per GPU and micro step, and micro steps per step.

    None: unknown here; the program derives it once it knows its number of processes.
    """

    train: int | None
    micro: int | None
    accumulation: int | None


class BatchPlaces(Struct, frozen=True):
    """The places of the three numbers."""

    train: Place
    micro: Place
    accumulation: Place


def settle(asked: Batch, replicas: int | None, places: BatchPlaces) -> tuple[Batch | None, list[Finding]]:
    """Derive the missing numbers as DeepSpeed does, but never round.

    `replicas` is the data-parallel size; if None, only what does not depend on it is checked. If only the global or
    only the micro batch is given, the accumulation is 1. (deepspeed 0.19.8, runtime/config.py,
    _set_batch_related_parameters, rounds down and then asserts.)
    """
    train, micro, steps = asked.train, asked.micro, asked.accumulation
    if train is None and micro is None:
        if steps is None:
            micro = steps = 1
        else:
            message = "gradient accumulation alone does not determine the batch size"
            return _refused(message, places.accumulation, "set the micro batch or the global batch")
    if train is None:
        steps = 1 if steps is None else steps
        return Batch(None if replicas is None else (micro or 1) * steps * replicas, micro, steps), []
    if replicas is None:
        return _without_replicas(train, micro, steps, places)
    if micro is None and steps is None:
        steps = 1
    return _divided(train, micro, steps, replicas, places)


def _without_replicas(
    train: int, micro: int | None, steps: int | None, places: BatchPlaces
) -> tuple[Batch | None, list[Finding]]:
    known = (micro or 1) * (steps or 1)
    if train % known:
        return _uneven(train, f"micro batch × accumulation = {known}", known, places)
    return Batch(train, micro, steps), []


def _divided(
    train: int, micro: int | None, steps: int | None, replicas: int, places: BatchPlaces
) -> tuple[Batch | None, list[Finding]]:
    known = (micro or 1) * (steps or 1) * replicas
    if micro is not None and steps is not None:
        if train == known:
            return Batch(train, micro, steps), []
        message = f"the global batch is {train}, but {micro} × {steps} × {replicas} replicas = {known}"
        return _refused(message, places.train, f"set it to {known}, or remove one of the three")
    if train % known or train < known:
        factors = [f"micro batch {micro}" if micro else "", f"accumulation {steps}" if steps and steps > 1 else ""]
        product = " × ".join([factor for factor in factors if factor] + [f"{replicas} replicas"])
        return _uneven(train, f"{product} = {known}", known, places)
    rest = train // known
    return Batch(train, micro or rest, steps or rest), []


def _uneven(train: int, by: str, known: int, places: BatchPlaces) -> tuple[None, list[Finding]]:
    below = train // known * known
    near = [str(number) for number in (below, below + known) if number > 0]
    return _refused(f"the global batch {train} is not divisible by {by}", places.train, f"use {' or '.join(near)}")


def _refused(message: str, place: Place, hint: str) -> tuple[None, list[Finding]]:
    return None, [Finding(FindingCode.INCONSISTENT_BATCH, message, place, hint)]
