"""No peer can occupy all slots permanently: idle clients expire, and actor records without data are evicted."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit import until

from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire.messages import Bye, Refused, Welcome

from .conftest import PATIENCE_S, Report, Tier
from .siege import ALGORITHM, Attacker, Siege, hello

SPACES: dict[str, Any] = {"observation_space": space_to_json(BoxSpace((4,))), "action_space": space_to_json(DiscreteSpace(2))}
MAX_CLIENTS = 64
FLOOD, SOCKETS = 1_400, 20


def found(attacker: Attacker, client_id: str) -> Welcome | Refused:
    """Create a client whose only actor sends BYE at once. Return the answer to its HELLO."""
    attacker.say(hello(client_id=client_id, actor_id="only", algorithm_name=ALGORITHM, **SPACES))
    while not isinstance(answer := attacker.listen(PATIENCE_S), Welcome | Refused):
        assert answer is not None, f"no answer to the first actor of {client_id}"
    attacker.say(Bye())
    return answer


def test_a_65th_client_is_admitted(tier: Tier, tmp_path: Path, stack: ExitStack, report: Report) -> None:
    """One client trains; clients without data fill all other slots. Further clients join and leave."""
    siege = Siege(tmp_path, stack, keys=False, messages_per_s=1e6, run_dir=tmp_path / "run", checkpoint_every_s=0.2)
    attacker = siege.attacker()
    more = tier.size(20, 500)
    answers, slowest_s = [], 0.0
    for n in range(MAX_CLIENTS + more):
        began = time.monotonic()
        answers.append(found(attacker, f"idle{n}"))
        slowest_s = max(slowest_s, time.monotonic() - began)
    admitted = sum(isinstance(answer, Welcome) for answer in answers)
    status = siege.status()
    threads = len(siege.learner._gateway.core.registry.workers())  # type: ignore[union-attr]
    report(admitted=admitted, of=len(answers), slowest_s=round(slowest_s, 3), clients=len(status["clients"]), threads=threads)
    assert admitted == len(answers), [a for a in answers if isinstance(a, Refused)][:1]
    assert len(status["clients"]) == MAX_CLIENTS and "lab" in status["clients"]
    assert status["counters"]["clients_expired"] == len(answers) - MAX_CLIENTS + 1
    siege.good.served()
    assert siege.status()["clients"]["lab"]["restarts"] == 0, "who has data is never let go"


def test_idle_clients_expire(tmp_path: Path, stack: ExitStack, report: Report) -> None:
    siege = Siege(
        tmp_path, stack, keys=False, messages_per_s=1e6, run_dir=tmp_path / "run", checkpoint_every_s=0.1, idle_client_s=1.5
    )
    attacker = siege.attacker()
    for n in range(8):
        assert isinstance(found(attacker, f"idle{n}"), Welcome)
    evaluator = siege.agent(client_id="watched", actor_id="e", explore=False)
    began = time.monotonic()
    until(lambda: set(siege.status()["clients"]) == {"lab", "watched"}, "the end of the idle clients")
    report(expired=siege.status()["counters"]["clients_expired"], within_s=round(time.monotonic() - began, 2))
    assert evaluator.stats()["state"] == "joined", "a live actor keeps its client"
    siege.good.served()
    folders = (tmp_path / "run" / "checkpoints").iterdir()
    assert [path.name for path in folders if CheckpointStore(path).newest()] == ["lab"], "who has seen nothing has no checkpoint"
