"""Text from a peer can neither control a terminal nor forge a log line."""

import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import HandshakeRefused, ProtocolError, RefusalReason, RL4SysError
from rl4sys_zmq.logs import get_logger, printable

EVIL = "\x1b[2J\x07\u202e\u009b31m"


@given(st.text(max_size=200))
def test_every_text_is_made_printable_and_a_printable_one_stays(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert printable(text, keep="\n").replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "error",
    [RL4SysError(f"a\n{EVIL}"), ProtocolError(RefusalReason.MALFORMED, EVIL), HandshakeRefused(RefusalReason.MALFORMED, EVIL)],
    ids=lambda error: type(error).__name__,
)
def test_the_text_of_an_error_is_one_printable_line(error: RL4SysError) -> None:
    assert str(error).isprintable() and "\\x1b[2J" in str(error)


def test_log_lines_are_printable() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log = get_logger("rl4sys_zmq.test_printable")
    log.addHandler(handler)
    try:
        log.warning("%s: %r, %s, %s, %d", EVIL, "x", ValueError(EVIL), Path(EVIL), 7)
        log.warning("trace:%s", "\nline\n\tline")
        log.warning("plain %(a)s", {"a": 1})
    finally:
        log.removeHandler(handler)
    text = stream.getvalue()
    assert text.startswith("\\x1b[2J") and "'x'" in text and text.endswith(", 7\ntrace:\nline\n\tline\nplain 1\n")
    assert text.replace("\n", "").replace("\t", "").isprintable()


def test_a_line_of_a_command_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"{EVIL}\nnext")
    assert capsys.readouterr().out == "\\x1b[2J\\x07\\u202e\\x9b31m\nnext\n"
