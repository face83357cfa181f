"""Dead letters as the command shows them, intact and damaged."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from kit import segment_with

from rl4sys_zmq.cli import deadletter as module
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.learner.run.deadletters import DeadLetterFolder
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import StatusRequest
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment

from .conftest import invoke, output, refused

NOON = 1_700_000_000.0


def segment(reward: float = 1.0) -> Segment:
    return segment_with(
        observations=np.arange(12, dtype=np.float32).reshape(3, 4),
        rewards=np.array([1.0, reward, -2.5], np.float32),
        versions=np.array([7, 7, 8], np.uint64),
        generation=42,
        episode_id=0xABC,
        episode_return=float("nan"),
        episode_length=3,
    )


def letter(run: Path, client_id: str = "luna", seq: int = 0, reason: str = "a reward is not finite", **more: Any) -> Path:
    body = tuple(more.pop("body", encode(join_submit(seq, 0, [pack_segment(segment(float("nan")))]))))
    found = QuarantinedSegment(more.pop("actor_id", "3f2a9c41aaaa"), 5, seq, reason, body)
    return DeadLetterFolder(run / "dead").write(client_id, found, NOON + seq)


def deadletter(*arguments: object, **environment: str) -> Result:
    return invoke(main, "deadletter", *arguments, **environment)


def test_letters_are_listed_oldest_first(tmp_path: Path) -> None:
    assert output(deadletter(tmp_path)) == "no dead letters\n"
    for seq, client in ((2, "luna"), (1, "mars"), (3, "luna")):
        letter(tmp_path, client, seq)
    lines = output(deadletter(tmp_path)).splitlines()
    assert lines[1].split() == [
        *("1", "2023-11-14", "22:13:21", "mars", "3f2a9c41aaaa", "1", lines[1].split()[6], "B"),
    ]
    assert lines[2].strip() == "a reward is not finite"
    assert [line.split()[0] for line in lines[1:6:2]] == ["1", "2", "3"]
    assert all(len(line) <= 80 for line in lines[:-1])
    only = output(deadletter(tmp_path, "--client", "luna")).splitlines()
    assert [line.split()[0] for line in only[1:4:2]] == ["2", "3"]  # the numbers stay the same
    assert "no dead letters of client nobody" in output(deadletter(tmp_path, RL4SYS_LEARNER_DEADLETTER_CLIENT="nobody"))
    listed = json.loads(output(deadletter(tmp_path, "--json")))
    assert [(entry["n"], entry["client_id"], entry["seq"]) for entry in listed] == [
        (1, "mars", 1),
        (2, "luna", 2),
        (3, "luna", 3),
    ]


def test_one_is_shown_by_number_and_by_file(tmp_path: Path) -> None:
    path = letter(tmp_path)
    text = output(deadletter(tmp_path, "--show", 1))
    assert (
        text == output(deadletter(tmp_path, "--show", path)) == output(deadletter(tmp_path, "--show", path.with_suffix(".json")))
    )
    lines = text.splitlines()
    assert "client     luna, actor 3f2a9c41aaaa, origin 5, seq 0" in lines
    assert "reason     a reward is not finite" in lines
    assert "segment    3 steps, terminated, generation 42" in lines
    assert "episode    0000000000000abc, part 0, return nan, length 3" in lines
    columns = {line.split()[0]: line.split()[1:] for line in lines if line.split()[0] in ("observations", *module._COLUMNS)}
    assert columns["rewards"] == ["float32", "3", "-2.5", "1", "1"]
    assert columns["observations"] == ["float32", "3x4", "0", "11", "-"]
    assert columns["versions"] == ["uint64", "3", "7", "8", "-"]
    assert max(map(len, lines[1:])) <= 80
    shown = json.loads(output(deadletter(tmp_path, "--show", 1, "--json")))
    assert shown["segments"][0]["columns"]["rewards"]["not_finite"] == 1
    assert shown["problem"] == ""
    assert shown["segments"][0]["episode_return"] == "nan"


def test_each_array_of_a_tree_is_a_column(tmp_path: Path) -> None:
    actions = {"b": np.ones((3, 2), np.float32), "a": np.array([2, 0, 1])}
    observations = (np.zeros((3, 4), np.float32), np.array([5, 6, 5]))
    whole = replace(segment(), observations=observations, actions=actions)
    letter(tmp_path, body=encode(join_submit(0, 0, [pack_segment(whole)])))
    (shown,) = json.loads(output(deadletter(tmp_path, "--show", 1, "--json")))["segments"]
    greatest = {name: column["max"] for name, column in shown["columns"].items()}
    assert {name: greatest[name] for name in list(greatest)[:4]} == {
        "observations[0]": 0.0,
        "observations[1]": 6,
        "actions[0]": 2,
        "actions[1]": 1.0,
    }


def frames(*lengths: int) -> bytes:
    return b"".join(struct.pack("<I", n) + bytes(n) for n in lengths)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\x01", "cut short after 0 frames"),
        (frames(3) + b"\x00\x00", "cut short after 1 frames"),
        (struct.pack("<I", 2**32 - 1), "beyond the end of the file"),
        (frames(*[0] * 1000), "more than 256 frames"),
        (frames(48), "magic"),
        (frames(3), "shorter than the prefix"),
    ],
)
def test_a_damaged_letter_is_said_to_be(tmp_path: Path, content: bytes, problem: str) -> None:
    letter(tmp_path).write_bytes(content)
    text = output(deadletter(tmp_path, "--show", 1))
    assert problem in text and "segment " not in text
    assert "luna" in output(deadletter(tmp_path))


def test_every_cut_and_every_flipped_byte_of_a_letter_is_survived(tmp_path: Path) -> None:
    path = letter(tmp_path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at])
        assert module._content(path)[1], at
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        assert module._content(path)[1], at


def test_another_message_is_no_letter(tmp_path: Path) -> None:
    letter(tmp_path, body=encode(StatusRequest()))
    assert "contains a StatusRequest, not a Submit" in output(deadletter(tmp_path, "--show", 1))


def test_a_letter_too_large_is_not_read(tmp_path: Path) -> None:
    with letter(tmp_path).open("r+b") as file:
        file.truncate(module.MAX_LETTER_BYTES + 1)  # a hole in the file, without data
    assert "more than a letter can have" in output(deadletter(tmp_path, "--show", 1))


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    evil = "\x1b[31mred\x07\n\u202efdp"
    letter(tmp_path, client_id=evil, reason=evil, actor_id=evil)
    for text in (output(deadletter(tmp_path)), output(deadletter(tmp_path, "--show", 1)), output(deadletter(tmp_path, "--json"))):
        assert not set(text) & set("\x1b\x07\u202e")
        assert "red" in text
    assert output(deadletter(tmp_path)).count("\n") == 4


def test_letters_that_nobody_described_are_counted_and_cleared(tmp_path: Path) -> None:
    path = letter(tmp_path)
    letter(tmp_path, "mars", 1)
    path.with_suffix(".json").write_text("{")
    text = output(deadletter(tmp_path))
    assert "1 more without a readable description" in text
    assert "segment    3 steps" in output(deadletter(tmp_path, "--show", path))
    assert output(deadletter(tmp_path, "--clear", "--client", "luna")) == "removed 0 letters\n"
    assert output(deadletter(tmp_path, "--clear", "--client", "mars")) == "removed 1 letter\n"
    assert path.exists()
    assert output(deadletter(tmp_path, "--clear")) == "removed 1 letter\n"
    assert list((tmp_path / "dead").rglob("*")) == []
    assert output(deadletter(tmp_path)) == "no dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "not a run directory"),
        (["run", "--show", "2"], "there are 1 letters"),
        (["run", "--show", "0"], "there are 1 letters"),
        (["run", "--show", "none.msg"], "no such file"),
        (["run", "--show", "."], "cannot be read"),
        (["run", "--show", "1", "--clear"], "either --show or --clear"),
        ([], "RUN"),
    ],
)
def test_wrong_usage_is_one_line_and_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    letter(tmp_path / "run")
    assert words in refused(deadletter(*arguments))


def test_long_names_are_cut(tmp_path: Path) -> None:
    letter(tmp_path, "l" * 60, 12_345_678, actor_id="a" * 60)
    _, row, reason, _ = output(deadletter(tmp_path)).splitlines()
    assert len(row) <= 80 and f"{'l' * 8}\u2026{'l' * 7}  {'a' * 8}\u2026" in row and reason == "      a reward is not finite"
