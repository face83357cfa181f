"""The history of a learner over real sockets: who gets it, and what a restart, a storm and bad answers do to it."""

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, Child
from kit import PATIENCE_S, free_port, open_agent, play, raising, until, write_keys

from rl4sys_zmq.errors import LearnerUnavailable, ProtocolError, RefusalReason
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.requests import StatusAnswer, StatusConnection
from rl4sys_zmq.security.keys import read_user_keys
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import StatusReply, StatusRequest

from .conftest import Lab

READ_S = 0.2
"""The time between two readings. A connection without a session has a rate limit."""

TCP = "tcp://127.0.0.1:0"
PROCESS = """
import sys
from pathlib import Path
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
register_algorithm("FAKE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
with Learner(LearnerConfig(bind=sys.argv[1], run_dir=Path(sys.argv[2]), checkpoint_every_s=0.2)):
    sys.stdin.read()
"""


def read_all(connection: StatusConnection, since: int = 0) -> StatusAnswer:
    """Return the newest report, and all records from a number on."""
    answer = connection.read(PATIENCE_S, since)
    records = answer.records
    while answer.records:
        answer = connection.read(PATIENCE_S, answer.next_record)
        records = records + answer.records
    return StatusAnswer(answer.report, records, answer.next_record)


def await_update(connection: StatusConnection, update: int, since: int = 0) -> StatusAnswer:
    """Wait until the records from a number on have an update, and return them."""

    def seen() -> StatusAnswer | None:
        answer = read_all(connection, since)
        return answer if update in updates(answer) else None

    return until(seen, f"update {update}", every_s=READ_S)


def updates(answer: StatusAnswer, client_id: str = "lab") -> list[int]:
    return [record["update"] for record in answer.records if (record["event"], record.get("client_id")) == ("metrics", client_id)]


def trained(address: str, client_id: str = "lab", **options: Any) -> None:
    """Train a client with one episode of 64 steps, which gives four versions."""
    with open_agent(address, client_id, algorithm_name="FAKE", overflow="wait", **options) as agent:
        play(agent, 64)
        agent.flush(PATIENCE_S)


def test_a_reader_follows_a_training_over_one_connection(lab: Lab) -> None:
    learner = lab.learner()
    agent = lab.agent(learner, overflow="wait")
    with StatusConnection(learner.address) as connection:
        assert connection.read(PATIENCE_S).records == []
        assert connection.read(PATIENCE_S, 0).records[0]["event"] == "learner_started"
        Lab.episode(agent, 64)
        first = await_update(connection, 4)
        assert {"client_started", "client_ready", "actor_joined", "metrics"} <= {record["event"] for record in first.records}
        assert [record["t"] for record in first.records] == sorted(record["t"] for record in first.records)
        assert any(record["scalars"].get("charts/episodes") == 1 for record in first.records if record["event"] == "metrics")
        Lab.episode(agent, 64)
        later = await_update(connection, 8, first.next_record)
        assert min(updates(later)) > max(updates(first))
        assert later.report["started_unix_s"] == first.report["started_unix_s"]
        assert connection.read(PATIENCE_S, later.next_record).records == []


def test_with_keys_only_an_admin_gets_records_and_only_of_own_clients(tmp_path: Path) -> None:
    write_keys(tmp_path, {"admin": ["admin"], "actor": ["submit", "read_weights"], "own": ["admin"]})
    users = tmp_path / "users.toml"
    head, own = users.read_text().split("[own]")
    users.write_text(head + "[own]" + own.replace("['*']", "['lab']"))
    with Learner(LearnerConfig(bind=TCP, run_dir=None, keys=tmp_path)) as learner, ExitStack() as stack:
        for client_id in ("lab", "luna"):
            trained(learner.address, client_id, keys=tmp_path / "actor.keys")
        admin, actor, own_admin = (
            stack.enter_context(StatusConnection(learner.address, read_user_keys(tmp_path / f"{name}.keys")[1]))
            for name in ("admin", "actor", "own")
        )
        until(lambda: 4 in updates(read_all(admin), "luna"), every_s=READ_S)
        seen = await_update(own_admin, 4)
        assert set(seen.report["clients"]) == {"lab"}
        assert {record.get("client_id", "lab") for record in seen.records} == {"lab"}
        with raising(ProtocolError, "does not have the role admin", code=RefusalReason.FORBIDDEN):
            actor.read(PATIENCE_S, 0)


def test_ten_readers_at_once_get_the_same_records(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(TCP)
    trained(learner.address)
    with StatusConnection(learner.address) as connection:
        whole = await_update(connection, 4)
    found: list[Any] = []

    def reads() -> None:
        with StatusConnection(learner.address) as connection:
            since, records = 0, list[dict[str, Any]]()
            while since < whole.next_record:  # a busy learner may send none
                answer = connection.read(PATIENCE_S, since)
                records, since = records + answer.records, answer.next_record
            found.append(records[: len(whole.records)])

    readers = [threading.Thread(target=reads) for _ in range(10)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert found == [whole.records] * 10


def test_a_learner_that_was_killed_continues_its_history(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", PROCESS, address, str(tmp_path / "run")]
    with (
        Child("learner", command, tmp_path, env={"PYTHONPATH": PYTHONPATH}) as child,
        StatusConnection(address) as connection,
    ):
        child.start()
        trained(address, connect_timeout_s=PATIENCE_S)
        log = tmp_path / "run" / "log.jsonl"
        before = await_update(connection, 4)
        until(lambda: log.read_text().count('"metrics"') >= len(updates(before)), "the log on disk")
        child.kill()
        with pytest.raises(LearnerUnavailable):
            connection.read(0.05)
        child.start()
        after = until(lambda: again(connection), every_s=READ_S)
        assert after.report["started_unix_s"] > before.report["started_unix_s"]
        assert updates(after)[: len(updates(before))] == updates(before)
        assert sum(record["event"] == "learner_started" for record in after.records) == 2


def again(connection: StatusConnection) -> StatusAnswer | None:
    try:
        return read_all(connection)
    except LearnerUnavailable:
        return None


@contextmanager
def answering(*replies: StatusReply | None) -> Iterator[str]:
    """Answer requests in a thread, and yield its address. None: the answer comes late, before that to the next request."""
    address: queue.Queue[str] = queue.Queue()
    asked: list[Any] = []

    def serve() -> None:
        late: bytes | None = None
        with Socket.router(TCP) as router:
            address.put(router.bound.uri)
            for reply in replies:
                peer, *frames = until(router.recv, f"a request for {reply}")
                asked.append(decode(frames))
                if reply is None:
                    late = bytes(peer)
                    continue
                if late is not None:
                    router.send([late, *encode(LATE)])
                router.send([bytes(peer), *encode(reply)])
            until(lambda: stopped.is_set(), "the end of the test")

    stopped = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address.get(timeout=PATIENCE_S)
    finally:
        stopped.set()
        thread.join(PATIENCE_S)
    assert asked == [StatusRequest(3)] * len(replies)


LATE = StatusReply({"late": 1}, (b'{"next_record": 9, "records": [{"event": "late"}]}',))


def test_a_late_or_wrong_answer_costs_its_request_and_not_the_next() -> None:
    wrong = {
        b"{": "cannot be read",
        b'{"records": []}': "cannot be read",
        b'{"records": [7], "next_record": 1}': "not a list of records",
        b'{"records": [], "next_record": "1"}': "not a list of records",
    }
    good = StatusReply({"x": 1}, (b'{"next_record": 4, "records": [{"event": "new"}]}',))
    replies = (good, None, *(StatusReply({}, (body,)) for body in wrong), good, StatusReply({"x": 2}))
    with answering(*replies) as address, StatusConnection(address) as connection:
        assert connection.read(PATIENCE_S, 3) == StatusAnswer({"x": 1}, [{"event": "new"}], 4)
        with pytest.raises(LearnerUnavailable):
            connection.read(0.5, 3)
        for words in wrong.values():
            with raising(ProtocolError, words, code=RefusalReason.MALFORMED):
                connection.read(PATIENCE_S, 3)
        assert connection.read(PATIENCE_S, 3) == StatusAnswer({"x": 1}, [{"event": "new"}], 4)
        assert connection.read(PATIENCE_S, 3) == StatusAnswer({"x": 2}, [], 3), "a relay has no history"
