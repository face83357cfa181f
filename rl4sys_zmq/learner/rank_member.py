"""A member of the group of ranks, the processes that train one policy together. It adds up tensors by torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from rl4sys_zmq.errors import RankError
from rl4sys_zmq.learner.algorithms.compute import RowShare, row_share

__all__ = ["RANK_TIMEOUT_S", "RankMember"]

RANK_TIMEOUT_S = 60.0
"""The time after which a rank that has not taken part in a sum counts as failed, in seconds.

It is much longer than a gradient step, because a machine can be slow or a process can be stopped for some time.
"""

_LOOPBACK = "127.0.0.1"


class RankMember:
    """This process as a member of the group of ranks. It implements `rl4sys_zmq.learner.algorithms.compute.Ranks`.

    Rank 0 uses the subclass `rl4sys_zmq.learner.rank_group.RankGroup`.

    Attributes:
        rank: The number of this rank; 0 for the learner thread.
        size: The number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group: Any = None
        self._options = distributed.AllreduceOptions()

    def connect(self, store: Any, generation: int, device: torch.device) -> None:
        """Connect all ranks with each other. The call returns when all ranks have made it.

        The group is not torch's default group, of which a process has only one. So each client of a learner has its own.

        Args:
            store: A `torch.distributed.Store` through which the ranks exchange their addresses.
            generation: The number of this lifetime of the learner thread. Ranks of different generations do not meet.
            device: The device of the tensors that this rank adds up.

        Raises:
            RankError: If the ranks do not find each other within `RANK_TIMEOUT_S`.
        """
        torch_groups: Any = distributed  # its annotations lack these classes
        prefix = torch_groups.PrefixStore(f"generation-{generation}", store)
        timeout, here = timedelta(seconds=RANK_TIMEOUT_S), (self.rank, self.size)
        try:
            if device.type == "cuda":
                os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a dead rank then raises, and does not end the process
                nccl = torch_groups.ProcessGroupNCCL
                options = nccl.Options()
                options._timeout = timeout
                self._group = nccl(prefix, *here, options)
            else:
                gloo = torch_groups.ProcessGroupGloo
                options = gloo._Options()
                options._timeout = timeout
                options._devices = [gloo.create_device(hostname=_LOOPBACK)]
                self._group = gloo(prefix, *here, options)
        except RuntimeError as exc:
            raise RankError(f"rank {self.rank} of {self.size} cannot connect to the other ranks: {exc}") from exc

    def share(self, rows: int) -> RowShare:
        """Return the part of a minibatch of `rows` rows for this rank."""
        return row_share(rows, self.rank, self.size)

    def add_up(self, tensor: Tensor) -> None:
        """Replace each element of a float32 tensor, in place, by its sum over all ranks. All ranks get identical bits.

        Raises:
            RankError: If another rank has ended, or has not called this within `RANK_TIMEOUT_S`.
        """
        try:
            self._group.allreduce([tensor], self._options).wait()
        except RuntimeError as exc:
            raise RankError(f"rank {self.rank} of {self.size} cannot add up gradients: {exc}") from exc

    def leading(self, work: Mapping[str, Any], state: Callable[[], Any]) -> AbstractContextManager[None]:
        """Return a context that does nothing. Only rank 0 leads."""
        return nullcontext()

    def differ(self) -> None:
        """Do nothing. A rank other than 0 gets its state from rank 0."""
