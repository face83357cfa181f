"""Tests of the learner's core without sockets. They deliver messages of actors and learner threads, and check the answers."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.journal import JournalEntry, JournalPage, MemoryJournal
from rl4sys_zmq.errors import ClientFailed, ConfigError, RefusalReason, TransportError
from rl4sys_zmq.interfaces import Journal
from rl4sys_zmq.learner.gateway.client_worker import MAX_FAILED_STARTS
from rl4sys_zmq.learner.gateway.core import LearnerCore
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.operator import DROP_ACTOR, FORGET, RESTART, SET
from rl4sys_zmq.learner.run.history import History
from rl4sys_zmq.learner.run.recorder import NullEventSink
from rl4sys_zmq.learner.training.reporting import GatewaySender
from rl4sys_zmq.liveness import BEACON_TOPIC, NEWCOMER_BEACON_S, WEIGHTS_TOPIC
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment, space_to_json
from rl4sys_zmq.weights import EncodingOptions, digest, encode_update
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment, spec_to_document
from rl4sys_zmq.wire.messages import (
    Ack,
    Beacon,
    Bye,
    FetchWeights,
    FollowWeights,
    Frame,
    Heartbeat,
    Hello,
    Message,
    OperatorCommand,
    Refused,
    StatusReply,
    StatusRequest,
    Verdict,
    WeightsReply,
    Welcome,
)
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    ChangeWeightsLevel,
    CheckpointResult,
    DataDemand,
    PolicyPublished,
    SaveCheckpoint,
    SegmentVerdicts,
    ThreadFailed,
    ThreadMessage,
    ThreadReady,
    WorkerMessage,
    decode_thread_message,
    frames_of,
)

SPEC = mlp_spec(BoxSpace((1,)), DiscreteSpace(2), "categorical", ())
FLAT = np.zeros(SPEC.size, np.float32)


@dataclass
class FakeWorker:
    """A fake learner thread, which records the messages that it receives."""

    key: bytes
    given: list[ThreadMessage] = field(default_factory=list)
    alive: bool = True
    full: bool = False
    ended: list[bool] = field(default_factory=list)
    crash: str = ""
    failure: ThreadFailed | None = None
    silent_s: float = 0.0

    def send(self, message: WorkerMessage) -> bool:
        if not self.full:
            self.given.append(decode_thread_message(frames_of(message)))
        return not self.full

    def end(self, *, replaced: bool) -> None:
        self.ended.append(replaced)
        self.alive = False

    def join(self, timeout_s: float | None = None) -> bool:
        return not self.alive

    def abort(self) -> bool:
        return not self.alive

    def describe(self) -> dict[str, Any]:
        return {"engine": "fake"}


class FakeDisk(MemoryJournal):
    """A journal that commits only in `commit`, and has nothing to replay."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[JournalEntry] = []

    def append(self, batch: Sequence[JournalEntry]) -> None:
        self.waiting.extend(batch)

    def commit(self) -> None:
        fresh, self.waiting = self.waiting, []
        self._fresh.extend(fresh)

    def queued(self, client_id: str) -> int:
        return len(self.waiting)

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        self._fresh.append(JournalPage(client_id, token, (), after_row, False, 0))


class Events(NullEventSink):
    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.names.append(name)


class Rig:
    """A core with one client ``lab``, a clock that the test sets, and a record of the messages that the core sends."""

    def __init__(self, journal: Journal | None = None, **options: Any) -> None:
        self.now, self.host = 100.0, ""
        self.workers: list[FakeWorker] = []
        self.published: list[Message | bytes] = []
        self.forgotten: list[str] = []
        self.gone: set[bytes] = set()
        self._sent: list[tuple[bytes, Message]] = []
        self.sink, self.history = Events(), History()
        callbacks = CoreCallbacks(
            monotonic=lambda: self.now,
            unix=lambda: 1e9 + self.now,
            send=self._send,
            publish=lambda topic, frames: self.published.append(topic if topic[:1] == b"W" else decode(frames)),
            start_worker=self._start,
            poll_workers=lambda: None,
            abandon_checkpoints=lambda *_: pytest.fail("nothing has checkpoints here"),
            offer_policy=lambda client: False,
            forget_policy=self.forgotten.append,
            status=lambda: self.core.report(self.now),
            history=self.history.since,
            sender_host=lambda: self.host,
        )
        spaces = {"observation_space": space_to_json(SPEC.observation_space), "action_space": space_to_json(SPEC.action_space)}
        clients = {"lab": {"algorithm_name": "PPO", **spaces}}
        config = LearnerConfig.from_mapping({"bind": "inproc://rig", "run_dir": None, "clients": clients, **options})
        self.core = LearnerCore(config, journal or MemoryJournal(), self.sink, Authorizer(None), callbacks)
        self.core.actor_sessions.pub_address = self.core.actor_sessions.inference_address = "inproc://rig"

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> SendResult:
        if peer in self.gone:
            return SendResult.GONE
        self._sent.append((peer, decode(frames)))
        return SendResult.OK

    def _start(self, assign: AssignClient, key: bytes) -> FakeWorker:
        self.workers.append(FakeWorker(key))
        return self.workers[-1]

    @property
    def worker(self) -> FakeWorker:
        return self.workers[-1]

    @property
    def client(self) -> Any:
        return self.core.registry.get("lab")

    def say(self, message: Message, peer: bytes = b"p") -> list[Message]:
        """Deliver an actor's message, and return the answers to this peer."""
        self.core.actor_sessions.receive(peer, None, encode(message), self.now)
        return self.answers(peer)

    def answers(self, peer: bytes = b"p") -> list[Message]:
        found = [message for to, message in self._sent if to == peer]
        self._sent = [(to, message) for to, message in self._sent if to != peer]
        return found

    def words(self, *messages: ThreadMessage, worker: FakeWorker | None = None) -> None:
        """Deliver messages of a learner thread."""
        for message in messages:
            self.core.on_worker([(worker or self.worker).key, *encode(message)])

    def report(self, message: ThreadMessage) -> None:
        """Deliver a message of the learner thread as its own sender encodes it."""

        def send_wait(frames: Sequence[Frame], timeout_s: float | None) -> bool:
            self.core.on_worker(frames)
            return True

        socket: Any = SimpleNamespace(send_wait=send_wait)
        GatewaySender(socket, self.worker.key, threading.Event()).send(message)

    def turn(self, peer: bytes = b"p") -> list[Message]:
        self.core.dispatcher.dispatch()
        self.core.turn()
        return self.answers(peer)

    def later(self, seconds: float = 10.0) -> None:
        """Let some time pass, and run a turn."""
        self.now += seconds
        self.turn()

    def ready(self, checkpoint: int = 0, marks: Sequence[Any] = (), trained: int = 0) -> None:
        """Let the learner thread report the checkpoint that it continues from, and publish version 0."""
        self.core.dispatcher.dispatch()
        assign = self.worker.given[0]
        assert isinstance(assign, AssignClient)
        snapshot = PolicySnapshot(assign.generation, 0, digest(FLAT), FLAT)
        header, _ = encode_update(assign.policy_id, None, snapshot, EncodingOptions())
        self.words(
            ThreadReady(spec_to_document(SPEC), "onpolicy", 16, -1, checkpoint, list(marks), {"trained": trained}, []),
            PolicyPublished(0, snapshot.digest, (FLAT.view(np.uint8).data, header)),
        )
        self.core.dispatcher.dispatch()
        self.core.turn()

    def join(self, peer: bytes = b"p", **kwargs: Any) -> Welcome:
        """Let an actor join, and return the WELCOME. If the learner thread is not ready so far, let it become ready."""
        answers = self.say(hello(**kwargs), peer)
        if not answers:
            self.ready()
            answers = self.answers(peer)
        welcome = answers[0]
        assert isinstance(welcome, Welcome)
        return welcome


@pytest.fixture
def rig() -> Rig:
    """Return a rig whose actor has joined."""
    made = Rig()
    made.join()
    return made


def hello(actor_id: str = "a", incarnation: int = 1, first_seq: int = 0, **kwargs: Any) -> Hello:
    return Hello("lab", actor_id, incarnation, first_seq, 0, 0, **kwargs)


def submit(first_seq: int, count: int = 1, want_steps: int = 0) -> Message:
    rows = np.zeros(2, np.float32)
    columns = np.zeros((2, 1), np.float32), np.zeros(2, np.int64), rows, rows, np.zeros(2, np.uint64)
    segments = [pack_segment(Segment(*columns, None, 1, first_seq + n, 0, True, False, False, 0.0, 2)) for n in range(count)]
    return join_submit(first_seq, want_steps, segments)


def only(messages: Sequence[Any], kind: type[Any]) -> Any:
    assert [type(message) for message in messages] == [kind]
    return messages[0]


def test_a_hello_waits_for_the_learner_thread_and_is_welcomed_then() -> None:
    rig = Rig()
    assert rig.say(hello()) == []
    assert rig.worker.given == []
    rig.turn()
    assert only(rig.worker.given, AssignClient).client_id == "lab"
    rig.ready()
    welcome = rig.answers()[0]
    assert isinstance(welcome, Welcome)
    assert (welcome.received, welcome.durable, welcome.gap) == (0, 0, 0)
    assert rig.client.state == "running"


def test_a_session_comes_first(rig: Rig) -> None:
    refused = only(rig.say(submit(0), b"stranger"), Refused)
    assert refused.code == RefusalReason.NO_SESSION
    rig.core.actor_sessions.receive(b"stranger", None, [b"garbage"], rig.now)
    assert only(rig.answers(b"stranger"), Refused).code == RefusalReason.MAGIC
    assert rig.core.counters.snapshot()["refused.no_session"] == 1


def test_what_contradicts_the_client_is_refused_by_its_field(rig: Rig) -> None:
    refused = only(rig.say(hello("b", algorithm_name="DQN"), b"q"), Refused)
    assert (refused.code, refused.field) == (RefusalReason.MISMATCH, "algorithm_name")
    nameless = only(rig.say(Hello("other", "a", 1, 0, 0, 0), b"r"), Refused)
    assert (nameless.code, nameless.field) == (RefusalReason.CONFIG, "algorithm_name")
    rig.say(hello("b", algorithm_name="DQN"), b"q")
    assert rig.sink.names.count("hello_refused") == 2, "each refusal once"


def test_a_refusal_reaches_its_actor_however_long_the_values_are(rig: Rig) -> None:
    other = {"type": "Box", "shape": [3000], "low": [-n / 7 for n in range(3000)]}
    refused = only(rig.say(hello("b", observation_space=other), b"q"), Refused)
    assert (refused.code, refused.field) == (RefusalReason.MISMATCH, "observation_space")
    assert "on the learner, but the actor has" in refused.reason
    refused = only(rig.say(hello("b", algorithm_parameters={"x" * 9_000: "y" * 9_000}), b"q"), Refused)
    assert refused.code == RefusalReason.MISMATCH
    rig.core.actor_sessions.refuse(b"q", RefusalReason.FAILED, "\N{SNOWMAN}" * 20_000)
    assert only(rig.answers(b"q"), Refused).reason == "\N{SNOWMAN}" * 4_000


def test_hellos_that_wait_for_a_learner_thread_are_bounded() -> None:
    rig = Rig(max_actors=3)
    for n in range(50):
        rig.say(hello(f"invented {n}"), b"%d" % n)
        rig.say(hello("steady"), b"p")
    assert len(rig.client.waiting) == 3
    assert only(rig.say(hello("steady"), b"p"), Refused).code == RefusalReason.STARTING
    rig.ready()
    assert isinstance(rig.answers(b"p")[0], Welcome)


def test_a_second_start_gets_in_when_the_first_is_silent_and_takes_its_session(rig: Rig) -> None:
    assert only(rig.say(hello(incarnation=2), b"q"), Refused).code == RefusalReason.CONFLICT
    rig.now += 3.5
    rig.core.each_second(rig.now)
    assert "actor_silent" in rig.sink.names
    rig.join(b"q", incarnation=2)
    assert only(rig.say(submit(0)), Refused).code == RefusalReason.NO_SESSION


@pytest.mark.parametrize(("behind_s", "early_s", "late_s"), [(1.0, 3.5, 4.1), (60.0, 12.0, 13.5)])
def test_an_actor_whose_messages_can_wait_is_not_silent(rig: Rig, behind_s: float, early_s: float, late_s: float) -> None:
    """An overloaded learner reads late. It ends the session of an actor if the silence outlasts its own delay, or 10 s of it."""
    began = rig.now
    rig.core.each_second(began + early_s, behind_s=behind_s)
    assert "actor_silent" not in rig.sink.names
    rig.core.each_second(began + late_s, behind_s=behind_s)
    assert "actor_silent" in rig.sink.names


def test_the_blob_of_a_policy_is_sent_to_those_who_do_not_hold_it() -> None:
    rig = Rig()
    generation = rig.join().generation
    rig.client.publishing.spec_body = (b"graph",)
    for held, body in ((0, (b"graph",)), (generation - 1, (b"graph",)), (generation, ())):
        answer = rig.say(Hello("lab", f"a{held}", 1, 0, held, 0), b"q%d" % held)[0]
        assert isinstance(answer, Welcome)
        assert answer.body == body


def test_credit_follows_the_demand_and_goes_back_with_a_silent_actor(rig: Rig) -> None:
    rig.words(DataDemand(16, 0, 0))
    rig.say(Heartbeat(16))
    assert only(rig.turn(), Ack).credit_steps == 16
    rig.now += 3.5
    rig.core.each_second(rig.now)
    assert rig.client.pool.free_steps == 16
    assert rig.client.table.live() == []


def test_a_gateway_that_was_suspended_grants_credit_again_soon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.words(DataDemand(16, 0, 0))
    grant = rig.client.pool.grant

    def suspended(*arguments: Any) -> Any:
        rig.now += 0.25
        return grant(*arguments)

    monkeypatch.setattr(rig.client.pool, "grant", suspended)
    rig.say(Heartbeat(8))
    assert only(rig.turn(), Ack).credit_steps == 8
    rig.say(Heartbeat(16))
    assert rig.turn() == []
    assert rig.core.poll_timeout_s(rig.now, 1.0) <= 0.1
    rig.now += 0.1
    assert only(rig.turn(), Ack).credit_steps == 16


def test_a_peer_that_is_gone_loses_its_session(rig: Rig) -> None:
    rig.gone.add(b"p")
    rig.say(submit(0))
    rig.turn()
    assert rig.core.actor_sessions.sessions == {}
    assert rig.core.counters.snapshot()["replies_dropped.gone"] == 1


def test_weights_are_answered_from_memory_and_a_status_too(rig: Rig) -> None:
    only(rig.say(FetchWeights(0, 0)), WeightsReply)
    status = only(rig.say(StatusRequest()), StatusReply)
    assert status.report["clients"]["lab"]["state"] == "running"


def test_an_actor_that_asks_again_learns_that_its_client_is_starting() -> None:
    rig = Rig()
    assert rig.say(hello()) == []
    rig.now += 4.0
    assert rig.say(hello("b"), b"q") == [], "its first HELLO"
    again = only(rig.say(hello()), Refused)
    assert (again.code, again.reason) == (RefusalReason.STARTING, "client 'lab' has been starting for 4 s")
    assert not [name for name in rig.core.counters.snapshot() if name.startswith("refused.")]
    rig.ready()
    assert isinstance(rig.answers()[0], Welcome) and isinstance(rig.answers(b"q")[0], Welcome)


def test_the_address_of_an_actor_is_that_of_its_connection_also_if_it_had_to_wait() -> None:
    rig = Rig()
    for host, peer, name in (("10.0.0.7", b"p", "a"), ("", b"q", "b")):
        rig.host = host
        rig.say(hello(name), peer)
    rig.host = "10.0.0.8"
    rig.ready()
    rig.join(b"r", actor_id="c")
    shown = {name: actor["address"] for name, actor in rig.client.report(rig.now)["actors"].items()}
    assert shown == {"a": "10.0.0.7", "b": "", "c": "10.0.0.8"}


def test_a_learner_whose_statuses_took_long_repeats_the_last_one_without_records(rig: Rig) -> None:
    builds: list[int] = []

    def slow_status() -> dict[str, Any]:
        builds.append(len(builds))
        rig.now += 0.1
        return {"builds": len(builds), "clients": {}}

    rig.core.actor_sessions._callbacks = replace(rig.core.actor_sessions._callbacks, status=slow_status)
    rig.history.add({"t": 1.0, "event": "alarm"})
    replies = [only(rig.say(StatusRequest(0)), StatusReply) for _ in range(3)]
    assert [(reply.report["builds"], bool(reply.body)) for reply in replies] == [(1, True), (1, False), (1, False)]
    assert json.loads(bytes(replies[0].body[0])) == {"next_record": 1, "records": [{"t": 1.0, "event": "alarm"}]}
    rig.now += 2.0
    late = only(rig.say(StatusRequest(1)), StatusReply)
    assert late.report["builds"] == 2 and json.loads(bytes(late.body[0])) == {"next_record": 1, "records": []}
    rig.now += 3.0
    assert not only(rig.say(StatusRequest()), StatusReply).body


def test_a_restarted_thread_begins_a_generation_and_the_old_one_is_not_heard(rig: Rig) -> None:
    rig.say(submit(0))
    rig.turn()
    old, generation = rig.worker, rig.client.publishing.history.generation
    done = rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    assert only([m for m in rig.answers() if isinstance(m, Refused)], Refused).code == RefusalReason.NO_SESSION
    assert (old.ended, rig.client.books.rolled_back) == ([True], 1)
    rig.words(SegmentVerdicts("a", 1, [[0, 1]], Verdict.TRAINED, "", ""), ThreadFailed("too late", ""), worker=old)
    assert rig.client.books.verdicts["trained"] == 0
    assert not done.done()
    rig.ready()
    rig.turn()
    assert done.result(0).figures["generation"] > generation
    assert rig.join(previously_welcomed=True).received == 1


def test_a_thread_that_continues_with_many_streams_is_heard() -> None:
    """The learner keeps the numbering of up to 65,536 actors with a spool, for as long as the run directory exists."""
    rig = Rig(FakeDisk())
    rig.say(hello())
    marks = [[f"{n:032x}", 1 << 60, 123_456, {"trained": 123_456}] for n in range(70_000)]
    rig.report(ThreadReady(spec_to_document(SPEC), "offpolicy", 16, -1, 7, marks, {"trained": 0}, []))
    assert (rig.client.error, rig.client.checkpoints.newest.number) == ("", 7)
    rig.report(CheckpointResult(0, 8, 0, [mark[:3] for mark in marks], 0.1, ""))
    assert (rig.client.error, rig.client.checkpoints.newest.number) == ("", 8)


def test_a_status_that_is_too_long_names_fewer_actors() -> None:
    rig = Rig(max_actors=200)
    for n in range(100):
        rig.join(b"%d" % n, actor_id=f"{n:032x}")
    rig.say(Bye(), b"0")
    report = rig.client.report(rig.now)
    clients = {f"client {n}": {**report} for n in range(64)}
    rig.core.actor_sessions._callbacks = replace(rig.core.actor_sessions._callbacks, status=lambda: {"clients": clients})
    shown = only(rig.say(StatusRequest()), StatusReply).report["clients"]["client 3"]
    assert shown["actors_total"] == 100 and 20 < len(shown["actors"]) < 60
    assert all(actor["live"] for actor in shown["actors"].values())


def test_the_status_has_the_newest_checkpoint() -> None:
    rig = Rig(FakeDisk())
    rig.join()

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = rig.client.report(rig.now)["checkpoint"]
        return {name: found[name] for name in ("number", "version", "age_s", "error")}

    assert shown() == {"number": 0, "version": 0, "age_s": None, "error": ""}
    rig.words(CheckpointResult(0, 12, 50, [], 0.0, ""))
    rig.now += 2.0
    rig.words(CheckpointResult(0, 0, 0, [], 0.0, "no space"))
    assert shown() == {"number": 12, "version": 50, "age_s": 2.0, "error": "no space"}
    rig.words(CheckpointResult(0, 13, 60, [], 0.0, ""))
    assert shown() == {"number": 13, "version": 60, "age_s": 0.0, "error": ""}
    rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    rig.ready(checkpoint=12)  # the newest one is damaged; its version is that of the first publication
    rig.client.publishing.history.version = 500
    assert shown() == {"number": 12, "version": 0, "age_s": 0.0, "error": ""}
    rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    rig.ready()
    assert shown() == {"number": 0, "version": 0, "age_s": None, "error": ""}


def test_a_checkpoint_is_asked_for_and_answered(rig: Rig) -> None:
    saved = rig.core.dispatcher.save(partial=True)
    rig.turn()
    asked = rig.worker.given[-1]
    assert isinstance(asked, SaveCheckpoint)
    assert asked.partial
    rig.words(CheckpointResult(asked.token, 0, 0, [], 0.0, "no space"))
    assert saved["lab"].result(0) == "no space"


@pytest.mark.parametrize("words", [ThreadFailed("ValueError: no", ""), Hello("lab", "a", 1, 0, 0, 0), DataDemand(1, 99, 0)])
def test_a_thread_that_fails_or_says_the_impossible_stops_its_client_alone(rig: Rig, words: Any) -> None:
    rig.words(words)
    assert rig.client.state == "failed"
    assert only(rig.say(submit(0))[-1:], Refused).code == RefusalReason.FAILED
    assert isinstance(rig.core.registry.failure("lab"), ClientFailed)


def test_a_thread_that_vanishes_is_noticed_within_a_second(rig: Rig) -> None:
    rig.worker.alive = False
    rig.core.each_second(rig.now + 1)
    assert rig.client.error == "its learner thread ended without an error; see the learner's log"


def test_a_crash_that_the_clock_notices_before_the_engine_is_a_crash(rig: Rig) -> None:
    rig.worker.alive, rig.worker.crash = False, "its process 7 has ended: signal 9 (SIGKILL)"
    rig.core.each_second(rig.now + 1)
    assert rig.client.state == "starting" and rig.core.counters.snapshot()["workers_crashed"] == 1
    rig.core.on_worker_ended(rig.worker.key)
    assert rig.core.counters.snapshot()["workers_crashed"] == 1


def crash(rig: Rig) -> None:
    """Let the client's worker end as if it was killed."""
    rig.worker.alive, rig.worker.crash = False, "its process 7 has ended: signal 9 (SIGKILL)"
    rig.core.on_worker_ended(rig.worker.key)


def test_a_process_that_crashes_gets_a_successor_after_a_pause_that_grows() -> None:
    disk = FakeDisk()
    rig = Rig(disk)
    rig.join()
    for count, pause_s in enumerate((0.2, 0.4, 0.8), 1):
        crash(rig)
        assert only(rig.answers(), Refused).code == RefusalReason.NO_SESSION
        assert (rig.client.state, len(rig.workers)) == ("starting", count)
        assert rig.say(hello()) == []  # the first HELLO waits, and a repeated one is refused
        assert only(rig.say(hello()), Refused).code == RefusalReason.STARTING
        rig.core.each_second(rig.now)
        assert rig.core.poll_timeout_s(rig.now, 60.0) == pytest.approx(pause_s)
        rig.later(0.9 * pause_s)
        assert len(rig.workers) == count
        rig.later(0.2 * pause_s)
        assert len(rig.workers) == count + 1
        rig.ready()
        assert isinstance(rig.answers()[0], Welcome)
    report = rig.client.report(rig.now)
    assert (report["state"], report["restarts"], report["worker"]["crashes"]) == ("running", 3, 3)
    assert "SIGKILL" in report["worker"]["last_crash"] and report["alarms"]["worker_crashed"]["count"] == 3
    rig.now += 60.0
    crash(rig)
    assert rig.core.poll_timeout_s(rig.now, 60.0) == pytest.approx(0.2), "it had worked for a while"


def test_an_actors_long_texts_do_not_fill_the_status() -> None:
    rig = Rig()
    rig.join(library="x" * 10_000, relay="y" * 10_000)
    assert len(str(rig.client.report(rig.now))) < 5_000


def test_a_segment_that_is_committed_after_a_crash_is_no_fault() -> None:
    disk = FakeDisk()
    rig = Rig(disk)
    rig.join()
    rig.say(submit(0))
    crash(rig)
    disk.commit()
    rig.core.each_second(rig.now)
    assert set(rig.client.report(rig.now)["alarms"]) == {"worker_crashed"}


def test_a_process_that_always_crashes_before_it_is_ready_fails_its_client() -> None:
    rig = Rig()
    rig.say(hello())
    for _ in range(4):
        crash(rig)
        rig.later()
        assert rig.client.state == "starting"
    crash(rig)
    assert rig.client.state == "failed" and "5 workers in a row have ended before they were ready" in rig.client.error
    assert "restart it with: rl4sys-learner client ADDRESS lab restart" in str(ClientFailed("lab", rig.client.error))
    assert rig.core.counters.snapshot()["workers_crashed"] == 5
    rig.later()
    assert len(rig.workers) == 5


def test_a_worker_that_cannot_be_started_again_is_tried_as_after_a_crash(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    crash(rig)
    start, errors = rig.core.registry._callbacks.start_worker, [TransportError("no thread"), TransportError("no thread")]

    def fail_twice(assign: AssignClient, key: bytes) -> Any:
        if errors:
            raise errors.pop()
        return start(assign, key)

    object.__setattr__(rig.core.registry._callbacks, "start_worker", fail_twice)
    for _ in range(2):
        assert rig.client.state == "starting"
        rig.later()
        assert rig.client.report(rig.now)["worker"]["last_crash"] == "no worker can be started: no thread"
    rig.later()
    rig.ready()
    assert rig.client.state == "running" and rig.client.worker.crashes == 3
    errors.append(ConfigError("no such engine"))  # type: ignore[arg-type]
    crash(rig)
    rig.later()
    assert rig.client.state == "failed" and rig.client.error == "no worker can be started: no such engine"


def test_an_end_of_a_worker_that_cannot_be_handled_fails_its_client() -> None:
    class Faulty(FakeWorker):
        def end(self, *, replaced: bool) -> None:
            self.ended.append(replaced)
            if len(self.ended) == 1:
                raise LookupError("a fault of the engine")

    rig = Rig()
    rig.join()
    rig.worker.__class__ = Faulty
    crash(rig)
    assert rig.client.state == "failed" and rig.client.error == "LookupError: a fault of the engine"


def test_an_operator_can_restart_or_forget_a_client_that_waits_after_a_crash(rig: Rig) -> None:
    crash(rig)
    rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    assert len(rig.workers) == 2
    rig.later()
    assert len(rig.workers) == 2
    rig.ready()
    crash(rig)
    rig.core.operator.do(OperatorCommand(FORGET, "lab"))
    rig.later()
    assert len(rig.workers) == 2 and rig.client is None


def test_a_restart_is_done_when_a_worker_is_ready_and_not_when_one_crashes(rig: Rig) -> None:
    done = rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    crash(rig)
    rig.later()
    rig.turn()
    assert len(rig.workers) == 3 and not done.done()
    rig.ready()
    assert done.result(0).figures["generation"] == rig.client.publishing.history.generation
    done = rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    for _ in range(MAX_FAILED_STARTS):
        crash(rig)
        rig.later()
    rig.turn()
    with pytest.raises(ClientFailed, match="SIGKILL"):
        done.result(0)


@pytest.mark.parametrize("command", [OperatorCommand(RESTART, "lab"), OperatorCommand(SET, "lab", values={"gamma": 0.5})])
def test_a_command_for_a_client_that_is_forgotten_meanwhile_ends(command: OperatorCommand) -> None:
    rig = Rig()
    rig.say(hello())
    done = rig.core.operator.do(command)
    rig.core.operator.do(OperatorCommand(FORGET, "lab"))
    rig.turn()
    rig.turn()
    with pytest.raises(ConfigError, match="client 'lab'"):
        done.result(0)


def test_the_end_of_a_process_that_was_replaced_means_nothing(rig: Rig) -> None:
    old = rig.worker
    rig.core.operator.do(OperatorCommand(RESTART, "lab"))
    rig.ready()
    old.alive, old.crash = False, "killed"
    rig.core.on_worker_ended(old.key)
    assert (rig.client.state, rig.client.worker.crashes) == ("running", 0)


def test_a_process_that_reports_its_error_at_the_end_fails_its_client(rig: Rig) -> None:
    rig.worker.alive, rig.worker.failure = False, ThreadFailed("ValueError: no", "")
    rig.core.on_worker_ended(rig.worker.key)
    assert (rig.client.state, rig.client.error) == ("failed", "ValueError: no")


def test_a_silent_process_raises_an_alarm(rig: Rig) -> None:
    rig.worker.silent_s = 4.9
    rig.core.each_second(rig.now)
    assert not rig.client.alarms.report()
    rig.worker.silent_s = 5.1
    rig.core.each_second(rig.now)
    assert rig.client.alarms.report()["worker_silent"]["count"] == 1


def test_a_client_that_never_worked_is_forgotten_and_its_actor_told_why() -> None:
    rig = Rig()
    rig.say(hello())
    rig.words(ThreadFailed("no such thing", ""))
    assert only(rig.answers(), Refused).code == RefusalReason.CONFIG
    assert rig.client is None
    assert isinstance(rig.core.registry.failure("lab"), ConfigError)


def test_a_forgotten_client_frees_its_name_when_the_journal_has_heard(rig: Rig) -> None:
    rig.say(submit(0))
    done = rig.core.operator.do(OperatorCommand(FORGET, "lab"))
    assert only([m for m in rig.answers() if isinstance(m, Refused)], Refused).code == RefusalReason.NO_SESSION
    assert only(rig.say(hello()), Refused).code == RefusalReason.CONFLICT
    rig.turn()
    assert done.result(0).figures == {"accepted": 1, "pending": 1, "actors": 1}
    assert rig.forgotten == ["lab"]
    assert rig.say(hello()) == []
    assert len(rig.workers) == 2


def test_a_dropped_actor_may_come_back_as_it_likes() -> None:
    rig = Rig()
    rig.join(incarnation=9)
    done = rig.core.operator.do(OperatorCommand(DROP_ACTOR, "lab", "a"))
    rig.turn()
    assert done.result(0).figures["live"] == 1
    assert rig.join(b"q", incarnation=3).received == 0


def test_a_command_for_nothing_names_what_there_is(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="known names: lab"):
        rig.core.operator.do(OperatorCommand(RESTART, "lob")).result(0)


def test_an_idle_client_goes_and_a_beacon_comes_each_second() -> None:
    rig = Rig(idle_client_s=60.0)
    rig.join()
    rig.core.each_second(rig.now)
    assert isinstance(rig.published[-1], Beacon)
    rig.say(Bye())
    rig.now += 61
    rig.core.each_second(rig.now)
    assert rig.client is None
    assert "client_expired" in rig.sink.names


def test_many_new_subscribers_share_a_beacon(rig: Rig) -> None:
    """Each beacon goes to all subscribers. With one beacon for each of a thousand new ones, this would be 500,000 messages."""
    rig.turn()
    rig.now += 1.0
    rig.published.clear()
    topic = BEACON_TOPIC + rig.client.publishing.topic
    for _ in range(1000):
        rig.core.on_subscribed(rig.client, topic)
    rig.turn()
    assert [type(message) for message in rig.published] == [Beacon], "the first at once, and with them all that came together"
    rig.core.on_subscribed(rig.client, topic)
    rig.turn()
    assert len(rig.published) == 1
    rest_s = rig.core.poll_timeout_s(rig.now, 1.0)
    assert 0 < rest_s <= NEWCOMER_BEACON_S, "the gateway wakes for the next one"
    rig.later(rest_s)
    assert len(rig.published) == 2
    assert rig.core.poll_timeout_s(rig.now, 1.0) == 1.0
    rig.core.on_subscribed(rig.client, WEIGHTS_TOPIC + rig.client.publishing.topic)
    rig.turn()
    assert len(rig.published) == 2, "weights are fetched, not published again"


def told_levels(rig: Rig) -> list[int]:
    """Return the levels of the weights that the learner thread was told, first in its assignment."""
    rig.turn()
    told = [message for message in rig.worker.given if isinstance(message, AssignClient | ChangeWeightsLevel)]
    return [message.weights_level if isinstance(message, AssignClient) else message.level for message in told]


def level(rig: Rig) -> int:
    return int(rig.core.report(rig.now)["clients"]["lab"]["weights_level"])


@pytest.mark.parametrize("host", ["192.168.0.7", "10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"])
def test_weights_are_whole_until_an_actor_is_on_another_machine(host: str) -> None:
    rig = Rig()
    for number, near in enumerate(("", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1")):
        rig.host = near
        rig.join(b"%d" % number, actor_id=f"a{number}")
    assert (told_levels(rig), level(rig)) == ([0], 0)
    rig.host = host
    rig.join(b"far", actor_id="far")
    rig.join(b"farther", actor_id="farther")
    assert (told_levels(rig), level(rig)) == ([0, 1], 1)
    rig.say(Bye(), b"far")
    rig.host = ""
    rig.join(b"near", actor_id="near")
    assert level(rig) == 1, "it stays, since a subscriber needs no session"


def test_an_actor_that_waits_for_the_first_version_counts_too() -> None:
    rig = Rig()
    rig.host = "192.168.0.7"
    rig.say(hello())
    assert told_levels(rig) in ([1], [0, 1]) and level(rig) == 1


def test_a_relay_and_a_distant_follower_end_the_whole_weights(rig: Rig) -> None:
    rig.host = "127.0.0.1"
    rig.say(FollowWeights("lab"), b"f")
    assert told_levels(rig) == [0]
    rig.say(FollowWeights("lab", relay="tcp://10.0.0.1:5555"), b"r")
    assert told_levels(rig) == [0, 1]


@pytest.mark.parametrize("fixed", [0, 1])
def test_a_level_that_was_chosen_stays(fixed: int) -> None:
    rig = Rig(weights={"level": fixed})
    rig.join()
    rig.host = "192.168.0.7"
    rig.join(b"far", actor_id="far")
    assert (told_levels(rig), level(rig)) == ([fixed], fixed)


def test_a_new_learner_thread_begins_at_the_level_in_use(rig: Rig) -> None:
    rig.host = "192.168.0.7"
    rig.join(b"far", actor_id="far")
    rig.words(ThreadFailed("it crashed", "", crashed=True))
    rig.later()
    assert len(rig.workers) == 2 and told_levels(rig) == [1]
