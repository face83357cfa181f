"""The access list of a running learner, and its log lines when the file changes."""

import errno
import threading
from pathlib import Path

import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.security import authenticator
from rl4sys_zmq.security.access import AccessList, load_access
from rl4sys_zmq.security.authenticator import AccessListWatcher
from rl4sys_zmq.security.keys import new_key_pair


def write(path: Path, *names: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(
        "# users\n"
        + "".join(f'[{name}]\nkey = "{new_key_pair().public}"\nclient_ids = []\nroles = ["admin"]\n' for name in names)
    )
    new.chmod(0o600)
    new.replace(path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("edge-7", "ops"), ("ops",), "removed: edge-7; listed now: ops"),
        (("ops",), ("edge-7", "ops"), "added: edge-7; listed now: edge-7, ops"),
        (("ops",), ("edge-7",), "added: edge-7; removed: ops; listed now: edge-7"),
        (("ops",), (), "removed: ops; listed now: no users"),
    ],
)
def test_a_changed_list_is_logged_with_what_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: tuple[str, ...], after: tuple[str, ...], said: str
) -> None:
    write(tmp_path / "users.toml", *before)
    watcher, changed = AccessListWatcher(tmp_path / "users.toml"), threading.Event()
    watcher.changed = lambda access: changed.set()
    watcher.start()
    try:
        write(tmp_path / "users.toml", *after)
        assert changed.wait(20.0)
    finally:
        watcher.stop()
        watcher.join(20.0)
    assert f"the list of users has changed: {said}" in caplog.messages


def test_a_list_that_cannot_be_opened_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tries = tmp_path / "users.toml", []

    def load(path: Path, *, allow_empty: bool) -> AccessList:
        tries.append(allow_empty)
        if len(tries) < 3:
            raise ConfigError("too many open files") from OSError(errno.EMFILE, "Too many open files")
        return load_access(path)

    write(path, "ops")
    watcher, changed = AccessListWatcher(path), threading.Event()
    watcher.changed = lambda access: changed.set()
    monkeypatch.setattr(authenticator, "load_access", load)
    watcher.start()
    try:
        write(path, "ops", "edge-7")
        assert changed.wait(20.0) and set(watcher.access.by_name) == {"ops", "edge-7"}
    finally:
        watcher.stop()
        watcher.join()
    assert len(tries) == 3 and watcher.problem == ""
