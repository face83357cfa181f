"""A learner's status, as the reply to a request and as rows."""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import raising, write_keys

from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, RefusalReason
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.report import client_rows
from rl4sys_zmq.ops.requests import handshake_error, request_status
from rl4sys_zmq.security.keys import UserKeys, new_key_pair, read_user_keys
from rl4sys_zmq.transports import MonitorEvent

from .test_report import client


def test_rows_are_in_order_and_count_live_actors_and_refusals() -> None:
    rows = client_rows({"clients": {"b": client(), "a": client(mean_return=None)}})
    assert [row.client_id for row in rows] == ["a", "b"]
    assert rows[0].cells()["return"] == "-"
    shown = "b running PPO 123,456 -475.2 0.988 12,345,678 12,346 1,234 0.50 7 1 5/10"
    assert " ".join(rows[1].cells().values()) == shown


def test_the_figures_of_a_client_that_starts_are_unknown() -> None:
    (row,) = client_rows({"clients": {"luna": client(state="starting", version=-1, episodes=0, steps=0, mean_return=None)}})
    assert tuple(row.cells().values()) == ("luna", "starting", "PPO", *["-"] * 7, "7", "1", "5/10")
    clones = client(state="starting", version=-1, scalars={"clone/progress": 0.345, "clone/loss": 0.6931})
    (row,) = client_rows({"clients": {"luna": clones}})
    assert tuple(row.cells().values()) == ("luna", "starting (clones 34%, loss 0.693)", "PPO", *["-"] * 7, "7", "1", "5/10")
    (row,) = client_rows({"clients": {"luna": client(version=-1, scalars=clones["scalars"])}})
    assert row.state == "running"
    assert row.cells()["version"] == "-"


def test_lines_for_a_narrow_terminal_say_everything() -> None:
    (row,) = client_rows({"clients": {"luna": client(steps=123_456_789_012, mean_reward=-1.234e-15)}})
    text = " ".join(row.lines())
    assert all(cell in text for cell in row.cells().values())
    assert all(len(line) < 80 for line in row.lines())


def test_a_name_without_an_address_is_said_at_once_and_a_closed_port_with_its_reason() -> None:
    with pytest.raises(LearnerUnavailable, match=r"the name 'no-such-host.invalid' has no address"):
        request_status("no-such-host.invalid:50051", timeout_s=3600.0)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(LearnerUnavailable, match=r"no process listens there \(ECONNREFUSED\); start the learner"):
        request_status(f"127.0.0.1:{port}", timeout_s=0.1)


def test_a_learner_answers_and_an_absent_one_is_named() -> None:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as learner:
        address = learner.address
        report = request_status(address, 10.0)
        assert report["address"] == address
        assert report["clients"] == {}
    with raising(LearnerUnavailable, "status request", address=address):
        request_status(address.removeprefix("tcp://"), 0.05)


def test_no_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match="address"):
        request_status("nonsense", 1.0)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[str, UserKeys, UserKeys]]:
    """Yield the address of a learner with keys, the keys of an admin, and the keys of an actor."""
    write_keys(tmp_path, {"admin": ["admin"], "actor": ["submit", "read_weights"]})
    admin, actor = (read_user_keys(tmp_path / f"{name}.keys")[1] for name in ("admin", "actor"))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=tmp_path)) as learner:
        yield learner.address, admin, actor


def test_keys_with_the_role_admin_get_the_status(keyed: tuple[str, UserKeys, UserKeys]) -> None:
    address, admin, actor = keyed
    assert request_status(address, 10.0, admin)["security"]["listed"] == 2
    with raising(ProtocolError, "does not have the role admin", code=RefusalReason.FORBIDDEN):
        request_status(address, 10.0, actor)


def test_keys_that_do_not_fit_are_said_to_be_why(keyed: tuple[str, UserKeys, UserKeys]) -> None:
    address, admin, _ = keyed
    with pytest.raises(ProtocolError, match="the learner requires keys, but none were given"):
        request_status(address, 10.0)
    with pytest.raises(ProtocolError, match="does not accept our key"):
        request_status(address, 10.0, UserKeys(new_key_pair(), admin.learner_public))
    with pytest.raises(LearnerUnavailable, match="probably for a wrong learner key"):
        request_status(address, 1.0, UserKeys(admin.own, new_key_pair().public))
    with (
        Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as open_to_all,
        pytest.raises(ProtocolError, match="keys were given, but the learner has none"),
    ):
        request_status(open_to_all.address, 10.0, admin)


def test_an_overloaded_learner_is_not_said_to_have_another_key() -> None:
    late = MonitorEvent("handshake_failed.no_detail", errno.EAGAIN)
    assert "in time" in handshake_error(late, have_keys=True)
    assert "closed the connection" in handshake_error(MonitorEvent("handshake_failed.no_detail", errno.EPIPE), have_keys=False)
