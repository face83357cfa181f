"""Names from outside the program, and the parts of paths that are made from them."""

import os
import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import raising

from rl4sys_zmq.config import AgentConfig, LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name, file_name, folder_name, is_name, name_of, new_actor_id


@given(one=st.text(max_size=300), other=st.text(max_size=300))
@settings(max_examples=300)
def test_no_two_names_share_a_folder_not_even_where_capitals_count_for_nothing(one: str, other: str) -> None:
    name = folder_name(one)
    assert name.isascii() and 1 <= len(name) <= 200 and not name.startswith(".") and not set(name) & set("/\\:,\0 ")
    assert (name.lower() == folder_name(other).lower()) == (one == other)
    if "%-" not in name:
        assert name_of(name) == one


@given(st.text(alphabet="aA%~-.0", max_size=12), st.text(alphabet="aA%~-.0", max_size=12))
@settings(max_examples=500)
def test_names_made_of_the_encoding_itself_do_not_meet(one: str, other: str) -> None:
    assert (folder_name(one).lower() == folder_name(other).lower()) == (one == other)


@given(st.text(alphabet=st.characters(), min_size=20, max_size=300), st.integers(64, 200))
@settings(max_examples=500)
def test_a_long_name_is_cut_after_a_character(name: str, most: int) -> None:
    folder = folder_name(name, most)
    kept, cut, _ = folder.rpartition("%-")
    assert len(folder) <= most and (not cut or name.startswith(unquote(kept, errors="surrogatepass")))


def test_folder_names_to_look_at() -> None:
    assert folder_name("cartpole-v1_2.a") == "cartpole-v1_2.a"
    assert folder_name("CartPole-v1") == "CartPole-v1%~11"
    assert folder_name("..") == "%2E." and folder_name(".") == "%2E" and folder_name("../a b") == "%2E.%2Fa%20b"
    assert folder_name("") == "%" and folder_name("%") == "%25"
    long = [folder_name("ä" * 200), folder_name("ä" * 199 + "b"), folder_name("x" * 201), folder_name("X" * 201)]
    assert len({name.lower() for name in long}) == 4 and all("%-" in name for name in long)
    assert name_of(long[0]) is None and name_of("%~1") is None and name_of("Luna") is None


def test_file_names_of_several_names_do_not_meet() -> None:
    names = {file_name(*parts) for parts in (("a-b", "c"), ("a", "b-c"), ("a,b", "c"), ("a", "b,c"), ("A", "b"), ("a", "b"))}
    assert len({name.lower() for name in names}) == 6
    longest = file_name("x" * 200, "y" * 200, str(1 << 63), str(1 << 63))
    assert len(longest) < 250 and longest != file_name("x" * 199 + "z", "y" * 200, str(1 << 63), str(1 << 63))


@pytest.mark.parametrize(
    ("host", "shown"),
    [("cache-7", "cache-7"), ("a b:ü", "a-b--"), ("x" * 64, "x" * 40), ("", "host"), ("..lab.example.", "lab.example")],
)
def test_an_actor_without_a_name_is_named_by_host_and_process(host: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    names = {new_actor_id() for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert is_name(name) and re.fullmatch(rf"{re.escape(shown)}\.{os.getpid()}-[0-9a-f]{{8}}", name)


@pytest.mark.parametrize("name", ["luna", "journal.db-journal", "naïve", "%2e%2e", "a b", "x" * 200, "日本", "learner.secret"])
def test_names(name: str) -> None:
    assert is_name(name) and check_name(name, "client_id") == name
    assert AgentConfig(client_id=name).client_id == name
    clients: Any = {name: {}}
    assert name in LearnerConfig(clients=clients).clients


@pytest.mark.parametrize(
    "name", ["", ".", "..", " a", "a.", "a/b", "a\\b", "a:b", "a\n", "a\0", "x" * 201, "\ud800", "\u202e", 7]
)
def test_what_is_no_name_is_refused_the_same_everywhere(name: object) -> None:
    assert not is_name(name)
    with raising(ConfigError, "1 to 200 printable characters", key="client_id"):
        check_name(name, "client_id")
    with pytest.raises(ConfigError, match="1 to 200 printable characters"):
        AgentConfig(client_id=name)  # type: ignore[arg-type]
    if isinstance(name, str):
        clients: Any = {name: {}}
        with pytest.raises(ConfigError, match="1 to 200 printable characters"):
            LearnerConfig(clients=clients)
