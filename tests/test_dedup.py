"""Repeated messages: the mark of a stream and the window of calls recognise them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq import dedup
from rl4sys_zmq.dedup import CallDeduplicator, count_received
from rl4sys_zmq.liveness import SESSION_S


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_received_items_are_those_below_the_mark(mark: int, first: int, count: int) -> None:
    assert count_received(mark, first, count) == sum(number < mark for number in range(first, first + count))


def test_a_reply_is_kept_until_it_is_acknowledged() -> None:
    windows: CallDeduplicator[str, list[bytes]] = CallDeduplicator()
    windows.open(1, 0, 0.0)
    window = windows.find(1, 0, 0.0)
    assert window is not None
    window.waiting[3] = "runs"
    windows.finish(1, 3, [b"reply"])
    assert not window.waiting and window.replies == {3: [b"reply"]}
    assert windows.find(1, 3, 0.0) is window and window.replies
    windows.find(1, 4, 0.0)
    assert not window.replies and window.acked == 4
    windows.finish(1, 3, [b"again"])  # too old: the caller has the reply
    assert not window.replies


def test_a_call_without_a_reply_to_keep_is_over() -> None:
    windows: CallDeduplicator[str, list[bytes]] = CallDeduplicator()
    windows.open(1, 0, 0.0)
    window = windows.find(1, 0, 0.0)
    assert window is not None
    window.waiting[3] = "runs"
    windows.finish(1, 3, None)
    windows.finish(2, 0, [b"of no session"])
    assert not window.waiting and not window.replies


def test_a_caller_that_never_acknowledges_loses_its_oldest_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MAX_KEPT_REPLIES", 2)
    windows: CallDeduplicator[str, list[bytes]] = CallDeduplicator()
    windows.open(1, 0, 0.0)
    for number in (5, 4, 6):
        windows.finish(1, number, [b"reply"])
    window = windows.find(1, 0, 0.0)
    assert window is not None and sorted(window.replies) == [5, 6] and window.acked == 5


def test_sessions_end_after_a_silence_or_beyond_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MAX_SESSIONS", 3)
    windows: CallDeduplicator[str, list[bytes]] = CallDeduplicator()
    for session in (1, 2, 3):
        assert windows.open(session, 10 * session, float(session)) == 10 * session
    assert windows.open(1, 99, 3.0) == 10
    windows.find(1, 0, 4.0)
    windows.open(4, 0, 5.0)  # removes the session that was silent for the longest time
    assert windows.find(2, 0, 5.0) is None and len(windows) == 3
    windows.open(5, 0, 4.5 + SESSION_S)
    assert windows.find(1, 0, 5.0) is None and windows.find(4, 0, 5.0) is not None and len(windows) == 2


def test_sessions_that_were_silent_for_long_do_not_count() -> None:
    windows: CallDeduplicator[str, list[bytes]] = CallDeduplicator()
    windows.open(1, 0, 0.0)
    windows.open(2, 0, 0.0)
    windows.find(2, 0, 5.0)
    assert [windows.heard(now) for now in (5.0, SESSION_S + 1.0, SESSION_S + 6.0)] == [2, 1, 0]
