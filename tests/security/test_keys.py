import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.security.keys import (
    KeyPair,
    UserKeys,
    curve_server,
    new_key_pair,
    read_learner_public,
    read_server_keys,
    read_user_keys,
    write_learner_public,
    write_server_keys,
    write_user_keys,
)


@pytest.fixture
def learner() -> Any:
    return new_key_pair()


@pytest.fixture
def secret(tmp_path: Path, learner: Any) -> Any:
    path = tmp_path / "keys" / "learner.secret"
    write_server_keys(path, learner)
    return path


def test_files_come_back_as_written_whatever_the_umask(tmp_path: Path, learner: Any) -> None:
    old = os.umask(0)
    try:
        folder = tmp_path / "made" / "keys"
        keys = UserKeys(new_key_pair(), learner.public)
        write_server_keys(folder / "learner.secret", learner)
        write_learner_public(folder / "learner.public", learner.public)
        write_user_keys(folder / "arm-1.keys", "arm-1", keys)
    finally:
        os.umask(old)
    assert read_server_keys(folder / "learner.secret") == learner
    assert read_learner_public(folder / "learner.public") == learner.public
    assert read_user_keys(folder / "arm-1.keys") == ("arm-1", keys)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent, *folder.iterdir())}
    assert modes == {"keys": 0o700, "made": 0o700, "learner.secret": 0o600, "learner.public": 0o644, "arm-1.keys": 0o600}


def test_a_repr_never_shows_a_secret(learner: Any) -> None:
    assert learner.secret not in repr(learner)
    assert learner.secret not in repr(UserKeys(learner, "x"))


def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path: Path, secret: Any) -> None:
    before = secret.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (secret, tmp_path / "link"):
        with pytest.raises(ConfigError, match="already exists"):
            write_server_keys(path, new_key_pair())
    assert secret.read_bytes() == before and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o610, 0o602])
def test_a_secret_that_others_may_use_is_refused(secret: Any, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {secret}") as caught:
        read_server_keys(secret)
    assert caught.value.source == str(secret)


def test_a_link_to_a_secret_is_refused(secret: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(secret)
    with pytest.raises(ConfigError, match="symbolic link"):
        read_server_keys(tmp_path / "link")


def test_another_users_secret_is_refused(secret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def fstat(fd: Any) -> Any:
        found = list(real(fd))
        found[4] = os.geteuid() + 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(ConfigError, match=f"belongs to user {os.geteuid() + 1}.*chown"):
        read_server_keys(secret)


def test_a_missing_file_a_folder_and_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, says in (("nothing", "no such file"), ("", "cannot be read|not a regular file"), ("pipe", "not a regular file")):
        with pytest.raises(ConfigError, match=says):
            read_server_keys(tmp_path / name)


def spoil(path: Any, change: Any) -> None:
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-20], "damaged"),
        (lambda text: text.splitlines()[0], "secret: missing"),
        (lambda text: text.splitlines()[1], "public: missing"),
        (lambda text: "", "missing"),
        (lambda text: "public = 1\nsecret = 2\n", "missing"),
        (lambda text: text.replace("secret = '", "secret = 'ab"), "not 40 characters"),
        (lambda text: text[:-4] + "~~'\n", "not 40 characters of Z85"),
        (lambda text: text[: text.index("secret")] + "secret = '" + "#" * 40 + "'\n", "does not belong to this secret"),
        (lambda text: "x" * 5000, "too long"),
        (lambda text: "\0", "damaged"),
    ],
)
def test_a_damaged_secret_is_refused_without_quoting_it(secret: Any, learner: Any, change: Callable[..., Any], says: str) -> None:
    spoil(secret, change)
    with pytest.raises(ConfigError, match=says) as caught:
        read_server_keys(secret)
    assert str(secret) in str(caught.value)
    assert learner.secret[:20] not in str(caught.value) and caught.value.__cause__ is None


def test_a_public_key_of_another_pair_is_refused(tmp_path: Path, learner: Any) -> None:
    mixed = KeyPair(new_key_pair().public, learner.secret)
    write_server_keys(tmp_path / "s", mixed)
    with pytest.raises(ConfigError, match="does not belong to this secret"):
        read_server_keys(tmp_path / "s")


@pytest.mark.parametrize("name", ["", "a'b", "a\nb", "x" * 65, "é"])
def test_names_are_plain(tmp_path: Path, learner: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a name"):
        write_user_keys(tmp_path / "k", name, UserKeys(learner, learner.public))
    assert not (tmp_path / "k").exists()


def test_half_a_key_is_not_left_behind(tmp_path: Path, learner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_server_keys(tmp_path / "s", learner)
    assert not (tmp_path / "s").exists()


def test_an_empty_domain_is_refused(learner: Any) -> None:
    with pytest.raises(ConfigError, match="would accept every peer"):
        curve_server(learner, "")
