"""The end of a command by a signal."""

import os
import signal
import threading

import pytest

from rl4sys_zmq.cli.signals import SignalHandlers, StopSignalReceived


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_is_raised_once_and_remembered(signum: signal.Signals, code: int, request: pytest.FixtureRequest) -> None:
    outer = signal.signal(signum, signal.default_int_handler)  # the suite itself may run under nohup
    request.addfinalizer(lambda: signal.signal(signum, outer))
    before = signal.getsignal(signum)
    with SignalHandlers() as signals:
        signals.check()
        with pytest.raises(StopSignalReceived) as caught:
            os.kill(os.getpid(), signum)
            threading.Event().wait(10)
        assert caught.value.exit_code == code
        assert not isinstance(caught.value, Exception)
        with pytest.raises(StopSignalReceived):
            signals.check()
    assert signal.getsignal(signum) is before
    assert SignalHandlers.current is None
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer) and not t.finished.is_set()]


def test_nohup_stays_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalHandlers():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
