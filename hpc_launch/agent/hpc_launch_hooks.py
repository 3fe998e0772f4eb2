"""Hooks for training code: when to save and stop, the time left, and the checkpoint to resume from.

A single file without dependencies, for Python 3.6 or later. hpc-launch puts it on the path of every job, including
inside containers, so nothing has to be installed. To run without hpc-launch or Slurm, copy it beside the training; it
then never asks to stop.

Plain PyTorch and DeepSpeed, on every rank, once per step:

    if hpc_launch_hooks.all_should_stop():
        save(...)
        break

Hugging Face: `Trainer(..., callbacks=[hpc_launch_hooks.trainer_callback()])`, then
`trainer.train(resume_from_checkpoint=hpc_launch_hooks.resume_path())`.

Lightning: `Trainer(..., callbacks=[hpc_launch_hooks.lightning_callback("checkpoints")])`, then
`trainer.fit(model, ckpt_path=hpc_launch_hooks.resume_path())`.
"""

import os
import time
from typing import Any, Dict, Optional

_LOOK_EVERY_S = 1.0
_seen: Dict[str, Any] = {"at": None, "stop": False, "calls": 0}


def should_stop() -> bool:
    """Whether this process should save and stop. Checks at most once per second, so calls are cheap.

    Ranks may see the request at different steps. If ranks wait for each other, use `all_should_stop`.
    """
    name = os.environ.get("HPC_LAUNCH_STOP_FILE")
    now = time.monotonic()
    if name and not _seen["stop"] and (_seen["at"] is None or now - _seen["at"] >= _LOOK_EVERY_S):
        _seen["at"] = now
        try:
            # Listing the folder makes a network file system refresh its cache.
            _seen["stop"] = os.path.basename(name) in os.listdir(os.path.dirname(name) or ".")
        except OSError:
            pass
    return bool(_seen["stop"])


def all_should_stop(every: int = 1) -> bool:
    """Whether rank 0 should save and stop: the same answer on all ranks of torch.distributed.

    Every rank must call it equally often. With `every=N`, only each N-th call broadcasts; the others return False.
    """
    _seen["calls"] += 1
    if _seen["calls"] % max(int(every), 1):
        return False
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return should_stop()
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return should_stop()
    device = torch.device("cpu")
    if "gloo" not in str(dist.get_backend()):
        accelerator = "cuda" if torch.cuda.is_available() else "xpu"
        device = torch.device(accelerator, getattr(torch, accelerator).current_device())
    flag = torch.tensor(int(dist.get_rank() == 0 and should_stop()), device=device)
    dist.broadcast(flag, 0)
    return bool(flag.item())


def time_left() -> Optional[float]:
    """Seconds until the job's time limit; None if there is none or it is unknown."""
    end = os.environ.get("HPC_LAUNCH_END_TIME") or os.environ.get("SLURM_JOB_END_TIME")
    try:
        return float(end) - time.time() if end else None
    except ValueError:
        return None


def attempt() -> int:
    """The number of this attempt, counted from 1."""
    number = os.environ.get("HPC_LAUNCH_ATTEMPT", "")
    return int(number) if number.isdigit() and int(number) > 0 else 1


def resume_path() -> Optional[str]:
    """The newest complete checkpoint at the start of this attempt (job file: `checkpoint:`); None if there is none."""
    return os.environ.get("HPC_LAUNCH_RESUME_FROM") or None


def resume_step() -> Optional[int]:
    """The step of that checkpoint, from its name; None if the name has none."""
    step = os.environ.get("HPC_LAUNCH_RESUME_STEP", "")
    return int(step) if step.isdigit() else None


def done() -> None:
    """Mark the training as complete. Call it on one rank."""
    name = os.environ.get("HPC_LAUNCH_DONE_FILE")
    if name:
        with open(name, "a"):
            pass


def trainer_callback(every: int = 1) -> Any:
    """A callback for the transformers Trainer: saves and stops after the step at which the job is warned."""
    from transformers import TrainerCallback

    class HpcLaunchCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Checks after each step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            """Save and stop if requested."""
            if all_should_stop(every):
                control.should_save = True
                control.should_training_stop = True
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Mark the training as complete after the last step."""
            if state.is_world_process_zero and state.global_step >= state.max_steps:
                done()

    return HpcLaunchCallback()


def lightning_callback(folder: Any, every: int = 1) -> Any:
    """A callback for Lightning's Trainer: saves to `folder` and stops after the batch at which the job is warned."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment,no-redef,unused-ignore]

    class HpcLaunchCallback(Callback):  # type: ignore[misc,unused-ignore]
        """Checks after each batch."""

        stopped = False

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """Save and stop if requested."""
            if not self.stopped and all_should_stop(every):
                self.stopped = True
                name = f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"
                trainer.save_checkpoint(os.path.join(str(folder), name))
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """Mark the training as complete unless it was stopped."""
            if trainer.is_global_zero and not self.stopped:
                done()

    return HpcLaunchCallback()
