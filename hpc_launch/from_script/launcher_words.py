"""Launch lines of torchrun, DeepSpeed and Accelerate: what their options mean for the job file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.option_words import OptionTable, Split
from hpc_launch.from_script.values import Value, Word

TORCHRUN = OptionTable(
    frozenset(
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method "
        "role log-dir redirects tee local-addr node-rank master-addr master-port local-ranks-filter event-log-handler "
        "logs-specs numa-binding log-line-prefix-template".split()
    ),
    frozenset("standalone module no-python run-path use-env".split()),
    {"m": "module", "r": "redirects", "t": "tee"},
    underscores=True,
)
DEEPSPEED = OptionTable(
    frozenset(
        "hostfile include exclude num-nodes num-gpus master-port master-addr node-rank launcher launcher-args "
        "autotuning enable-each-rank-log bind-core-list min-elastic-nodes max-elastic-nodes ssh-port "
        "venv-script".split()
    ),
    frozenset(
        "module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training "
        "bind-cores-to-rank".split()
    ),
    {"H": "hostfile", "i": "include", "e": "exclude"},
    underscores=True,
)
ACCELERATE = OptionTable(
    frozenset(
        "config-file num-processes num-machines machine-rank main-process-ip main-process-port mixed-precision "
        "num-cpu-threads-per-process dynamo-backend rdzv-backend rdzv-conf gpu-ids deepspeed-config-file zero-stage "
        "gradient-accumulation-steps gradient-clipping offload-optimizer-device offload-param-device zero3-init-flag "
        "zero3-save-16bit-model deepspeed-hostfile deepspeed-multinode-launcher max-restarts monitor-interval role "
        "fsdp-sharding-strategy fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap fsdp-state-dict-type "
        "fsdp-offload-params fsdp-version fsdp-reshard-after-forward fsdp-min-num-params tee log-dir".split()
    ),
    frozenset("multi-gpu use-deepspeed use-fsdp cpu module no-python same-network debug quiet".split()),
    {"m": "module"},
    underscores=True,
)
_KEPT = {"torchrun": frozenset({"role", "tee", "redirects", "log-dir", "local-ranks-filter", "monitor-interval",
                                "start-method", "numa-binding", "logs-specs", "rdzv-conf"}),
         "deepspeed": frozenset({"bind-cores-to-rank", "bind-core-list", "no-local-rank", "enable-each-rank-log",
                                 "save-pid", "venv-script"})}  # fmt: skip
_ACCELERATE_VARIABLES = {
    "zero-stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "deepspeed-config-file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient-clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload-optimizer-device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload-param-device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3-init-flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3-save-16bit-model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    "num-cpu-threads-per-process": "OMP_NUM_THREADS",
    "gpu-ids": "CUDA_VISIBLE_DEVICES",
}
"""What `accelerate launch` passes on (accelerate/utils/launch.py, 1.15)."""


def torchrun(launch: OldLaunch, words: Sequence[Word], gpus: int) -> None:
    """`torchrun …`, `python -m torch.distributed.run …` and `.launch …`."""
    split = TORCHRUN.split(words)
    launch.launcher = "torchrun"
    launch.keys += ["launcher"]
    _processes(launch, split.last("nproc-per-node"), gpus)
    nnodes = split.last("nnodes")
    if nnodes is not None and ":" in nnodes.text:
        launch.doubts.append((nnodes.line, "an elastic number of nodes: `nodes: 2..4`"))
    elif nnodes is not None and nnodes.number():
        launch.nodes = nnodes.number()
    restarts = split.last("max-restarts")
    if restarts is not None and restarts.number():
        launch.max_restarts = restarts.number()
    _kept(launch, split, "torchrun")
    program(launch, split.rest, module=split.has("module"), plain=split.has("no-python"))


def deepspeed(launch: OldLaunch, words: Sequence[Word], gpus: int) -> None:
    """`deepspeed …`."""
    split = DEEPSPEED.split(words)
    launch.launcher = "deepspeed"
    launch.keys += ["launcher"]
    _processes(launch, split.last("num-gpus"), gpus)
    nodes = split.last("num-nodes")
    launch.nodes = nodes.number() if nodes is not None else None
    for name in ("include", "exclude", "launcher", "launcher-args", "autotuning"):
        word = split.last(name)
        if word is not None and not (name == "launcher" and word.text.lower() in {"pdsh", "slurm"}):
            launch.doubts.append((word.line, f"`--{name}` of deepspeed"))
    _kept(launch, split, "deepspeed")
    program(launch, split.rest, module=split.has("module"), plain=split.has("no-python"))


def accelerate(launch: OldLaunch, words: Sequence[Word], gpus: int, nodes: int) -> None:
    """`accelerate launch …`: it starts torchrun's processes, with variables for its options."""
    split = ACCELERATE.split(words)
    launch.launcher = "torchrun"
    launch.keys += ["launcher", "env"]
    machines = split.last("num-machines")
    launch.nodes = machines.number() if machines is not None else None
    total = split.last("num-processes")
    count = total.number() if total is not None else None
    launch.processes_per_node = max(count // (launch.nodes or nodes), 1) if count else gpus or 1
    for option in split.options:
        variable = _ACCELERATE_VARIABLES.get(option.name)
        if variable is not None and option.value is not None:
            launch.env[variable] = option.value.value
        elif option.name == "use-deepspeed":
            launch.env["ACCELERATE_USE_DEEPSPEED"] = Value("true")
        elif option.name == "config-file":
            hint = "accelerate's configuration file is not read: set its values in `strategy:` and `env:`"
            launch.doubts.append((option.line, hint))
        elif option.name.startswith(("fsdp", "use-fsdp")):
            launch.doubts.append((option.line, "FSDP of accelerate: use `strategy: {name: fsdp, for: accelerate}`"))
        elif not option.known:
            launch.doubts.append((option.line, f"`--{option.name}` of accelerate"))
    if split.last("deepspeed-config-file", "zero-stage") is not None:
        launch.env.setdefault("ACCELERATE_USE_DEEPSPEED", Value("true"))
    program(launch, split.rest, module=split.has("module"), plain=split.has("no-python"))


def _processes(launch: OldLaunch, word: Word | None, gpus: int) -> None:
    if word is None:
        launch.processes_per_node = (gpus or 1) if launch.launcher == "deepspeed" else 1
    elif word.number():
        launch.processes_per_node = word.number()
    elif word.text in {"gpu", "auto"} or not word.value.known or "shell." in word.text:
        launch.processes_per_node = gpus or 1
    else:
        launch.doubts.append((word.line, f"`{word.text}` processes"))


def _kept(launch: OldLaunch, split: Split, name: str) -> None:
    """The launcher's options that neither the rendezvous nor another key covers."""
    for option in split.options:
        if not option.known:
            launch.doubts.append((option.line, f"`--{option.name}` of {name}"))
        elif option.name in _KEPT[name]:
            separator = "_" if name == "deepspeed" else "-"
            text = "--" + option.name.replace("-", separator)
            launch.options.append(text if option.value is None else f"{text}={option.value.text}")
            launch.keys.append("launcher.options")


def program(launch: OldLaunch, words: Sequence[Word], *, module: bool = False, plain: bool = False) -> None:
    """What a launcher starts, and its arguments."""
    if not words:
        launch.doubts.append((launch.lines[0], "no program"))
    first, rest = list(words[:1]), list(words[1:])
    launch.program = "module" if module else "command" if plain else "script"
    launch.words, launch.arguments = first, rest
    if first and not plain and not module and not first[0].value.known:
        launch.program, launch.words = "command", [Word(Value("python3"), first[0].line), *first]
    launch.keys += ["module" if module else launch.program, "args"] if rest else [launch.program]


def python(launch: OldLaunch, words: Sequence[Word], interpreter: str, gpus: int, nodes: int) -> None:
    """`python …`: an interpreter with a file, a module that is a launcher, or another module."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        text = words[at].text
        if text == "-m" and at + 1 < len(words):
            name, rest = words[at + 1].text, words[at + 2 :]
            if name in {"torch.distributed.run", "torch.distributed.launch"}:
                torchrun(launch, rest, gpus)
                if name.endswith("launch") and not any(word.text == "--use_env" for word in rest):
                    # torch/distributed/launch.py: without --use_env each process gets --local-rank.
                    why = "torch.distributed.launch passed --local_rank; read LOCAL_RANK from the environment"
                    launch.doubts.append((words[at + 1].line, why))
            elif name in {"accelerate.commands.launch", "accelerate.commands.accelerate_cli"}:
                accelerate(launch, rest[1:] if name.endswith("cli") else rest, gpus, nodes)
            elif name in {"deepspeed.launcher.runner", "deepspeed"}:
                deepspeed(launch, rest, gpus)
            else:
                program(launch, words[at + 1 :], module=True)
            _interpreter(launch, interpreter)
            return
        if text == "-u":
            at += 1
            continue
        launch.program, launch.words = "command", [Word(Value(interpreter), words[at].line), *words]
        launch.keys += ["command"]
        return
    program(launch, words[at:])
    _interpreter(launch, interpreter)


def _interpreter(launch: OldLaunch, interpreter: str) -> None:
    if os.path.basename(interpreter) != interpreter:
        launch.python = interpreter
        launch.keys.append("environment.python")
