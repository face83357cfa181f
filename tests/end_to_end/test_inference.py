"""The learner chooses the actions of its actors, over each transport. The learner is also absent, slow or killed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.remote import InferenceCaller
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallFailed, CallRefusalReason, CallRefused, CallTimeout
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.learner.gateway.inference import InferenceService, method_of
from rl4sys_zmq.policies import Policy, build_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.security.keys import UserKeys, new_key_pair, write_server_keys, write_user_keys
from rl4sys_zmq.testing.check_transport import TransportUnderTest
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec

WAIT_S = 20.0
BATCH = 64
OBS = np.array([0.1, -0.2, 0.3, 0.4], np.float32)


def config(learner: Learner, **options: Any) -> AgentConfig:
    given: dict[str, Any] = {
        "client_id": "lab",
        "train_server_address": learner.address,
        "algorithm_name": "PPO",
        "algorithm_parameters": {"steps_per_epoch": BATCH, "seed": 1},
        "observation_space": BoxSpace((4,)),
        "action_space": DiscreteSpace(3),
        "inference_timeout_s": WAIT_S,
        "seed": 1,
    }
    return AgentConfig(**{**given, **options})


@pytest.fixture
def learner(transport: TransportUnderTest) -> Iterator[Learner]:
    with Learner(LearnerConfig(bind=transport.address(), run_dir=None, inference="auto", shutdown_timeout_s=WAIT_S)) as made:
        yield made


def play(agent: RL4SysAgent, steps: int, **request: Any) -> list[Any]:
    traj: Any = None
    actions = []
    for _ in range(steps):
        traj, action = agent.request_for_action(traj, OBS, **request)
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
        actions.append(action)
    agent.mark_end_of_trajectory(traj, actions[-1])
    return actions


def counters(agent: RL4SysAgent) -> dict[str, int]:
    return {name: count for name, count in agent.stats()["counters"].items() if name.startswith(("inference", "baseline"))}


@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_an_actor_that_asks_trains_like_any_other(learner: Learner, mode: str) -> None:
    with RL4SysAgent(config=config(learner, inference=mode, overflow="wait")) as agent:
        versions = [a.version for _ in range(6) for a in play(agent, BATCH // 2)]
        agent.flush(WAIT_S)
        agent.wait_version(2, WAIT_S)
        assert versions == sorted(versions) and versions[-1] >= 1
        assert counters(agent) == {"inference.actions": 3 * BATCH}
        stats = agent.stats()
        assert stats["accepted"] == stats["submitted"] > 0 and stats["dropped_at_source"] == 0
        assert ("weights_applied" in stats["counters"]) == (mode == "auto")  # a remote actor gets no weights
    assert learner.status()["inference"]["counters"]["calls"] >= 3 * BATCH


def test_the_learners_answer_is_the_policys(learner: Learner) -> None:
    with RL4SysAgent(config=config(learner)) as first:
        play(first, BATCH)
        first.wait_version(1, WAIT_S)
    modes: dict[str, list[int]] = {}
    for mode in ("local", "remote", "auto"):
        with RL4SysAgent(config=config(learner, inference=mode, explore=False)) as agent:
            agent.wait_version(1, WAIT_S)
            rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
            _, actions = agent.request_for_actions(None, rows)
            singly = [agent.request_for_action(None, row)[1] for row in rows]
            modes[mode] = [int(a.act) for a in actions]
            assert modes[mode] == [int(a.act) for a in singly]
            assert {(a.generation, a.version) for a in singly} == {(agent.generation, 1)}
            assert {int(a.act) for a in play(agent, 10, mask=[0, 1, 0])} == {1}
    assert modes["local"] == modes["remote"] == modes["auto"]


def hold_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    go, act = threading.Event(), InferenceService._act

    def slow(self: InferenceService, client_id: str, payloads: Any) -> Any:
        go.wait(WAIT_S)
        return act(self, client_id, payloads)

    monkeypatch.setattr(InferenceService, "_act", slow)
    return go


def test_auto_falls_back_at_the_deadline_and_comes_back(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.actor.remote.INFERENCE_RETRY_S", 0.0)
    go = hold_up(monkeypatch)
    with RL4SysAgent(config=config(learner, inference="auto", inference_timeout_s=0.05)) as agent:
        assert len(play(agent, 3)) == 3
        assert counters(agent) == {"inference.fallbacks": 3, "inference.timeouts": 3}
        go.set()
        deadline = time.monotonic() + WAIT_S
        while "inference.actions" not in counters(agent) and time.monotonic() < deadline:
            play(agent, 1)
        assert counters(agent)["inference.actions"] >= 1
        agent.flush(WAIT_S)
        assert agent.stats()["accepted"] == agent.stats()["submitted"]


def test_auto_does_not_ask_again_at_once(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.actor.remote.INFERENCE_RETRY_S", 1e9)
    go = hold_up(monkeypatch)
    with RL4SysAgent(config=config(learner, inference="auto", inference_timeout_s=0.05)) as agent:
        play(agent, 20)
        assert counters(agent) == {"inference.fallbacks": 20, "inference.timeouts": 1}
        go.set()


def test_without_a_policy_the_deadline_is_an_error_or_the_baselines(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_up(monkeypatch)
    with RL4SysAgent(config=config(learner, inference="remote", inference_timeout_s=0.05)) as agent:
        with pytest.raises(CallTimeout, match="policy/lab"):
            agent.request_for_action(None, OBS)
        with pytest.raises(CallTimeout):
            agent.request_for_actions(None, OBS[None])
    options = {"inference": "remote", "inference_timeout_s": 0.05, "on_stale": "baseline"}
    with RL4SysAgent(config=config(learner, **options), baseline=lambda obs, mask: np.int64(2)) as agent:
        traj, action = agent.request_for_action(None, OBS)
        assert action.act == 2
        agent.add_to_trajectory(traj, action)
        assert traj.steps == 0  # an action that no policy chose is not stored
        _, actions = agent.request_for_actions(None, np.stack([OBS, OBS]))
        assert [a.act for a in actions] == [2, 2]
        assert counters(agent) == {"inference.timeouts": 2, "baseline_actions": 3}
    go.set()


def asking(mode: str = "remote", **options: Any) -> InferenceCaller:
    """Return the `InferenceCaller` of an actor, without the actor."""
    return InferenceCaller(config(SimpleNamespace(address="tcp://127.0.0.1:1"), inference=mode, **options), Counters())  # type: ignore[arg-type]


def answer_to(payload: Any, **other: Any) -> dict[str, Any]:
    """Return a reply of the learner, by version 7 of its policy."""
    rows = np.zeros(len(payload["obs"]), np.int64)
    return {"raw": rows, "act": rows, "log_prob": np.float32(rows), "generation": 1, "version": 7, **other}


MISSING = object()


@pytest.mark.parametrize(
    "other",
    [
        {"raw": MISSING},
        {"raw": 1},
        {"act": np.zeros(())},
        {"act": [0]},
        {"log_prob": np.full(1, np.nan, np.float32)},
        {"log_prob": ["x"]},
        {"version": None},
        {"generation": MISSING},
    ],
)
def test_an_answer_that_is_none_is_an_error_of_ours(transport: TransportUnderTest, other: dict[str, Any]) -> None:
    with Server(transport.address(), name="odd") as server:
        wrong = lambda p: {k: v for k, v in answer_to(p, **other).items() if v is not MISSING}  # noqa: E731
        server.register(method_of("lab"), wrong)
        server.start()
        with asking() as remote, pytest.raises(CallFailed, match="policy/lab"):
            remote.ask(server.address, OBS[None], None)
        with asking("auto") as remote:
            assert remote.ask(server.address, OBS[None], None) is None


def test_a_question_under_way_goes_to_where_the_service_has_moved(transport: TransportUnderTest) -> None:
    go, entered = threading.Event(), threading.Event()

    def block(payload: Any) -> Any:
        entered.set()
        go.wait(WAIT_S)
        return answer_to(payload)

    answers: list[Any] = []
    with (
        Server(transport.address(), name="before") as before,
        Server(transport.address(), name="after") as after,
        asking() as remote,
    ):
        before.register(method_of("lab"), block)
        after.register(method_of("lab"), lambda payload: answer_to(payload, version=8))
        before.start()
        after.start()
        thread = threading.Thread(target=lambda: answers.append(remote.ask(before.address, OBS[None], None)))
        thread.start()
        assert entered.wait(WAIT_S)
        answer = remote.ask(after.address, OBS[None], None)
        assert answer is not None and answer[3] == (1, 8)
        thread.join(WAIT_S)
        go.set()
    assert [a[3] for a in answers] == [(1, 8)]


def test_a_service_that_has_no_policy_yet_is_asked_again(transport: TransportUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that was started again serves requests before its learner threads are ready."""
    with Server(transport.address(), name="early") as server:
        server.start()
        slept: list[float] = []

        def ready_at_last(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                server.register(method_of("lab"), answer_to)

        monkeypatch.setattr("rl4sys_zmq.actor.remote.time", SimpleNamespace(monotonic=time.monotonic, sleep=ready_at_last))
        with asking() as remote:
            answer = remote.ask(server.address, OBS[None], None)
            assert answer is not None and answer[3] == (1, 7)
            assert len(slept) == 3
        with asking(client_id="nobody", inference_timeout_s=0.01) as remote:
            for _ in range(1000):
                with pytest.raises((CallRefused, CallTimeout)) as caught:  # the last attempt may leave no time for a reply
                    remote.ask(server.address, OBS[None], None)
                if caught.type is CallRefused:
                    break
        assert "no method 'policy/nobody'" in str(caught.value)


def test_a_restarted_learner_is_found_again(tmp_path: Path) -> None:
    given = LearnerConfig(bind=f"ipc://{tmp_path}/learner", run_dir=tmp_path / "run", inference="auto", shutdown_timeout_s=WAIT_S)
    with Learner(given) as first, RL4SysAgent(config=config(first, inference="remote")) as agent:
        play(agent, 5)
        generation = agent.generation
        first.close()
        with Learner(given) as second:
            assert [a.version for a in play(agent, 5)] == [0] * 5
            deadline = time.monotonic() + WAIT_S
            while agent.generation == generation and time.monotonic() < deadline:
                play(agent, 1)
            assert agent.generation > generation
            agent.flush(WAIT_S)
            stats = agent.stats()
            assert stats["accepted"] + stats["dropped_at_source"] == stats["submitted"]
            assert second.status()["inference"]["counters"]["calls"] > 0


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (None, "obs, mask and explore"),
        ({"obs": OBS[None], "mask": None}, "obs, mask and explore"),
        ({"obs": OBS, "mask": None, "explore": True}, r"\[N, \*\[4\]\]"),
        ({"obs": np.zeros((5000, 4)), "mask": None, "explore": True}, "N from 1 to 4096"),
        ({"obs": np.full((1, 4), np.nan, np.float32), "mask": None, "explore": True}, "not finite in float32"),
        ({"obs": np.zeros((1, 4)), "mask": None, "explore": True}, "obs is float64; expected float32"),
        ({"obs": OBS[None], "mask": np.zeros((1, 3), bool), "explore": True}, "forbids every action"),
        ({"obs": OBS[None], "mask": np.ones((1, 4), bool), "explore": True}, r"\[N, 3\]"),
        ({"obs": OBS[None], "mask": None, "explore": 1}, "true or false"),
        ({"obs": "x", "mask": None, "explore": True}, "obs is str"),
    ],
)
def test_questions_that_are_none(tmp_path: Path, payload: Any, words: str) -> None:
    with (
        Learner(
            LearnerConfig(bind=f"ipc://{tmp_path}/learner", run_dir=None, inference="auto", shutdown_timeout_s=WAIT_S)
        ) as learner,
        RL4SysAgent(config=config(learner)) as agent,
        Caller(learner.inference_address) as client,
    ):
        with pytest.raises(CallRefused, match=words) as refused:
            client.call(method_of("lab"), payload, WAIT_S)
        assert refused.value.code is CallRefusalReason.INVALID
        good = {"obs": OBS[None], "mask": None, "explore": False}
        assert client.call(method_of("lab"), good, WAIT_S)["version"] == agent.version
        with pytest.raises(CallRefused, match="policy/lab"):
            client.call(method_of("nobody"), good, WAIT_S)


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (BoxSpace((1,), "<f8"), np.full((1, 1), 1e39), "not finite in float32"),
        (DiscreteSpace(3, 1), np.array([4]), "outside Discrete"),
        (DiscreteSpace(3, 1), np.array([1.5]), "obs is float64; expected int64"),
    ],
)
def test_a_bad_question_does_not_reach_the_policy_of_the_others(space: Any, obs: Any, words: str) -> None:
    spec = mlp_spec(space, DiscreteSpace(3), "categorical", hidden_sizes=())
    with InferenceService("tcp://127.0.0.1:0", None, None, insecure=False) as service:
        service.offer("lab", spec, PolicySnapshot(1, 0, 0, np.zeros(spec.size, np.float32)))
        good = {"obs": np.ones((1, *space.shape), space.dtype), "mask": None, "explore": False}
        first, second = service._act("lab", [good, {**good, "obs": obs}])
        assert first["version"] == 0
        assert words in str(second)


def test_a_question_is_answered_by_one_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One version checks and answers a request, although another version is offered while the policy is built."""

    def offer(size: int) -> tuple[PolicySpec, PolicySnapshot]:
        spec = mlp_spec(BoxSpace((size,)), DiscreteSpace(3), "categorical", hidden_sizes=())
        return spec, PolicySnapshot(1, size, 0, np.zeros(spec.size, np.float32))

    with InferenceService("tcp://127.0.0.1:0", None, None, insecure=False) as service:
        service.offer("lab", *offer(4))

        def slow(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
            service.offer("lab", *offer(5))
            return build_policy(spec, snapshot)

        monkeypatch.setattr("rl4sys_zmq.learner.gateway.inference.build_policy", slow)
        for size in (4, 5):
            (answer,) = service._act("lab", [{"obs": np.zeros((1, size), np.float32), "mask": None, "explore": False}])
            assert answer["version"] == size


def test_a_key_needs_the_role_call_and_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, server = tmp_path / "keys", new_key_pair()
    write_server_keys(folder / "learner.secret", server)
    lines = []
    for name, roles, client_ids in (
        ("full", ["submit", "read_weights", "call"], ["lab"]),
        ("mute", ["submit", "read_weights"], ["lab"]),
        ("other", ["call"], ["else"]),
    ):
        pair = new_key_pair()
        lines.append(f"[{name}]\nkey = '{pair.public}'\nclient_ids = {client_ids}\nroles = {roles}\n")
        write_user_keys(folder / f"{name}.keys", name, UserKeys(pair, server.public))
    (folder / "users.toml").write_text("".join(lines))
    with Learner(
        LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, inference="auto", shutdown_timeout_s=WAIT_S, keys=folder)
    ) as learner:
        monkeypatch.chdir(folder)
        with RL4SysAgent(config=config(learner, inference="remote", keys=Path("full.keys"))) as agent:
            monkeypatch.chdir(tmp_path)  # the first request reads the keys again
            assert len(play(agent, 3)) == 3
        with (
            RL4SysAgent(config=config(learner, inference="remote", keys=folder / "mute.keys")) as agent,
            pytest.raises(CallRefused, match="not have the role call"),
        ):
            agent.request_for_action(None, OBS)
        with (
            Caller(learner.inference_address, keys=folder / "other.keys") as client,
            pytest.raises(CallRefused, match="for client 'lab'") as refused,
        ):
            client.call(method_of("lab"), {"obs": OBS[None], "mask": None, "explore": True}, WAIT_S)
        assert refused.value.code is CallRefusalReason.FORBIDDEN
        with Caller(learner.inference_address) as client, pytest.raises(CallTimeout):
            client.call(method_of("lab"), None, 0.3)
