"""The table of the leases of environments, without sockets."""

from contextlib import AbstractContextManager

import pytest
from kit import raising

pytest.importorskip("gymnasium")

from rl4sys_zmq.errors import CallRefusalReason
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.serving.leases import LeaseTable


def refused(code: CallRefusalReason, words: str) -> AbstractContextManager[None]:
    return raising(CallRefusedByCallback, words, code=code)


def test_two_clients_get_two_seats_and_a_third_is_told_how_many_are_taken() -> None:
    table = LeaseTable(2, 60.0)
    assert (table.lease(1, 1, None, 0.0), table.lease(2, 1, None, 0.0)) == ((0,), (1,))
    with refused(CallRefusalReason.OCCUPIED, "2 of 2 environments are taken"):
        table.lease(3, 1, None, 59.0)
    with refused(CallRefusalReason.OCCUPIED, "environment 1 is taken"):
        table.lease(3, 1, 1, 59.0)
    with refused(CallRefusalReason.UNKNOWN, "no environment 2"):
        table.lease(3, 1, 2, 59.0)
    table.release(1)
    table.release(1)
    assert table.lease(3, 1, None, 59.0) == (0,)
    assert table.taken == 2


def test_taking_twice_with_one_number_is_taking_once() -> None:
    table = LeaseTable(3, 60.0)
    assert table.lease(1, 2, None, 0.0) == table.lease(1, 2, None, 1.0) == (0, 1)
    table.release(1)
    with refused(CallRefusalReason.GONE, "reset"):
        table.lease(1, 2, None, 2.0)  # a copy of the call that arrives late
    assert table.taken == 0


def test_a_silent_lease_lives_until_somebody_else_takes_it() -> None:
    table = LeaseTable(1, 10.0)
    table.lease(1, 1, None, 0.0)
    assert table.renew(1, 5.0)
    with refused(CallRefusalReason.OCCUPIED, "1 of 1"):
        table.lease(2, 1, None, 14.0)
    assert table.renew(1, 100.0)  # it had expired, and no other caller had taken it
    assert table.lease(2, 1, None, 111.0) == (0,)
    assert not table.renew(1, 111.0)
    with refused(CallRefusalReason.OCCUPIED, "expired after 10 s of silence, and another caller has taken it"), table.use(1):
        pass
    table.release(2)
    with refused(CallRefusalReason.GONE, "reset"), table.use(1):
        pass


def test_a_lease_in_use_does_not_end() -> None:
    table = LeaseTable(1, 10.0)
    table.lease(1, 1, None)
    with table.use(1):
        with refused(CallRefusalReason.OCCUPIED, r"environment 0 has been in a call for \d+ s"):
            table.lease(2, 1, None, 1e9)
        with refused(CallRefusalReason.BUSY, "still runs"), table.use(1):
            pass
        table.release(1)
        with refused(CallRefusalReason.OCCUPIED, "1 of 1"):
            table.lease(2, 1, None, 1e9)  # it was given back, but still steps
    assert table.lease(2, 1, None) == (0,)


def test_seats_that_nobody_has_go_first() -> None:
    table = LeaseTable(3, 10.0)
    table.lease(1, 1, 0, 0.0)
    assert table.lease(2, 2, None, 100.0) == (1, 2)
    with refused(CallRefusalReason.OCCUPIED, "2 requested, 1 free"):
        table.lease(3, 2, None, 100.0)
    assert table.lease(3, 1, None, 100.0) == (0,)


def test_a_lease_of_several_ends_as_a_whole() -> None:
    table = LeaseTable(2, 10.0)
    table.lease(1, 2, None, 0.0)
    table.lease(2, 1, 1, 11.0)
    assert table.lease(3, 1, None, 11.0) == (0,)
