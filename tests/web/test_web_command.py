"""The command ``rl4sys-learner web`` and the page of ``serve --web``: where they listen, whom they ask, and how they end."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import CliRunner
from kit import PATIENCE_S, free_port, until, write_keys
from ops.test_report import NOW, client, report

from rl4sys_zmq.child_process import child_environment
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import StatusReply, StatusRequest

from .page_kit import get

psutil: Any = pytest.importorskip("psutil")
MOST_MEMORY = 120e6


class Command:
    """A command in a process of its own. `line` waits for a line of its output."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", *map(str, arguments)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=child_environment(), start_new_session=True, **pipes)

    def line(self, begin: str) -> str:
        assert self.process.stdout is not None
        found = next((line for line in self.process.stdout if line.startswith(begin)), None)
        assert found is not None, self.process.communicate()
        return str(found).strip()

    def url(self) -> str:
        return self.line("page at").split()[2].strip(";,")

    def end(self, signum: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal, and return the exit code and the output."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end, and return the exit code and the output."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@pytest.fixture
def started() -> Iterator[Any]:
    """Yield a function that starts a command, which ends with the test."""
    commands: list[Command] = []

    def start(*arguments: object) -> Command:
        commands.append(Command(*arguments))
        return commands[-1]

    start.commands = commands  # type: ignore[attr-defined]
    yield start
    for command in reversed(commands):
        command.end()


def test_a_page_of_two_learners_ends_with_ctrl_c(started: Any) -> None:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as learner:
        absent = f"127.0.0.1:{free_port()}"
        command = started("web", learner.address, absent, "--bind", "127.0.0.1:0")
        url = command.url()

        def answers() -> bool:
            one, other = get(f"{url}/api/status").json["learners"]
            return one["error"] == "" and "no process listens" in other["error"]

        until(answers)
        assert get(f"{url}/healthz").status == 503
        assert command.end(signal.SIGINT)[0] == 130


def test_the_token_is_printed_once_or_read_from_a_file(started: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-the-test\n")
    for more, port in (((), 0), (("--token-file", tmp_path / "token"), 0)):
        command = started("web", "127.0.0.1:1", "--bind", f"0.0.0.0:{port}", *more)
        line = command.line("page at")
        token = "a-token-of-the-test" if more else line.partition("token ")[2].partition(";")[0]
        assert ("token" in line) == (not more)
        url = line.split()[2].strip(";,").replace("0.0.0.0", "127.0.0.1")
        assert get(f"{url}/api/status").status == 401
        assert get(f"{url}/api/status", Authorization=f"Bearer {token}").status == 200
        assert token not in "".join(command.end()[1:])


def test_a_learner_with_keys_shows_its_page_with_an_admins_keys_only(started: Any, tmp_path: Path) -> None:
    write_keys(tmp_path, {"web": ["admin"], "robot": ["submit"]})
    serve = ("serve", "--port", "0", "--run-dir", tmp_path / "run", "--keys", tmp_path, "--web", "127.0.0.1:0")
    code, _, error = started(*serve).ended()
    assert code == 2
    assert "rl4sys-learner keys DIR --user web --role admin" in error
    url = started(*serve, "--web-keys", tmp_path / "web.keys").url()
    until(lambda: get(f"{url}/healthz").status == 200)
    (learner,) = get(f"{url}/api/status").json["learners"]
    other = started("web", learner["address"], "--keys", tmp_path / "robot.keys", "--bind", "127.0.0.1:0").url()
    until(lambda: "admin" in get(f"{other}/api/status").json["learners"][0]["error"])


def test_the_page_of_serve_ends_with_it_and_may_end_before_it(started: Any, tmp_path: Path) -> None:
    command = started("serve", "--port", "0", "--run-dir", tmp_path / "run", "--web", "127.0.0.1:0")
    url = command.url()
    until(lambda: get(f"{url}/healthz").status == 200)
    page = next(p for p in psutil.Process(command.process.pid).children() if "web" in p.cmdline())
    page.kill()
    until(lambda: not page.is_running() or page.status() == psutil.STATUS_ZOMBIE)
    assert command.process.poll() is None
    assert command.end(signal.SIGINT)[0] == 130
    killed = started("serve", "--port", "0", "--run-dir", tmp_path / "other", "--web", "127.0.0.1:0")
    killed.url()
    page = next(p for p in psutil.Process(killed.process.pid).children() if "web" in p.cmdline())
    killed.process.kill()
    until(lambda: not page.is_running())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("web",), "Missing argument 'ADDRESS...'"),
        (("web", "here"), "expected an address"),
        (("web", "lab:1", "--bind", "8080"), "expected host:port such as 127.0.0.1:8080"),
        (("serve", "--web", "8080"), "expected host:port such as 127.0.0.1:8080"),
        (("web", "lab:1", "--bind", "ipc://page"), "a page has an address such as 127.0.0.1:8080"),
        (("web", "lab:1", "--token-file", "nowhere"), "it holds one line, the token"),
        (("web", "lab:1", "--keys", "nowhere"), "nowhere"),
        (("serve", "--web-keys", "web.keys"), "--web-keys applies to --web"),
        (("serve", "--bind", "inproc://x", "--web", "127.0.0.1:0"), "bind the learner to tcp or ipc"),
    ],
)
def test_wrong_arguments_say_what_is_right(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_a_port_in_use_is_said_by_both(started: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (("web", "lab:1", "--bind"), ("serve", "--port", "0", "--run-dir", tmp_path / "run", "--web")):
            code, _, error = started(*command, bind).ended()
            assert (code, "is already in use" in error) == (2, True)


def test_64_clients_with_full_histories_cost_less_than_120_mb(started: Any) -> None:
    scalars = {f"losses/figure_{n}": n / 7 for n in range(24)}
    records = [
        {"t": NOW + step, "event": "metrics", "client_id": f"client-{n:02}", "step": step, "update": step, "scalars": scalars}
        for step in range(500)
        for n in range(64)
    ]
    clients = {f"client-{n:02}": client() for n in range(64)}
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    try:
        address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        url, since = started("web", address, "--bind", "127.0.0.1:0").url(), 0
        while since < len(records):
            assert router.poll(int(1000 * PATIENCE_S))
            peer, *frames = router.recv_multipart()
            request = decode(frames)
            assert isinstance(request, StatusRequest)
            since = request.since
            history = {"records": records[since : since + 500], "next_record": min(since + 500, len(records))}
            reply = StatusReply(report(clients=clients), (json.dumps(history).encode(),))
            router.send_multipart([peer, *encode(reply)])
        part, found = get(f"{url}/api/history?learner={address}&client=client-07").json, 0
        while part["records"]:
            found += len(part["records"])
            part = get(f"{url}/api/history?learner={address}&client=client-07&since={part['next']}").json
        assert found > 450  # the last answers may be on their way
        pages = [get(f"{url}/{path}") for path in ("api/status", "metrics")]
        memory = psutil.Process(started.commands[-1].process.pid).memory_info().rss
    finally:
        context.destroy(linger=0)
    assert [page.status for page in pages] == [200, 200]
    assert memory < MOST_MEMORY
