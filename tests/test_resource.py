"""The threads of the package run in programs that give all their threads small stacks."""

import errno
import os

import pytest
from kit import python

from rl4sys_zmq.resource import with_descriptor

SMALL = """
import threading
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.resource import Worker
from tests.policies.stored import stored
from tests.policies.test_onnx_policy import convolution

class Loader(Worker):
    def run(self):
        build_policy(convolution(), stored(convolution()).snapshot)

    def stop(self):
        pass

threading.stack_size(1 << 16)
loader = Loader("loader")
loader.start()
print(threading.stack_size())
loader.join()
loader.raise_if_dead()
"""


def test_a_thread_has_a_stack_that_onnxruntime_fits_and_the_programs_threads_keep_theirs() -> None:
    pytest.importorskip("onnxruntime")
    assert python("-c", SMALL) == "65536\n"


def test_a_call_is_repeated_while_no_descriptor_is_free() -> None:
    tries: list[int] = []

    def call(code: int) -> int:
        tries.append(code)
        if len(tries) % 3:
            raise OSError(code, os.strerror(code))
        return len(tries)

    assert with_descriptor(lambda: call(errno.EMFILE)) == 3
    with pytest.raises(OSError, match="No space"):
        with_descriptor(lambda: call(errno.ENOSPC))
    assert len(tries) == 4
