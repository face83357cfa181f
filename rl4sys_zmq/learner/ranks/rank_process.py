"""The process of a rank other than 0. It ends when its link to rank 0 is closed, or when its parent process has ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from rl4sys_zmq.child_process import begin_child
from rl4sys_zmq.errors import RankError
from rl4sys_zmq.learner.ranks.rank_group import LOST_STATUS
from rl4sys_zmq.learner.ranks.rank_member import RankLink, RankMember, join_store
from rl4sys_zmq.learner.registry import ParallelAlgorithm
from rl4sys_zmq.learner.registry.algorithm_protocols import TunableAlgorithm
from rl4sys_zmq.learner.registry.compute import Compute, allow_tf32
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.values import observation_space_from, space_from
from rl4sys_zmq.wire.thread_messages import AssignClient, decode_thread_message

PARENT_LOOK_S = 1.0


def _watch_parent(link: RankLink, parent: int, ending: threading.Event) -> None:
    """End this process when rank 0 has ended, even while the main thread waits for a sum over all ranks."""
    poll = select.poll()
    poll.register(link.fileno(), 0)  # a hang-up is always reported
    while not ending.is_set():
        if (poll.poll(PARENT_LOOK_S * 1000) or os.getppid() != parent) and not ending.is_set():
            os._exit(0)


def build(setup: Mapping[str, Any]) -> tuple[AssignClient, RankMember, torch.device, ParallelAlgorithm]:
    sys.path[:] = setup["path"]  # the factory can be beside the program that embeds the learner
    assign = decode_thread_message(setup["assign"])
    assert isinstance(assign, AssignClient)
    member, device = RankMember(setup["rank"], setup["size"]), torch.device(setup["device"])
    torch.set_num_threads(assign.torch_threads or max(1, (os.cpu_count() or 1) // member.size))
    allow_tf32(assign.tf32, device)
    spaces = observation_space_from(assign.observation_space), space_from(assign.action_space)
    algorithm = load_object(setup["factory"])(*spaces, assign.parameters, assign.seed)
    assert isinstance(algorithm, ParallelAlgorithm)  # as on rank 0
    algorithm.place(Compute(device=device, ranks=member))
    return assign, member, device, algorithm


def serve(link: RankLink) -> NoReturn:
    """Build the algorithm, connect to the other ranks, and do the work that rank 0 announces, until rank 0 closes the link."""
    setup = link.receive()
    assign, member, device, algorithm = build(setup)
    link.send({"ready": True})
    link.receive()  # all ranks are ready
    member.connect(join_store(setup["port"]), assign.generation, device)
    while True:
        message = link.receive()
        if "change" in message:
            assert isinstance(algorithm, TunableAlgorithm)  # as on rank 0
            algorithm.change(message["change"])
            continue
        if message["state"] is not None:
            algorithm.restore(message["state"])
        algorithm.follow(message["work"])


def main(argv: list[str] | None = None) -> int:
    """Run a rank. Its argument is the descriptor of the link. Return the exit status of the process."""
    # This process ends when rank 0 ends, which may first complete an update; also while native code holds the interpreter's lock.
    begin_child(signal.SIGINT, signal.SIGTERM)
    (fd,) = argv if argv is not None else sys.argv[1:]
    with RankLink(socket.socket(fileno=int(fd))) as link:
        ending = threading.Event()
        threading.Thread(target=_watch_parent, args=(link, os.getppid(), ending), name="rl4sys-parent", daemon=True).start()
        try:
            serve(link)
        except (EOFError, ConnectionError):
            return 0
        except RankError:
            return LOST_STATUS
        except Exception as exc:
            link.send({"failed": f"{type(exc).__name__}: {exc}"[:1000]})
            raise
        finally:
            ending.set()


if __name__ == "__main__":
    sys.exit(main())
