"""Tests of exit and fork with open sockets, each in a separate process."""

import subprocess
import sys
import textwrap
from typing import Any

import pytest

DEADLINE_S = 20.0


def run(code: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "ipc:///tmp/rl4sys-nobody-binds-this", "inproc://nobody"])
def test_exit_with_messages_queued_for_nobody(address: str) -> None:
    run(f"""
        from rl4sys_zmq.transports import Socket
        dealer = Socket.dealer("{address}")
        while dealer.send([b"x" * 1000]):
            pass
    """)


def test_exit_while_another_thread_polls() -> None:
    run("""
        import threading
        from rl4sys_zmq.transports import Poller, Socket
        polling = threading.Event()
        def loop():
            router = Socket.router("tcp://127.0.0.1:0")
            with Poller() as poller:
                poller.register(router)
                while True:
                    polling.set()
                    poller.poll(0.05)
        threading.Thread(target=loop, daemon=True).start()
        polling.wait()
    """)


def test_exit_after_the_owning_thread_has_ended() -> None:
    run("""
        import os, threading
        from rl4sys_zmq.transports import Socket
        kept = []
        thread = threading.Thread(target=lambda: kept.append(Socket.router("ipc://*")))
        thread.start()
        thread.join()
        path = kept[0].address.name
        from rl4sys_zmq.transports.context import _at_exit
        _at_exit()
        assert not os.path.exists(path) and not os.path.exists(os.path.dirname(path))
    """)


def test_a_forked_child_starts_afresh_and_leaves_the_parents_sockets_alone() -> None:
    out = run("""
        import os, sys
        from rl4sys_zmq.errors import TransportError
        from rl4sys_zmq.transports import Poller, Socket, context, open_sockets

        def ask(router, dealer):
            dealer.send([b"ping"])
            with Poller() as poller:
                poller.register(router)
                assert poller.poll(10)
            return router.recv()[1]

        for address in ("tcp://127.0.0.1:0", "ipc://*", "inproc://*"):
            router = Socket.router(address)
            dealer = Socket.dealer(router.bound)
            assert ask(router, dealer) == b"ping"
            mine = context()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                assert context() is not mine and open_sockets() == 0
                for call in (router.recv, lambda: dealer.send([b"lost"])):
                    try:
                        call()
                    except TransportError as exc:
                        assert "fork" in str(exc)
                    else:
                        raise AssertionError("an inherited socket was usable")
                router.close()
                dealer.close()
                with Socket.router(address) as fresh, Socket.dealer(fresh.bound) as other:
                    assert ask(fresh, other) == b"ping"
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert ask(router, dealer) == b"ping"
            try:
                Socket.router(router.bound)
            except TransportError:
                pass
            else:
                raise AssertionError("the child freed the parent's address")
            router.close()
            dealer.close()
        print("done")
    """)
    assert out == "done\n"
