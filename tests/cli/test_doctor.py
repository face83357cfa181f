"""The doctor and the status of real learners, with the faults that an operator may cause."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import Result
from kit import open_agent, until

from rl4sys_zmq import AgentConfig, __version__
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.ops import doctor as module
from rl4sys_zmq.ops.doctor import STAGES, diagnose
from rl4sys_zmq.ops.requests import ask, evaluating_hello
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.transports import Address, Socket, context
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire.messages import Welcome

from .conftest import invoke, output, refused

LUNA = {"client_id": "luna", "algorithm_name": "DOCTOR", "input_size": 4, "act_dim": 2}


@pytest.fixture(autouse=True)
def algorithm() -> None:
    register_algorithm("DOCTOR", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))


def run(*arguments: object, **environment: str) -> Result:
    return invoke(main, *arguments, **environment)


class Visit:
    """The output of one run of the doctor."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        began = time.monotonic()
        result = run("doctor", *arguments, **environment)
        self.took_s = time.monotonic() - began
        assert result.exit_code in (0, 1), result.output
        assert result.stderr == ""
        self.text = result.stdout
        self.states: dict[str, str] = {}
        for line in result.stdout.splitlines():
            stage = line.split(" ", 1)[0]
            if stage in STAGES:
                rest = line[len(max(STAGES, key=len)) + 2 :]
                self.states[stage] = next(s for s in ("ok", "FAIL", "skipped", "not reached") if rest.startswith(s))
        assert tuple(self.states) == STAGES
        assert result.exit_code == ("FAIL" in self.states.values())

    @property
    def failed(self) -> str:
        """The stage that failed. No later stage was tried."""
        stages = [stage for stage, state in self.states.items() if state == "FAIL"]
        if not stages:
            assert "not reached" not in self.states.values()
            return ""
        (stage,) = stages
        after = STAGES[STAGES.index(stage) + 1 :]
        assert all(self.states[s] == "not reached" for s in after)
        return stage


def fails(stage: str, words: str, *arguments: object) -> None:
    """Assert that the doctor finds a fault at this stage, and says so in these words."""
    visit = Visit(*arguments)
    assert visit.failed == stage and words in visit.text, visit.text


@pytest.fixture
def start() -> Iterator[Callable[..., Learner]]:
    """Yield a function that starts a learner. With `luna`, it also starts an actor of the client luna."""
    with ExitStack() as stack:

        def make(*, luna: bool = False, **options: Any) -> Learner:
            learner = stack.enter_context(Learner(LearnerConfig(**{"bind": "tcp://127.0.0.1:0", "run_dir": None, **options})))
            if luna:
                keys: dict[str, Any] = {"keys": Path("k/actor.keys")} if "keys" in options else {}
                stack.enter_context(open_agent(learner, linger_ms=5_000, client_id="luna", algorithm_name="DOCTOR", **keys))
            return learner

        yield make


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a folder with the keys of a learner, of an actor, and of an admin."""
    for arguments in ([], ["--user", "actor"], ["--user", "me", "--role", "admin", "--role", "read_weights"]):
        assert run("keys", "k", *arguments).exit_code == 0
    return tmp_path / "k"


def configured(**changes: object) -> str:
    Path("actor.json").write_text(json.dumps({**LUNA, **changes}))
    return "actor.json"


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc"])
def test_a_learner_without_keys_is_reached_to_the_beacon(start: Callable[..., Learner], tmp_path: Path, bind: str) -> None:
    bind = f"ipc://{tmp_path}/l" if bind == "ipc" else bind
    learner = start(bind=bind, luna=True)
    bare = Visit(learner.address)
    assert bare.failed == ""
    assert bare.states["configuration"] == "skipped"
    assert "accepts the connection" in bare.text
    whole = Visit(learner.address, "--config", configured())
    assert whole.failed == ""
    assert whole.states["weights"] == "ok"
    assert whole.states["name"] == ("ok" if bind.startswith("tcp") else "skipped")
    assert "client 'luna': DOCTOR, version 0, no differences, engine thread" in whole.text
    assert "announces version 0 as the newest" in whole.text
    assert f"a learner of rl4sys_zmq {__version__} replies to rl4sys_zmq {__version__}, protocol 1.0, 1 client" in whole.text
    actors = learner.status()["clients"]["luna"]["actors"]
    assert [name for name, actor in actors.items() if actor["live"] and name.startswith("doctor")] == []


def test_keys_are_tried_with_both_sockets(start: Callable[..., Learner], keys: Path) -> None:
    learner = start(keys=keys, luna=True)
    assert Visit(learner.address, "--keys", "k/me.keys").failed == ""
    assert Visit(learner.address, "--keys", "k/me.keys", "--config", configured()).failed == ""
    actor = Visit(learner.address, "--config", configured(keys="k/actor.keys"))
    assert "this key may not read its status" in actor.text
    assert "announces version 0 as the newest" in actor.text
    assert refusals(learner) == {}


def refusals(learner: Learner) -> dict[str, int]:
    status = learner.status()
    counts = {**status["counters"], **(status["security"] or {})}
    return {name: count for name, count in counts.items() if name.startswith(("refused", "denied", "items_refused")) and count}


@pytest.mark.parametrize("role", ["submit", "read_weights", "call", "relay", "admin"])
def test_any_admitted_key_tests_both_ports_and_leaves_no_refusal(start: Callable[..., Learner], keys: Path, role: str) -> None:
    assert run("keys", "k", "--user", "one", "--role", role, "--client-id", "luna").exit_code == 0
    learner = start(keys=keys, luna=True)
    visit = Visit(learner.address, RL4SYS_LEARNER_DOCTOR_KEYS="k/one.keys")
    assert (visit.failed, visit.states["protocol"], visit.states["weights"]) == ("", "ok", "ok")
    absent = Visit(learner.address, "--keys", "k/one.keys", "--config", configured(client_id="absent"))
    if role != "admin":
        assert absent.failed == "configuration" and "refused (identity, keys)" in absent.text
    assert refusals(learner) == {}


def test_a_client_that_is_not_there_is_not_founded(start: Callable[..., Learner]) -> None:
    learner = start(
        clients={"known": {"algorithm_name": "DOCTOR", "observation_space": BoxSpace((4,)), "action_space": DiscreteSpace(2)}}
    )
    for client_id in ("luna", "known"):
        visit = Visit(learner.address, "--config", configured(client_id=client_id))
        assert (visit.failed, visit.states["configuration"]) == ("", "skipped")
        assert "does not exist" in visit.text
    assert refusals(learner) == {}
    assert learner.status()["clients"] == {}


def test_within_a_process_only_the_last_stages_apply(start: Callable[..., Learner]) -> None:
    learner = start(bind="inproc://doctor", luna=True)
    found = {f.stage: f for f in diagnose(learner.address, config=AgentConfig.from_mapping(LUNA))}
    assert [f.state for f in found.values()] == ["ok", *["skipped"] * 4, *["ok"] * 3, "skipped"]
    assert Visit("inproc://nobody", "--timeout", "0.2").failed == "protocol"


def test_a_name_that_nobody_has() -> None:
    fails("name", "'nobody.invalid' has no address", "nobody.invalid:5555", "--timeout", "30")


def test_a_closed_port(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        visit = Visit(f"127.0.0.1:{closed.getsockname()[1]}")
    assert visit.failed == "connect"
    assert "ECONNREFUSED" in visit.text
    assert Visit(f"ipc://{tmp_path}/none").failed == "connect"


def test_a_port_that_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        visit = Visit(f"127.0.0.1:{mute.getsockname()[1]}", "--timeout", "0.3")
    assert visit.failed == "greeting"
    assert "sends nothing within 0.3 s" in visit.text
    assert visit.took_s < 5.0


def test_a_web_server() -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Print nothing if the visitor resets the connection, because its stderr must be empty."""

    with Server(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        visit = Visit(f"127.0.0.1:{server.server_port}", "--timeout", "0.5")
        server.shutdown()
        thread.join()
    assert visit.failed == "greeting"
    assert "the peer is an HTTP server" in visit.text


def test_keys_on_one_side_only(start: Callable[..., Learner], keys: Path) -> None:
    fails("keys", "the learner requires keys, but none were given", start(keys=keys).address)
    fails("keys", "the learner has none", start().address, "--keys", "k/actor.keys")


def test_keys_that_the_learner_does_not_take(start: Callable[..., Learner], keys: Path) -> None:
    learner = start(keys=keys)
    assert run("keys", "other").exit_code == 0
    assert run("keys", "other", "--user", "a").exit_code == 0
    fails("keys", "wrong learner key in NAME.keys", learner.address, "--keys", "other/a.keys")
    clients = keys / "users.toml"
    # An expired key, and one that is not listed.
    clients.write_text(clients.read_text().replace("[actor]\n", "[actor]\nexpires = 2020-01-01\n"))
    assert run("keys", "k", "--revoke", "me").exit_code == 0
    until(lambda: learner.status()["security"]["loads"] > 1 and learner.status()["security"]["listed"] == 1)
    for name in ("actor", "me"):
        fails("keys", "does not accept our key", learner.address, "--keys", f"k/{name}.keys")


def test_the_port_of_the_weights(start: Callable[..., Learner]) -> None:
    fails("keys", "is this the port of the weights?", start().pub_address, "--timeout", "0.5")


def test_another_program_that_speaks_zeromq() -> None:
    with context().socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        fails("protocol", "no reply within 0.3 s", f"127.0.0.1:{port}", "--timeout", "0.3")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"hello", "the reply cannot be read"), (b"R4SZ\x02" + bytes(60), "install the same major version")],
)
def test_an_answer_of_another_protocol(answer: bytes, words: str) -> None:
    ended = threading.Event()
    with context().socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def echo() -> None:
            while not ended.is_set():
                if router.poll(20):
                    peer, *_ = router.recv_multipart()
                    router.send_multipart([peer, answer])

        thread = threading.Thread(target=echo)
        thread.start()
        visit = Visit(f"127.0.0.1:{port}")
        ended.set()
        thread.join()
    assert visit.failed == "protocol"
    assert words in visit.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_size": 5}, ("refused (mismatch, observation_space)", "[4]", "[5]")),
        ({"algorithm_name": "PPO"}, ("refused (mismatch, algorithm_name)", "'DOCTOR'", "'PPO'")),
        ({"algorithm_parameters": {"slow_s": 1.5}}, ("algorithm_parameters.slow_s", "'not set'", "1.5")),
    ],
)
def test_a_configuration_that_differs(start: Callable[..., Learner], change: dict[str, object], said: tuple[str, ...]) -> None:
    learner = start(luna=True)
    visit = Visit(learner.address, "--config", configured(**change))
    assert visit.failed == "configuration"
    for words in said:
        assert words in visit.text


def test_a_client_of_another_key(start: Callable[..., Learner], keys: Path) -> None:
    assert run("keys", "k", "--user", "mars", "--client-id", "mars").exit_code == 0
    learner = start(keys=keys, luna=True)
    fails("configuration", "refused (identity, keys)", learner.address, "--keys", "k/mars.keys", "--config", configured())


@pytest.mark.parametrize(("advertise", "words"), [("nobody.invalid", "has no address"), ("127.0.0.2", "ECONNREFUSED")])
def test_an_advertised_host_that_cannot_be_reached(start: Callable[..., Learner], advertise: str, words: str) -> None:
    learner = start(advertise=advertise)
    with Socket.dealer(learner.address) as dealer:  # the first actor of the client, which would now wait for its weights
        assert ask(dealer, evaluating_hello(AgentConfig.from_mapping(LUNA)), (Welcome,), 10.0) is not None
    visit = Visit(learner.address, "--config", configured(), "--timeout", "10")
    assert visit.failed == "weights"
    assert words in visit.text
    assert "--advertise HOST" in visit.text


def test_a_beacon_that_never_comes(start: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    learner, other = start(luna=True), start()
    monkeypatch.setattr(module, "BEACON_WAIT_S", 0.3)
    monkeypatch.setattr(module, "_pub_address", lambda *_: Address.parse(other.pub_address))
    visit = Visit(learner.address, "--config", configured(), "--timeout", "0.5")
    assert visit.failed == "weights"
    assert "no beacon from" in visit.text and "within 0.5 s" in visit.text


def test_status_with_keys_and_without(start: Callable[..., Learner], keys: Path) -> None:
    learner = start(keys=keys, luna=True)
    text = output(run("status", learner.address, "--keys", "k/me.keys"))
    assert "security: 2 keys listed" in text and "luna: running, DOCTOR, version 0" in text
    assert json.loads(run("status", learner.address, "--json", RL4SYS_LEARNER_STATUS_KEYS="k/me.keys").stdout)["clients"]["luna"]
    for arguments, said in (([], "requires keys"), (["--keys", "k/actor.keys"], "not have the role admin")):
        assert said in refused(run("status", learner.address, *arguments), code=1)


def test_a_status_of_another_version_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.cli.status.request_status", lambda *_: {"address": "a"})
    assert "print it with --json" in refused(run("status", "127.0.0.1:1"), code=1)
