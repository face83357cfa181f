"""``rl4sys-actor serve-env`` as a user runs it."""

import signal
from pathlib import Path

import pytest
from kit import raising

from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.learner import main as learner
from rl4sys_zmq.errors import CallRefusalReason, CallRefused, CallTimeout

from .conftest import Spawn, invoke, output, refused

pytest.importorskip("gymnasium")

from rl4sys_zmq.serving import RemoteEnv


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_serves_until_a_signal(spawn: Spawn, signum: signal.Signals, code: int) -> None:
    server = spawn("actor", "serve-env", "--env", "CartPole-v1", "--count", "2", "--port", "0", "--render-mode", "rgb_array")
    address = server.wait_for(r"2 x CartPole-v1 at (\S+);").group(1)
    with RemoteEnv(address) as env:
        env.reset(seed=1)
        env.step(0)
        assert env.render().shape == (400, 600, 3)
    assert server.signal(signum) == code, server.errors
    assert server.lines[-1] == "1 steps, 0 episodes, 0 of 2 taken"
    assert "Traceback" not in server.errors


def test_with_keys_a_client_needs_the_role(spawn: Spawn, tmp_path: Path) -> None:
    for options in ([], ["--user", "trainer", "--role", "call"], ["--user", "actor", "--role", "submit"]):
        output(invoke(learner, "keys", "keys", *options))
    server = spawn("actor", "serve-env", "--env", "CartPole-v1", "--port", "0", "--keys", "keys")
    address = server.wait_for(r"CartPole-v1 at (\S+);").group(1)
    with RemoteEnv(address, keys=tmp_path / "keys" / "trainer.keys") as env:
        env.reset(seed=1)
        env.step(0)
    with raising(CallRefused, code=CallRefusalReason.FORBIDDEN):
        RemoteEnv(address, keys=tmp_path / "keys" / "actor.keys")
    with pytest.raises(CallTimeout):
        RemoteEnv(address, timeout_s=0.5)
    assert server.signal(signal.SIGTERM) == 0


def test_it_ends_with_its_parent(spawn: Spawn) -> None:
    server = spawn("actor", "serve-env", "--env", "CartPole-v1", "--port", "0", "--exit-with-stdin")
    server.wait_for("CartPole-v1 at")
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.end() == 0, server.errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env", "CartPoll-v1"], "CartPole"),
        (["--env", "CartPole-v1", "--port", "1", "--bind", "tcp://127.0.0.1:2"], "either --port or --bind"),
        (["--env", "CartPole-v1", "--bind", "tcp://0.0.0.0:0"], "insecure"),
        (["--env", "CartPole-v1", "--bind", "udp://x"], "scheme"),
        (["--env", "CartPole-v1", "--keys", "/nowhere", "--port", "0"], "/nowhere"),
        (["--env", "CartPole-v1", "--lease", "0"], "--lease"),
        ([], "--env"),
    ],
)
def test_what_is_wrong_is_one_line_and_code_2(words: list[str], expected: str) -> None:
    assert expected in refused(invoke(actor, "serve-env", *words))


def test_a_taken_port_is_one_line_and_code_2(taken_port: int) -> None:
    assert "already in use" in refused(invoke(actor, "serve-env", "--env", "CartPole-v1", "--port", taken_port))
