"""A learner beside a torch module that loads slowly. It reports whether a client that is created meanwhile works."""

import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from harness.talk import say

folder = tempfile.TemporaryDirectory(prefix="rl4-")
(Path(folder.name) / "torch.py").write_text(
    """
import gate
gate.began.set()
gate.go_on.wait(30)
def set_num_threads(count):
    pass
"""
)
(Path(folder.name) / "gate.py").write_text("import threading\nbegan, go_on = threading.Event(), threading.Event()\n")
sys.path.insert(0, folder.name)

import gate  # type: ignore[import-not-found]  # noqa: E402 the module that was just written

from rl4sys_zmq import AgentConfig, RL4SysAgent  # noqa: E402
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm  # noqa: E402
from rl4sys_zmq.testing import FakeAlgorithm  # noqa: E402

found: dict[str, Any] = {"joined": False, "error": ""}


def join(address: str) -> None:
    config = AgentConfig(client_id="lab", algorithm_name="FAKE", input_size=4, act_dim=2, train_server_address=address)
    try:
        with RL4SysAgent(config=config) as agent:
            found["joined"] = agent.version == 0
    except Exception as exc:
        found["error"] = str(exc)


register_algorithm("FAKE", FakeAlgorithm.factory())
loading = threading.Thread(target=lambda: __import__("torch"))
loading.start()
assert gate.began.wait(30.0)
with Learner(LearnerConfig(bind="inproc://lab", run_dir=None)) as learner:
    joining = threading.Thread(target=join, args=(learner.address,))
    joining.start()
    joining.join(1.0)  # the client should wait for torch
    gate.go_on.set()
    joining.join(30.0)
    loading.join(30.0)
folder.cleanup()
say(found)
