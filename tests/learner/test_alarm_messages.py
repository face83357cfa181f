"""Messages about alarms: to a webhook and a command that take them, refuse them, hang or do not exist."""

import json
import os
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit import free_port, open_agent, play, raising, until

from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.config import AlarmsConfig
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.run import alarm_messages
from rl4sys_zmq.learner.run.alarm_messages import MAX_CHARS, AlarmSender, message
from rl4sys_zmq.learner.run.record_thread import QUEUE_RECORDS
from rl4sys_zmq.testing import FakeAlgorithm

BELL = '#!/bin/sh\ncat >> "$0.messages"\necho >> "$0.messages"\n'


class Receiver(ThreadingHTTPServer):
    """A receiver of messages that answers with a status, or, with the status 0, not before `released` is set."""

    daemon_threads = False

    def __init__(self, status: int = 204) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.taken, self.released = status, queue.Queue[Any](), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/hook/secret"
        self._thread = threading.Thread(target=self.serve_forever, name="receiver")
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.put((self.path, self.headers["Content-Type"], json.loads(body)))
        if not self.server.status:
            self.server.released.wait(60)
            return
        self.send_response(self.server.status)
        if self.server.status in (302, 307):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    receiver = Receiver(getattr(request, "param", 204))
    yield receiver
    receiver.close()


def program(folder: Path, text: str) -> Path:
    path = folder / "bell"
    path.write_text(text)
    path.chmod(0o755)
    return path


def messages(command: Path) -> list[dict[str, Any]]:
    found = Path(f"{command}.messages")
    return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


@pytest.fixture
def make_sender() -> Iterator[Any]:
    made: list[AlarmSender] = []

    def make(*, start: bool = True, **options: Any) -> AlarmSender:
        made.append(AlarmSender(AlarmsConfig(**options), None))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for sender in made:
        sender.stop()
        assert sender.join(30)
        sender.raise_if_dead()


def has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def counts(sender: AlarmSender) -> Mapping[str, int]:
    return sender.counters.snapshot()


def test_a_failed_client_and_an_alarm_reach_both_receivers(tmp_path: Path, receiver: Receiver) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no \x1b[31m torch")

    register_algorithm("BREAKS", breaks)
    register_algorithm("SOUND", FakeAlgorithm.factory(steps_per_update=8))
    command = program(tmp_path, BELL)
    alarms = AlarmsConfig(webhook=receiver.url, command=command)
    config = LearnerConfig(bind=f"ipc://{tmp_path}/learner", run_dir=tmp_path / "run", alarms=alarms)
    with Learner(config) as learner:
        with raising(HandshakeRefused), open_agent(learner, "luna", algorithm_name="BREAKS"):
            pass
        until(lambda: learner.status()["alarm_messages"].get("sent") == 2, learner.status)
        with open_agent(learner, "mars", algorithm_name="SOUND") as agent:
            play(agent, 8, reward=1e13)
            until(lambda: learner.status()["alarm_messages"].get("sent") == 4, learner.status)
        assert "failed" not in learner.status()["alarm_messages"]
    path, kind, first = receiver.taken.get_nowait()
    assert (path, kind) == ("/hook/secret", "application/json")
    assert first["event"] == "client_failed" and first["fields"]["client_id"] == "luna"
    assert "client luna: client_failed: " in first["text"] and "\x1b" not in first["text"]
    second = receiver.taken.get_nowait()[2]
    assert (second["event"], second["fields"]["alarm"], second["left_out"]) == ("alarm", "segment_quarantined", 0)
    assert messages(command) == [first, second]


@pytest.mark.parametrize(("receiver", "said"), [(500, "HTTP 500"), (302, "redirect is not followed")], indirect=["receiver"])
def test_a_refusal_is_counted_and_logged(
    receiver: Receiver, said: str, make_sender: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender = make_sender(webhook=receiver.url)
    sender.event("client_failed", client_id="luna", error="x")
    until(lambda: counts(sender) == {"failed": 1}, sender.counters.snapshot)
    until(lambda: said in caplog.text, lambda: caplog.text)
    assert "secret" not in caplog.text
    assert receiver.taken.qsize() == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\nkill -9 $$\n", "SIGKILL"),
        (None, "No such file"),
        ("x", "Exec format"),
    ],
)
def test_a_command_that_fails_is_counted(
    text: str | None, said: str, make_sender: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sender = make_sender(command=program(tmp_path, text) if text is not None else tmp_path / "absent")
    sender.event("alarm", alarm="stalled", client_id="luna", count=1, text="x")
    until(lambda: counts(sender) == {"failed": 1}, sender.counters.snapshot)
    until(lambda: said in caplog.text, lambda: caplog.text)


@pytest.mark.parametrize("receiver", [0], indirect=True)
def test_receivers_that_hang_are_given_up_and_a_command_is_killed_with_its_children(
    receiver: Receiver, make_sender: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_messages, "SEND_S", 0.5)
    command = program(tmp_path, '#!/bin/sh\nsleep 600 &\necho $$ $! > "$0.pids"\nwait\n')
    sender = make_sender(webhook=receiver.url, command=command)
    sender.event("client_failed", client_id="luna", error="x")
    until(lambda: counts(sender).get("failed") == 2, sender.counters.snapshot)
    for pid in Path(f"{command}.pids").read_text().split():
        until(partial(has_ended, pid))


@pytest.mark.parametrize("receiver", [0], indirect=True)
def test_a_receiver_that_hangs_does_not_hold_up_the_end(receiver: Receiver, make_sender: Any) -> None:
    sender = make_sender(webhook=receiver.url)
    for i in range(3):
        sender.event("client_failed", client_id=f"c{i}", error="x")
    receiver.taken.get(timeout=60)
    sender.stop()
    assert sender.join(30)
    assert counts(sender) == {"failed": 1, "records_dropped": 2}


def test_nobody_listens(make_sender: Any, caplog: pytest.LogCaptureFixture) -> None:
    sender = make_sender(webhook=f"http://127.0.0.1:{free_port()}/")
    sender.event("client_failed", client_id="luna", error="x")
    until(lambda: counts(sender) == {"failed": 1}, sender.counters.snapshot)
    until(lambda: "Connection refused" in caplog.text, lambda: caplog.text)


def test_a_flood_is_one_message_of_a_kind_and_client_and_the_next_has_the_number_between(
    make_sender: Any, tmp_path: Path
) -> None:
    command = program(tmp_path, BELL)
    sender = make_sender(command=command, every_s=3600)
    for i in range(50):
        sender.event("alarm", alarm="stalled", client_id="luna", count=i, text="x")
    sender.event("alarm", alarm="other", client_id="luna", count=1, text="x")
    sender.event("alarm", alarm="stalled", client_id="mars", count=1, text="x")
    sender.event("actor_joined", client_id="luna", actor_id="a")
    until(lambda: counts(sender) == {"sent": 3, "left_out": 49}, sender.counters.snapshot)
    for entry in sender._sent.values():
        entry[0] -= 3600
    sender.event("alarm", alarm="stalled", client_id="luna", count=51, text="x")
    until(lambda: counts(sender).get("sent") == 4, sender.counters.snapshot)
    assert [(m["fields"]["client_id"], m["left_out"]) for m in messages(command)] == [
        ("luna", 0),
        ("luna", 0),
        ("mars", 0),
        ("luna", 49),
    ]


def test_the_queue_is_bounded_and_passing_an_event_on_never_waits(make_sender: Any, tmp_path: Path) -> None:
    sender = make_sender(command=tmp_path / "absent", start=False)
    for i in range(QUEUE_RECORDS + 7):
        sender.event("gap", client_id=f"c{i}", actor_id="a", segments=1)
    assert counts(sender) == {"records_dropped": 7}


def test_a_message_is_bounded_json_whatever_the_fields_are() -> None:
    made = message("client_failed", {"client_id": "luna", "error": "é\ud800" * 10**6, "more": {"a": [1]}}, 1.5, Path("runs/x"), 3)
    assert len(json.dumps(made)) < 16 * MAX_CHARS
    assert (made["t"], made["run_dir"], made["left_out"], made["host"]) == (1.5, "runs/x", 3, socket.gethostname())
    assert made["text"].endswith("(3 more in between)")


@pytest.mark.parametrize(
    "address",
    [
        "ftp://a/b",
        "file:///etc/passwd",
        "http://",
        "//a",
        "http://u:p@a/",
        "http://a/\n",
        3,
        "x",
        "http://[a/",
        "http://a:99999/",
    ],
)
def test_an_address_that_is_not_of_the_web_is_refused(address: Any) -> None:
    with raising(ConfigError, "http"):
        AlarmsConfig(webhook=address)


def test_a_file_without_a_receiver_is_refused() -> None:
    with raising(ConfigError, "no receiver"):
        LearnerConfig.from_mapping({"alarms": {"every_s": 3}})


def test_the_command_that_tests_the_receivers_says_what_each_did(tmp_path: Path, receiver: Receiver) -> None:
    file, command = tmp_path / "learner.json", program(tmp_path, BELL)
    file.write_text(json.dumps({"alarms": {"webhook": receiver.url, "command": str(command)}}))
    done = CliRunner().invoke(main, ["alarm-test", str(file)])
    assert done.output == f"webhook at 127.0.0.1: delivered\ncommand {command}: delivered\n" and done.exit_code == 0
    assert receiver.taken.get_nowait()[2]["event"] == messages(command)[0]["event"] == "alarm_test"
    os.remove(command)
    done = CliRunner().invoke(main, ["alarm-test", str(file)])
    assert done.exit_code == 1 and "No such file" in done.output
    file.write_text("{}")
    done = CliRunner().invoke(main, ["alarm-test", str(file)])
    assert done.exit_code == 2 and "set alarms.webhook" in done.output
