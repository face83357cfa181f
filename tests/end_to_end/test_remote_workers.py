"""Workers on "other machines": processes that use only tcp with CURVE to the learner, and none of the learner's files."""

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.children import is_there
from harness.remote_engine import ELSEWHERE, STARTS, RemoteProgram
from kit import until

from rl4sys_zmq.errors import CheckpointError, RL4SysError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.engines import checkpoint_thread, worker_link
from rl4sys_zmq.learner.engines.worker_link import RemoteWorkerLink
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.remote import handle as remote
from rl4sys_zmq.security.keys import new_key_pair
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.transports.network import curve
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import DeliverSegments, SegmentVerdicts, StreamEnded, ThreadFailed

from .conftest import Lab, play
from .engine_lab import PATIENCE_S, balanced, check_a_relic, client_of, trained, worker_options

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def lab(ipc_lab: Lab) -> Lab:
    return ipc_lab


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return worker_options(tmp_path, ELSEWHERE, "harness.remote_engine")


def counters(learner: Any) -> dict[str, int]:
    found: dict[str, int] = learner.status()["counters"]
    return found


@pytest.mark.parametrize("knows", [True, False])
def test_a_stopped_worker_that_wakes_after_its_replacement_changes_nothing(
    knows: bool, lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REPLACED_KILL_S", 10 * PATIENCE_S)  # so that the old process is not killed before it continues

    def replace(learner: Learner) -> None:
        with monkeypatch.context() as patch:
            for notice in () if knows else ("StopThread", "EndRemoteWorker"):
                patch.setattr(worker_link, notice, lambda: StreamEnded("nobody", 0))
            learner.restart("lab")

    learner = check_a_relic(lab, options, stopped, replace)
    if not knows:
        until(lambda: counters(learner).get("worker_messages_fenced"), "its late messages are dropped")


def test_a_worker_that_is_silent_for_too_long_is_replaced(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REMOTE_WORKER_SILENCE_S", 2.0)
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    old = trained(learner, 4)["worker"]["pid"]
    stopped(old)
    play(agent, 4)
    after = trained(learner, 8)
    balanced(after, 8)
    assert after["worker"]["pid"] != old and "no sign of life" in after["worker"]["last_crash"]


def test_a_worker_lost_in_the_middle_of_a_checkpoint(lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of its checkpoint are dropped, its marks were not reported, and the next worker trains on everything again."""
    monkeypatch.setenv("RL4SYS_PART_BYTES", "256")
    monkeypatch.setenv("RL4SYS_DIE_AT", "PART:3")
    learner = lab.learner(**{**options, "checkpoint_every_s": 3600.0})
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    trained(learner, 4)
    saved = options["run_dir"] / "checkpoints" / "lab"
    monkeypatch.delenv("RL4SYS_DIE_AT")
    with pytest.raises(CheckpointError, match="SIGKILL"):
        learner.save(timeout_s=PATIENCE_S)
    after = trained(learner, 4)
    assert after["checkpoint"]["number"] == 0 and after["restarts"] == 1
    balanced(after, 4)
    assert not [path.name for path in saved.iterdir() if path.name.startswith((".tmp-", "0"))]
    play(agent, 2)
    trained(learner, 6)
    learner.save(timeout_s=PATIENCE_S)
    found = CheckpointStore(saved).load()
    assert found is not None and found[0].verdicts["trained"] == 6 and found[0].number == 1


def test_a_checkpoint_in_many_parts_comes_back(lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL4SYS_PART_BYTES", "100")
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    pid = trained(learner, 4)["worker"]["pid"]
    learner.save(timeout_s=PATIENCE_S)
    monkeypatch.setattr(checkpoint_thread, "PART_BYTES", 90)
    os.kill(pid, signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1 and client_of(learner)["state"] == "running", "another worker")
    balanced(trained(learner, 4), 4)
    assert not any(path.name.endswith(".damaged") for path in (options["run_dir"] / "checkpoints" / "lab").iterdir())


def test_a_worker_with_another_version_fails_its_client_with_both(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL4SYS_FAULT", "version")
    STARTS.clear()
    learner = lab.learner(**options)
    with pytest.raises(RL4SysError, match=rf"version {package_version()} .*this worker has version 0\.0\.1"):
        lab.agent(learner, algorithm_name="IMPORTABLE")
    assert len(STARTS) == 1


def test_an_engine_that_fails_costs_its_client_a_restart(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    pid = trained(learner, 4)["worker"]["pid"]
    wait, faulty = RemoteProgram.wait, threading.Event()
    faulty.set()

    def fault(program: RemoteProgram, timeout_s: float) -> str | None:
        if faulty.is_set():
            faulty.clear()
            raise LookupError("a fault of the engine")
        return wait(program, timeout_s)

    monkeypatch.setattr(RemoteProgram, "wait", fault)
    until(lambda: client_of(learner)["restarts"] == 1, "another worker")
    crash = client_of(learner)["worker"]["last_crash"]
    assert crash == f"its worker on {platform.node()} (pid {pid}) was given up: a fault of the engine"
    play(agent, 4)
    balanced(trained(learner, 8), 8)


def test_forgetting_a_client_puts_its_checkpoints_aside(lab: Lab, options: dict[str, Any]) -> None:
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    pid = trained(learner, 4)["worker"]["pid"]
    learner.save(timeout_s=PATIENCE_S)
    assert learner.forget("lab", timeout_s=PATIENCE_S)["checkpoints"] >= 1
    assert not is_there(pid)


def test_a_run_without_files_has_remote_workers_too(lab: Lab, options: dict[str, Any]) -> None:
    learner = lab.learner(**{**options, "run_dir": None})
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    balanced(trained(learner, 4), 4)


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_message_that_the_network_loses_is_noticed(
    way: str, lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first segments, or the first verdicts, are lost once. The worker is replaced, and trains on all segments."""
    lost: list[int] = []

    def send(self: RemoteWorkerLink, frames: Any) -> bool:
        if frames[0][6] == DeliverSegments.KIND and not lost:
            lost.append(1)
            self._sent += 1
            return True
        return sending(self, frames)

    def receive(self: RemoteWorkerLink, **options: Any) -> Iterator[Any]:
        for frames in receiving(self, **options):
            if frames[1][6] == SegmentVerdicts.KIND and not lost:
                lost.append(1)
                self._received -= 1
            else:
                yield frames

    sending, receiving = RemoteWorkerLink.send, RemoteWorkerLink.receive
    if way == "down":
        monkeypatch.setattr(RemoteWorkerLink, "send", send)
    else:
        monkeypatch.setattr(RemoteWorkerLink, "receive", receive)
    learner = lab.learner(**{**options, "checkpoint_every_s": 3600.0})
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    found = trained(learner, 4)
    balanced(found, 4)
    assert lost and found["restarts"] == 1 and "lost on the way" in found["worker"]["last_crash"]


def test_connections_that_are_cut_lose_nothing(lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[RemoteWorkerLink] = []
    made = RemoteWorkerLink.__init__

    def note(self: RemoteWorkerLink, *args: Any) -> None:
        made(self, *args)
        links.append(self)

    monkeypatch.setattr(RemoteWorkerLink, "__init__", note)
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE", queue_items=1000)

    def cut() -> int:
        sockets = [socket for socket in (links[-1].pull, links[-1]._push) if socket is not None and not socket.closed]
        return sum(socket.cut(descriptor) for socket in sockets for descriptor in socket.connections())

    for _ in range(4):
        play(agent, 5)
        gateway = learner._gateway
        assert gateway is not None
        until(lambda gateway=gateway: gateway.call(cut).result(PATIENCE_S) == 2, "both are cut")  # type: ignore[misc]
        play(agent, 5)
    balanced(trained(learner, 40), 40)


def refused(learner: Any) -> int:
    return counters(learner).get("worker_connections_refused", 0)


@pytest.mark.parametrize("which", ["none", "unknown", "of another client", "with another token"])
def test_nobody_else_connects_to_the_sockets_of_a_worker(lab: Lab, options: dict[str, Any], which: str) -> None:
    STARTS.clear()
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    lab.agent(learner, "other", algorithm_name="IMPORTABLE")
    mine, other = STARTS
    pair = new_key_pair()
    token, keys = bytes.fromhex(mine.key), {
        "none": None,
        "unknown": (pair.public, pair.secret, mine.gateway_public),
        "of another client": (other.public, other.secret, mine.gateway_public),
        "with another token": (mine.public, mine.secret, mine.gateway_public),
    }[which]  # fmt: skip
    secure = curve(keys) if keys is not None else None
    if which == "with another token":
        token = bytes.fromhex(other.key)
    with Socket.push(connect=mine.up, secure=secure) as up:
        up.send([token, *encode(ThreadFailed("a lie", ""))])
        if which == "with another token":
            until(lambda: counters(learner).get("worker_messages_refused.key"), "it is counted")
        else:
            until(lambda: refused(learner), "it is counted")
            count = refused(learner)
            with Socket.pull(connect=mine.down, secure=secure) as down:
                until(lambda: refused(learner) > count, "it is counted")
                play(agent, 4)
                balanced(trained(learner, 4), 4)
                assert down.recv() is None
    assert client_of(learner)["state"] == client_of(learner, "other")["state"] == "running"


def test_a_replaced_worker_cannot_connect_again(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REPLACED_KILL_S", 10 * PATIENCE_S)  # its PULL socket must still be open
    STARTS.clear()
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    stopped(trained(learner, 4)["worker"]["pid"])
    learner.restart("lab")
    trained(learner, 4)
    old, new = STARTS
    for address in (old.up, new.up):
        count = refused(learner)
        with Socket.push(connect=address, secure=curve((old.public, old.secret, old.gateway_public))) as up:
            up.send([bytes.fromhex(old.key), *encode(ThreadFailed("a lie", ""))])
            until(lambda count=count: refused(learner) > count, "it is counted")  # type: ignore[misc]
    balanced(trained(learner, 4), 4)
