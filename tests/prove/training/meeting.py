"""How the ranks add up their numbers: over PyTorch's gloo, or over sockets of the standard library."""

from __future__ import annotations

import os
import socket
import struct
import time


class Meeting:
    """A rank among others."""

    def __init__(self) -> None:
        """Read who this is, as every launcher says it."""
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def add(self, numbers: list[float]) -> list[float]:
        """The sums over all ranks, the same on each."""
        return numbers


class Sockets(Meeting):
    """Rank 0 collects in the order of the ranks, so that the sums are the same each time."""

    def __init__(self, patience: float) -> None:
        """Connect to rank 0, or wait for the others."""
        super().__init__()
        # torchrun's own store listens at the port itself.
        beside = 1000 if "TORCHELASTIC_RUN_ID" in os.environ else 0
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + beside)
        self.others: list[socket.socket] = []
        if self.rank == 0:
            server = socket.create_server(("", place[1]))
            server.settimeout(patience)
            met: dict[int, socket.socket] = {}
            while len(met) < self.world - 1:
                other, _ = server.accept()
                met[struct.unpack("!i", _receive(other, 4))[0]] = other
            self.others = [met[rank] for rank in sorted(met)]
            server.close()
            return
        zero = _connect(place, patience)
        zero.settimeout(None)
        zero.sendall(struct.pack("!i", self.rank))
        self.others = [zero]

    def add(self, numbers: list[float]) -> list[float]:
        """One round: all to rank 0, the sums back."""
        form = f"!{len(numbers)}d"
        if self.rank:
            self.others[0].sendall(struct.pack(form, *numbers))
            return list(struct.unpack(form, _receive(self.others[0], struct.calcsize(form))))
        sums = list(numbers)
        for other in self.others:
            told = struct.unpack(form, _receive(other, struct.calcsize(form)))
            sums = [a + b for a, b in zip(sums, told, strict=True)]
        for other in self.others:
            other.sendall(struct.pack(form, *sums))
        return sums


def _connect(place: tuple[str, int], patience: float) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(place, timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("Connection closed by peer")
        data += more
    return data


class Torch(Meeting):
    """torch.distributed with gloo."""

    def __init__(self, patience: float) -> None:
        """Join the process group."""
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        super().__init__()
        self.torch, self.dist = torch, dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=patience))

    def add(self, numbers: list[float]) -> list[float]:
        """One all_reduce."""
        tensor = self.torch.tensor(numbers, dtype=self.torch.float64)
        self.dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]


def join(kind: str, patience: float) -> Meeting:
    """Meet the other ranks."""
    return Torch(patience) if kind == "torch" else Sockets(patience)
