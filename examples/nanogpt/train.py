"""A small language model with plain DDP, started and configured like nanoGPT.

Its options are the variables at the top, set by a Python file of assignments, then by `--name=value`. An unknown name
or a wrong type is an error. RANK, LOCAL_RANK and WORLD_SIZE identify a process; without them, it trains alone.
"""

import ast
import os
import sys
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
log_interval = 1
dataset = "counting"  # data/NAME/train.bin holds 16-bit tokens; `counting` is generated
gradient_accumulation_steps = 8  # in total, over all processes
batch_size = 4  # sequences in a micro batch
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
learning_rate = 3e-3
max_iters = 100
grad_clip = 1.0
backend = "nccl" if torch.cuda.is_available() else "gloo"
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = "float32"  # float32, bfloat16 or float16
compile = False  # noqa: A001  (nanoGPT's own name)

TOKENS = 256


def configure(arguments: list[str]) -> None:
    """Set the variables above, first from files, then from `--name=value`, in the order given."""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, text = argument[2:].partition("=")
            if not equals:
                sys.exit(f"{argument}: options are written --name=value")
            try:
                value = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                value = text
            assign(name, value)
        else:
            with open(argument, encoding="utf-8") as file:
                for statement in statements_of(file.read()):
                    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                        sys.exit(f"{argument}:{statement.lineno}: only NAME = VALUE goes here")
                    assign(statement.targets[0].id, ast.literal_eval(statement.value))


def statements_of(text: str) -> list[ast.stmt]:
    """Return the statements of a file, without its docstrings."""
    return [each for each in ast.parse(text).body if not isinstance(each, ast.Expr)]


def assign(name: str, value: object) -> None:
    """Set one option, keeping its type."""
    if name not in OPTIONS:
        sys.exit(f"unknown option {name}")
    if type(value) is not type(globals()[name]):
        sys.exit(f"{name} takes a {type(globals()[name]).__name__}, not {value!r}")
    globals()[name] = value


OPTIONS = {name for name, value in globals().items() if name.islower() and type(value) in {int, float, bool, str}}


class Model(nn.Module):
    """A causal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, n_embd)
        self.places = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.head = nn.Linear(n_embd, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores for each next token."""
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def corpus() -> torch.Tensor:
    """Return all tokens, mapped from the file."""
    if dataset == "counting":
        return torch.arange(100 * TOKENS) % TOKENS
    path = os.path.join("data", dataset, "train.bin")
    return torch.from_file(path, size=os.path.getsize(path) // 2, dtype=torch.uint16).long() % TOKENS


def main() -> None:
    """Train, and save the model at the end."""
    configure(sys.argv[1:])
    ddp = int(os.environ.get("RANK", "-1")) != -1
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    rank, local_rank, world = (int(os.environ[name]) for name in names) if ddp else (0, 0, 1)
    place = f"cuda:{local_rank}" if device == "cuda" else device
    if ddp:
        init_process_group(backend=backend)
        if device == "cuda":
            torch.cuda.set_device(place)
    if gradient_accumulation_steps % world:
        sys.exit(f"gradient_accumulation_steps={gradient_accumulation_steps} cannot be shared by {world} processes")
    micro_steps = gradient_accumulation_steps // world
    print(f"rank {rank} of {world} on host {os.uname().nodename}, {micro_steps} micro steps each", flush=True)
    torch.manual_seed(1337 + rank)
    raw = Model().to(place)
    fast = torch.compile(raw) if compile else raw
    model = DistributedDataParallel(fast, device_ids=[local_rank] if device == "cuda" else None) if ddp else fast
    optimizer = torch.optim.AdamW(raw.parameters(), lr=learning_rate)
    tokens = corpus()
    precision = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    for step in range(1, max_iters + 1):
        began = time.monotonic()
        for micro_step in range(micro_steps):
            if ddp:  # accumulate gradients, and synchronise them only at the last micro batch
                model.require_backward_grad_sync = micro_step == micro_steps - 1
            starts = torch.randint(len(tokens) - block_size - 1, (batch_size,))
            batch = torch.stack([tokens[start : start + block_size + 1] for start in starts]).to(place)
            with torch.autocast(device, precision, enabled=precision is not torch.float32):
                scores = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()) / micro_steps
            loss.backward()
        nn.utils.clip_grad_norm_(raw.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % log_interval == 0:
            milliseconds = 1000 * (time.monotonic() - began)
            print(f"iter {step}: loss {loss.item() * micro_steps:.4f}, time {milliseconds:.1f}ms", flush=True)
    if rank == 0:
        os.makedirs(out_dir, exist_ok=True)
        torch.save({"model": raw.state_dict(), "step": max_iters}, os.path.join(out_dir, "ckpt.pt"))
    if ddp:
        destroy_process_group()


if __name__ == "__main__":
    main()
