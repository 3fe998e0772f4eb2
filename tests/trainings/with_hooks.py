"""The few lines that each library needs to save and end when the job is warned; step 3 makes the warning itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import hpc_launch_hooks as hooks  # type: ignore[import-not-found]
import torch
import torch.distributed as dist

LAST = int(os.environ.get("LAST_STEP", "100000"))


def warn(step: int) -> None:
    """What the job's script does at the warning; as late as can be for one rank alone."""
    if os.environ["RANK"] == "0" and step == 3 and LAST > 10:
        Path(os.environ["HPC_LAUNCH_STOP_FILE"]).touch()
    time.sleep(0.05)


def say(line: str) -> None:
    """One whole line."""
    sys.stdout.write(f"rank {os.environ['RANK']} {line}\n")
    sys.stdout.flush()


def plain(folder: Path) -> None:
    """PyTorch alone."""
    dist.init_process_group("gloo")
    first = torch.load(hooks.resume_path())["step"] if hooks.resume_path() else 0
    for step in range(first + 1, LAST + 1):
        warn(step)
        if hooks.all_should_stop():
            if dist.get_rank() == 0:
                torch.save({"step": step}, folder / f"step-{step}.pt")
            break
    else:
        hooks.done()
    say(f"from {first} to {step}")


def engine(folder: Path) -> None:
    """DeepSpeed."""
    import deepspeed
    from deepspeed import ops

    # Else DeepSpeed compiles a collective of its own for CPUs, which takes minutes.
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = torch.nn.Linear(2, 1)
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if hooks.resume_path():
        engine.load_checkpoint(str(folder), tag=Path(hooks.resume_path()).name)
    first = engine.global_steps
    while engine.global_steps < LAST:
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
        warn(engine.global_steps)
        if hooks.all_should_stop():
            engine.save_checkpoint(str(folder))
            break
    else:
        hooks.done()
    say(f"from {first} to {engine.global_steps}")


class Model(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """One weight and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        return {"loss": (self.line(x) ** 2).mean(), "logits": self.line(x)}


def trainer(folder: Path) -> None:
    """Hugging Face."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    steps = [0, 0]

    class Watch(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            steps[0] = state.global_step

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            steps[1] = state.global_step
            warn(state.global_step)

    arguments = TrainingArguments(
        str(folder), max_steps=LAST, per_device_train_batch_size=1, save_steps=10**6, report_to=[], use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    data = [{"x": torch.ones(2), "labels": torch.zeros(1)} for _ in range(64)]
    callbacks = [Watch(), hooks.trainer_callback()]
    Trainer(Model(), arguments, train_dataset=data, callbacks=callbacks).train(
        resume_from_checkpoint=hooks.resume_path()
    )
    say(f"from {steps[0]} to {steps[1]}")


def lightning(folder: Path) -> None:
    """Lightning."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        first = 0

        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def on_train_start(self) -> None:
            self.first = self.global_step

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            warn(self.global_step)
            return self.model(batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    data = torch.utils.data.DataLoader(torch.ones(100, 2), batch_size=1)
    pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=LAST, max_epochs=-1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[hooks.lightning_callback(folder)],
    ).fit(module, data, ckpt_path=hooks.resume_path())  # fmt: skip
    say(f"from {module.first} to {module.global_step}")


if __name__ == "__main__":
    {"torch": plain, "deepspeed": engine, "trainer": trainer, "lightning": lightning}[sys.argv[1]](Path(sys.argv[2]))
    if dist.is_initialized():  # its threads would end the interpreter's end with an abort, now and then
        dist.destroy_process_group()
