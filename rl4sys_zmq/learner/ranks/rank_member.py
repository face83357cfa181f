"""A member of the group of ranks: its link to rank 0, and the sums of tensors by torch.distributed.

A message of the link is a dict of the values that a checkpoint can contain (`learner.run.state_tree`). Its bytes are the length
of a JSON text, the text, and the bytes of the arrays that the text lists. A socketpair takes a tenth to a half of the time of a
broadcast by torch.distributed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from rl4sys_zmq.errors import RankError
from rl4sys_zmq.learner.registry.compute import OneRank, RowShare, row_share
from rl4sys_zmq.learner.run.state_tree import pack_state, unpack_state
from rl4sys_zmq.resource import Resource

_LENGTH = struct.Struct("<Q")
JOIN_BYTES = 1 << 16
"""Size up to which the parts of a message are sent by one system call, in bytes."""


def encode_rank_message(message: Mapping[str, Any]) -> list[memoryview]:
    """Return the bytes of a message in parts. Large arrays are not copied."""
    tree, arrays = pack_state(message)
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps([tree, listed]).encode()
    parts = [memoryview(_LENGTH.pack(len(text)) + text)]
    parts += [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    if sum(map(len, parts)) <= JOIN_BYTES:
        return [memoryview(b"".join(parts))]
    return parts


class RankLink(Resource):
    """One end of the socketpair between rank 0 of a client and another rank.

    A timeout of the socket limits each call. A call that fails can leave a part of a message, so close the link then.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_parts(encode_rank_message(message))

    def send_parts(self, parts: Sequence[memoryview]) -> None:
        for part in parts:
            self._socket.sendall(part)

    def receive(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._read(bytearray(_LENGTH.size)))
        tree, listed = json.loads(self._read(bytearray(length)))
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in listed}
        for array in arrays.values():
            self._read(array.reshape(-1).view(np.uint8))
        message: dict[str, Any] = unpack_state(tree, arrays)
        return message

    def _read(self, buffer: Any) -> Any:
        """Fill a writable buffer of bytes with received bytes, and return the buffer."""
        left = memoryview(buffer)
        while left:
            count = self._socket.recv_into(left)
            if not count:
                raise EOFError("the other end of the link is closed")
            left = left[count:]
        return buffer

    def close(self) -> None:
        self._socket.close()


RANK_TIMEOUT_S = 60.0
"""The time after which a rank that has not taken part in a sum counts as failed. Machines can be slow, and processes stopped."""

_LOOPBACK = "127.0.0.1"
_DISTRIBUTED: Any = distributed
"""The module ``torch.distributed`` without type annotations, which do not describe all stores and groups that are used here."""


def open_store(size: int) -> tuple[Any, int]:
    """Open a store through which `size` ranks exchange their addresses, on a free port of the loopback interface."""
    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        listening.listen(size)
        port: int = listening.getsockname()[1]
        timeout = timedelta(seconds=RANK_TIMEOUT_S)
        fd = listening.detach()  # the store closes it
        store = _DISTRIBUTED.TCPStore(_LOOPBACK, port, None, True, timeout, wait_for_workers=False, master_listen_fd=fd)
    return store, port


def join_store(port: int) -> Any:
    """Connect to the store that rank 0 has opened on this port."""
    try:
        return _DISTRIBUTED.TCPStore(_LOOPBACK, port, None, False, timedelta(seconds=RANK_TIMEOUT_S))
    except RuntimeError as exc:
        raise RankError(f"the store of rank 0 at port {port} does not answer: {exc}") from exc


class RankMember(OneRank):
    """This process as a member of the group of ranks. It implements `rl4sys_zmq.learner.registry.compute.Ranks`.

    Only rank 0 leads: for the others, `leading` and `differ` do nothing.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group: Any = None
        self._options = distributed.AllreduceOptions()

    def connect(self, store: Any, generation: int, device: torch.device) -> None:
        """Connect all ranks with each other. The call returns when all ranks have called this method.

        The group is not torch's default group, of which a process has only one: each client of a learner has its own.
        """
        prefix = _DISTRIBUTED.PrefixStore(f"generation-{generation}", store)
        prefix.set(f"connecting-{self.rank}", "1")
        try:
            if device.type == "cuda":
                os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a dead rank then raises, and does not end the process
                backend = _DISTRIBUTED.ProcessGroupNCCL
                options = backend.Options()
            else:
                backend = _DISTRIBUTED.ProcessGroupGloo
                options = backend._Options()
                options._devices = [backend.create_device(hostname=_LOOPBACK)]
            options._timeout = timedelta(seconds=RANK_TIMEOUT_S)
            self._group = backend(prefix, self.rank, self.size, options)
        except RuntimeError as exc:
            raise RankError(f"rank {self.rank} of {self.size} cannot connect to the other ranks: {exc}") from exc

    def connecting(self, store: Any, generation: int) -> bool:
        """Return True if all other ranks have begun to connect, so that `connect` does not wait for them."""
        prefix = _DISTRIBUTED.PrefixStore(f"generation-{generation}", store)
        return bool(prefix.check([f"connecting-{rank}" for rank in range(self.size) if rank != self.rank]))

    def share(self, rows: int) -> RowShare:
        return row_share(rows, self.rank, self.size)

    def add_up(self, tensor: Tensor) -> None:
        """Replace each element of a float32 tensor by its sum over all ranks. All ranks get identical bits."""
        try:
            self._group.allreduce([tensor], self._options).wait()
        except RuntimeError as exc:
            raise RankError(f"rank {self.rank} of {self.size} cannot add up gradients: {exc}") from exc
