"""The command that makes keys, and the access list that a running learner follows."""

import os
import re
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import Result
from kit import until

from rl4sys_zmq.cli import keys as module
from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.security.access import load_access
from rl4sys_zmq.security.keys import new_key_pair, read_learner_public, read_server_keys, read_user_keys

from .conftest import Spawn, act, invoke, output, refused, serve


def keys(*arguments: str, **environment: str) -> Result:
    return invoke(main, "keys", *arguments, **environment)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_once_and_then_left_alone(tmp_path: Path) -> None:
    said = output(keys("k"))
    folder = tmp_path / "k"
    assert mode(folder) == 0o700
    modes = {"learner.secret": 0o600, "learner.public": 0o644, "users.toml": 0o600}
    assert {p.name: mode(p) for p in folder.iterdir()} == modes
    assert read_server_keys(folder / "learner.secret").public == read_learner_public(folder / "learner.public")
    assert read_server_keys(folder / "learner.secret").secret not in said
    assert "next: rl4sys-learner keys k --user NAME" in said
    assert load_access(folder / "users.toml").by_name == {}
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    said = output(keys("k"))
    assert said.count("already there") == 3
    assert "created" not in said
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def test_what_is_missing_is_made_again_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    output(keys("k"))
    output(keys("other"))
    public = (tmp_path / "k" / "learner.public").read_text()
    (tmp_path / "k" / "learner.public").unlink()
    assert output(keys("k")).count("created") == 1
    assert (tmp_path / "k" / "learner.public").read_text() == public
    (tmp_path / "other" / "learner.public").write_text(public)
    assert "does not belong to learner.secret" in keys("other").stderr
    (tmp_path / "k" / "learner.secret").chmod(0o640)
    assert "chmod 600" in refused(keys("k"))


def test_a_client_gets_keys_and_a_table(tmp_path: Path) -> None:
    output(keys("k"))
    said = output(keys("k", "--user", "edge-7"))
    assert said.splitlines()[-1] == '  "keys": "edge-7.keys"'
    file = tmp_path / "k" / "edge-7.keys"
    assert mode(file) == 0o600
    name, made = read_user_keys(file)
    assert (name, made.learner_public) == ("edge-7", read_learner_public(tmp_path / "k" / "learner.public"))
    assert made.own.secret not in said
    peer = load_access(tmp_path / "k" / "users.toml").by_name["edge-7"]
    assert (peer.key, peer.client_ids, peer.expires_unix_s) == (made.own.public, None, None)
    assert peer.roles == {"submit", "read_weights"}
    clients = ("--client-id", "luna", "--client-id", "mars")
    output(keys("k", "--user", "edge.8@lab", *clients, "--role", "admin", "--expires", "2999-01-01"))
    peer = load_access(tmp_path / "k" / "users.toml").by_name["edge.8@lab"]
    assert peer.client_ids == frozenset({"luna", "mars"}) and peer.roles == {"admin"} and peer.expires_unix_s == 32472144000.0
    assert "already there: k/users.toml: edge-7, edge.8@lab" in output(keys("k"))


@pytest.mark.parametrize(
    ("expires", "unix_s"), [("2999-01-01T12:00:00Z", 32472187200.0), ("2999-01-01T12:00:00+02:00", 32472180000.0)]
)
def test_a_time_is_taken_too(tmp_path: Path, expires: str, unix_s: float) -> None:
    output(keys("k"))
    output(keys("k", "--user", "a", "--expires", expires))
    assert load_access(tmp_path / "k" / "users.toml").by_name["a"].expires_unix_s == unix_s


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["k", "--user", "there"], "already listed"),
        (["k", "--user", "left"], "already exists"),
        (["k", "--user", "a/b"], "is not a name"),
        (["k", "--user", "x" * 65], "is not a name"),
        (["k", "--user", "a", "--client-id", "a\nb"], "is not a valid name"),
        (["k", "--user", "a", "--role", "boss"], "boss"),
        (["k", "--user", "a", "--expires", "soon"], "not a date"),
        (["k", "--user", "a", "--expires", "2020-01-01"], "in the past"),
        (["k", "--user", "a", "--revoke", "b"], "either --user or --revoke"),
        (["k", "--role", "admin"], "give --user NAME"),
        (["k", "--revoke", "nobody"], "'nobody' is not listed; listed: there"),
        (["none", "--user", "a"], "rl4sys-learner keys none"),
        (["file"], "the folder cannot be used"),
        (["nowhere", "--revoke", "a"], "the folder cannot be used"),
        (["empty", "--user", "a"], "create the keys first"),
        (["empty", "--revoke", "a"], "cannot be read"),
        ([], "DIR"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    output(keys("k"))
    output(keys("k", "--user", "there"))
    (tmp_path / "k" / "left.keys").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert said in refused(keys(*arguments))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


LIST = """\
# first words

[edge-1]   # the lab's
key = "{a}"
client_ids = [
    "luna",  # both of them
    "mars",
]
roles = ["submit"]
# about its quota
[edge-1.quota]
actors = 3

# about edge-2
["edge-2"]
key = "{b}"
client_ids = ["*"]
roles = ["read_weights"]
# last words
"""


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """Return an access list of edge-1 and edge-2 as an operator has edited it, with mode 0640."""
    output(keys("k"))
    public = [new_key_pair().public for _ in range(2)]
    path = tmp_path / "k" / "users.toml"
    path.write_text(LIST.replace("{a}", public[0]).replace("{b}", public[1]))
    path.chmod(0o640)
    return path


def test_comments_and_mode_stay(edited: Path) -> None:
    before = edited.read_text()
    output(keys("k", "--user", "new"))
    assert edited.read_text().startswith(before)
    assert mode(edited) == 0o640
    output(keys("k", "--revoke", "new"))
    assert edited.read_text() == before
    output(keys("k", "--revoke", "edge-1"))
    text = edited.read_text()
    assert text.startswith("# first words\n\n# about edge-2\n")
    assert text.endswith("# last words\n")
    assert "luna" not in text
    assert list(load_access(edited).by_name) == ["edge-2"]
    output(keys("k", "--revoke", "edge-2"))
    assert load_access(edited).by_name == {}
    assert edited.read_text() == "# first words\n\n# about edge-2\n# last words\n"
    assert mode(edited) == 0o640
    assert [p.name for p in edited.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_list_stays_its_owners(edited: Path) -> None:
    os.chown(edited, 1234, 5678)
    output(keys("k", "--user", "new"))
    assert (edited.stat().st_uid, edited.stat().st_gid, mode(edited)) == (1234, 5678, 0o640)


def test_a_link_to_a_list_stays_one(edited: Path, tmp_path: Path) -> None:
    real = edited.rename(tmp_path / "real.toml")
    edited.symlink_to(real)
    output(keys("k", "--user", "new"))
    assert edited.is_symlink()
    assert "new" in load_access(real).by_name


def test_a_table_that_is_no_lines_is_left_to_its_writer(edited: Path) -> None:
    text = edited.read_text() + f'[x]\nkey = "{new_key_pair().public}"\nclient_ids = []\nroles = []\n'
    inline = f'y = {{key = "{new_key_pair().public}", client_ids = [], roles = []}}\n'
    edited.write_text(inline + text)
    before = edited.read_text()
    assert "by hand" in refused(keys("k", "--revoke", "y"))
    assert edited.read_text() == before


def test_a_damaged_list_is_not_touched(edited: Path) -> None:
    edited.write_text("[edge-1\n")
    assert "not TOML" in refused(keys("k", "--user", "a"))
    assert "not TOML" in refused(keys("k", "--revoke", "edge-1"))
    assert "not TOML" in keys("k").stderr
    assert edited.read_text() == "[edge-1\n"
    assert not (edited.parent / "a.keys").exists()


def test_a_list_that_cannot_be_written_leaves_no_key(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = edited.read_text()
    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in refused(keys("k", "--user", "a"))
    assert not (edited.parent / "a.keys").exists()
    assert edited.read_text() == before
    assert [p.name for p in edited.parent.iterdir() if p.name.startswith(".")] == []


def test_many_at_once_lose_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(keys("k"))
    names = [f"n{i}" for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: module.add_user(tmp_path / "k", name, ["*"], ["submit"], None), names))
    capsys.readouterr()
    assert sorted(load_access(tmp_path / "k" / "users.toml").by_name) == sorted(names)


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    output(keys("k"))
    output(keys("k", RL4SYS_LEARNER_KEYS_USER="env", RL4SYS_LEARNER_KEYS_ROLE="admin read_weights"))
    assert load_access(tmp_path / "k" / "users.toml").by_name["env"].roles == {"admin", "read_weights"}


def test_a_running_learner_follows(tmp_path: Path) -> None:
    output(keys("k"))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=tmp_path / "k")) as learner:

        def lets_in(name: str) -> bool:
            try:
                request_status(learner.address, 5.0, read_user_keys(tmp_path / "k" / f"{name}.keys")[1])
            except ProtocolError:
                return False
            return True

        output(keys("k", "--user", "me", "--role", "admin"))
        until(lambda: lets_in("me"))
        began = time.monotonic()
        output(keys("k", "--revoke", "me"))
        until(lambda: not lets_in("me"))
        assert time.monotonic() - began < 5.0


def test_a_learner_and_an_actor_meet_by_the_keys_they_were_made(spawn: Spawn, tmp_path: Path) -> None:
    for arguments in ([], ["--user", "actor", "--client-id", "luna"], ["--user", "me", "--role", "admin"]):
        output(keys("k", *arguments))
    server, address = serve(spawn, "--keys", "k")
    run = ("--algorithm", "PPO", "--episodes", "2")
    player = act(spawn, address, *run, "--keys", "k/actor.keys", "--spool", "s", "--sidecar")
    assert player.end() == 0, player.errors
    assert any((tmp_path / "s").iterdir())
    without = act(spawn, address, *run, "--connect-timeout", "5")
    assert without.end() == 1
    assert re.search("one side uses keys and the other does not|a wrong or missing key", without.errors), without.errors
    healthy = spawn("learner", "doctor", address, "--keys", "k/actor.keys")
    assert healthy.end() == 0, healthy.lines
    watcher = spawn("learner", "status", address, "--keys", "k/me.keys", "--watch")
    watcher.wait_for("luna: running, PPO")
    assert watcher.signal(signal.SIGINT) == 130
    assert server.signal(signal.SIGTERM) == 0, server.errors


def test_an_actor_names_keys_that_are_not_there() -> None:
    pytest.importorskip("gymnasium")
    arguments = ["run", "--env", "CartPole-v1", "--client-id", "a", "--keys", "none.keys"]
    assert "none.keys: no such file" in refused(invoke(actor, *arguments))
    assert "other.keys: no such file" in refused(invoke(actor, *arguments[:-2], RL4SYS_ACTOR_RUN_KEYS="other.keys"))
