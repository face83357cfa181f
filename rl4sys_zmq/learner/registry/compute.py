"""The device on which an algorithm computes, and the interface to the ranks, the processes that share the work of one client.

Rank 0 is the learner thread. All ranks have equal networks and optimizers. Each computes the gradient of some rows of a
minibatch, the gradients are added up, and each rank takes the same optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rl4sys_zmq.errors import config_error


class RowShare(NamedTuple):
    """The part of a minibatch that one rank computes the gradient of.

    Attributes:
        rows: The rows of the rank. There is at least one.
        weight: The share of these rows in all rows. The gradient of a mean over the whole minibatch is the sum over all ranks of
            ``weight`` times the gradient of the mean over the rank's rows. The weight is 0 if no row is left for this rank.
    """

    rows: slice
    weight: float


def row_share(rows: int, rank: int, size: int) -> RowShare:
    """Return the part of `rows` rows for one of `size` ranks. The ranks' numbers of rows differ by at most one."""
    start, stop = rows * rank // size, rows * (rank + 1) // size
    if start == stop:
        return RowShare(slice(0, 1), 0.0)
    return RowShare(slice(start, stop), (stop - start) / rows)


class Ranks(Protocol):
    """The interface through which an algorithm works with the other ranks.

    An update on rank 0 looks like this. The other ranks call `ParallelAlgorithm.follow` with the same `work`::

        with ranks.leading(work, self.checkpoint):   # rank 0 only
            share = ranks.share(rows)                # all ranks, from here on
            gradient = network.gradient(loss(minibatch[share.rows]) * share.weight)
            ranks.add_up(gradient)
            optimizer.step(gradient, ...)

    Every rank must call `add_up` equally often, with tensors of equal sizes. So a decision that depends on data, such as an
    early end of an update, must depend on sums of all ranks.
    """

    @property
    def rank(self) -> int:
        """The number of this rank; 0 for the learner thread."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def share(self, rows: int) -> RowShare:
        """Return the part of a minibatch of `rows` rows for this rank."""

    def add_up(self, tensor: Tensor) -> None:
        """Replace each element of a float32 tensor, in place, by its sum over all ranks. All ranks get identical bits.

        Raises:
            RankError: If another rank has ended or does not answer.
        """

    def leading(self, work: Mapping[str, Any], state: Callable[[], Any]) -> AbstractContextManager[None]:
        """Let the other ranks do the same work as the ``with`` block. Only rank 0 calls this.

        Args:
            work: The argument for `ParallelAlgorithm.follow`: a dict of tensors, arrays, numbers, and dicts and lists of them.
            state: Returns everything that the work changes, as `UndoableAlgorithm.checkpoint` does. It is called only if the
                other ranks must first get the same state.

        Raises:
            RankError: If another rank has ended or does not answer, or if the block of an earlier call raised an exception.
        """

    def differ(self) -> None:
        """Note that rank 0's state has changed in other code than a ``with`` block of `leading`.

        The other ranks now differ from rank 0. The next call of `leading` sends them rank 0's state before the work.
        """


class OneRank:
    """The `Ranks` of an algorithm that trains in one process."""

    rank = 0
    size = 1

    def share(self, rows: int) -> RowShare:
        """Return all rows."""
        return RowShare(slice(None), 1.0)

    def add_up(self, tensor: Tensor) -> None:
        """Do nothing."""

    def leading(self, work: Mapping[str, Any], state: Callable[[], Any]) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def differ(self) -> None:
        """Do nothing."""


ONE_RANK: Ranks = OneRank()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The device of an algorithm's networks, optimizer and minibatches, and the ranks that train together."""

    device: torch.device
    ranks: Ranks = ONE_RANK

    def put(self, tensor: Tensor) -> Tensor:
        """Return a CPU tensor on the device: the tensor itself on the CPU, a copy on a GPU."""
        if self.device.type == "cpu":
            return tensor
        # Page-locked memory, so that the GPU fetches the tensor while this thread continues.
        return tensor.pin_memory().to(self.device, non_blocking=True)


CPU = Compute(device=torch.device("cpu"))


def check_rows(rows: int | None, ranks: Ranks) -> None:
    """Check that a minibatch has at least one row for each rank."""
    if rows is not None and rows < ranks.size:
        raise config_error(
            "learners",
            f"{ranks.size} ranks cannot divide a minibatch of {rows} rows; expected at most {rows}; use fewer ranks or "
            "larger minibatches",
        )


def check_one_rank(kind: str, ranks: Ranks) -> None:
    """Check that a recurrent network trains in one process: ranks cannot divide its minibatches, which consist of sequences."""
    if ranks.size > 1:
        raise config_error("learners", f"a network of kind {kind!r} trains in one process, not in {ranks.size}; use learners: 1")


def find_devices(name: str, count: int = 1) -> list[torch.device]:
    """Return the devices of `count` ranks: the CPU for all of them, or one GPU for each, from the option ``device``."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus >= count else "cpu"
    if name == "cpu":
        return [torch.device("cpu")] * count
    first = int(name.partition(":")[2] or 0)
    if first + count > gpus:
        wanted = f"cuda:{first}" if count == 1 else f"cuda:{first} to cuda:{first + count - 1} for {count} ranks"
        there = ", ".join(f"cuda:{index}" for index in range(gpus)) or (
            "no GPU" if torch.version.cuda else "no GPU, because it was built without CUDA"
        )
        raise config_error(
            "device", f"expected {wanted}, but torch {torch.__version__} finds {there}; use one of them, cpu or auto"
        )
    return [torch.device("cuda", first + rank) for rank in range(count)]


def allow_tf32(allowed: bool, device: torch.device) -> None:
    """Let GPUs multiply float32 matrices with the precision of TensorFloat-32, in this whole process."""
    if allowed and device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
