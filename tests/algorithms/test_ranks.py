"""Tests of ranks, processes that train one policy together: their result is that of one process, and they end together."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.children import is_there
from kit import assignment, until

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.algorithms import ALGORITHMS, Algorithm, AlgorithmEntry, make_algorithm
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.errors import ClientFailed, Closed, ConfigError, LearnerUnavailable, RankError, RankLost
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.values.spaces import FlatSpace

torch = pytest.importorskip("torch")

from rl4sys_zmq.learner.ranks import rank_group, rank_member  # noqa: E402
from rl4sys_zmq.learner.ranks.rank_group import RankGroup  # noqa: E402
from rl4sys_zmq.learner.ranks.rank_member import RankLink  # noqa: E402
from rl4sys_zmq.learner.registry.compute import ONE_RANK, check_rows, find_devices, row_share  # noqa: E402
from rl4sys_zmq.learner.training.building import importable_factory, place_algorithm  # noqa: E402

from .test_resume import segments  # noqa: E402

OBSERVATIONS, FOUR, BOX = BoxSpace((3,)), DiscreteSpace(4, 1), BoxSpace((2,), low=-1.0, high=1.0)
PPO: dict[str, Any] = {"steps_per_update": 64, "minibatch_size": 22, "update_epochs": 5, "hidden_sizes": [16, 16]}
STEPS: dict[str, Any] = {"steps_per_update": 64, "hidden_sizes": [16, 16], "learning_rate": 1e-2}
DQN: dict[str, Any] = {"hidden_sizes": [16], "batch_size": 17, "learning_starts": 32, "train_frequency": 8, "tau": 0.5}
IN_TURN = {"train_pi_iters": 4, "train_v_iters": 4, "target_kl": 0.01, "learning_rate": 1e-3}
BY_MINIBATCH = {"norm_adv_over": "minibatch", "target_kl_over": "minibatch", "target_kl": 0.01, "value_clip": 0.1}
AFTER_EPISODES = {"traj_per_epoch": 1, "train_iters": 4, "target_network_frequency": 150}


def placed(
    name: str = "PPO", actions: FlatSpace = FOUR, parameters: Any = PPO, stopping: Any = None, **options: Any
) -> tuple[Any, RankGroup]:
    """Return an algorithm and its group of ranks, before the group starts."""
    algorithm = make_algorithm(name, OBSERVATIONS, actions, parameters, 3)
    assign = assignment(name, actions, parameters, torch_threads=1, **options)
    _, group = place_algorithm(algorithm, assign, stopping or threading.Event())
    assert group is not None
    return algorithm, group


def ranked(*given: Any, **options: Any) -> tuple[Any, RankGroup]:
    algorithm, group = placed(*given, **options)
    group.start()
    return algorithm, group


def weights(algorithm: Any) -> Any:
    return np.concatenate([array.reshape(-1) for array in algorithm.numbers_to_check()[:3]])


def train(algorithm: Algorithm, source: Iterator[Segment], updates: int) -> list[dict[str, float]]:
    done: list[dict[str, float]] = []
    while len(done) < updates:
        algorithm.observe(next(source))
        while (metrics := algorithm.update()) is not None:
            done.append(dict(metrics))
    return done


@pytest.mark.parametrize(("rows", "size"), [(10, 3), (2, 3), (1, 4), (7, 7), (128, 2)])
def test_the_ranks_share_every_row_once(rows: int, size: int) -> None:
    shares = [row_share(rows, rank, size) for rank in range(size)]
    covered = [row for share in shares if share.weight for row in range(rows)[share.rows]]
    assert covered == list(range(rows))
    assert sum(share.weight for share in shares) == pytest.approx(1.0)
    assert all(len(range(rows)[share.rows]) >= 1 for share in shares)


OFF: dict[str, Any] = {**DQN, "hidden_sizes": [8], "learning_rate": 1e-2}
CASES: dict[str, tuple[str, FlatSpace, int, dict[str, Any], int, int]] = {
    # algorithm, actions, ranks, parameters, updates, gradient steps in all
    "ppo": ("PPO", FOUR, 3, PPO, 7, 105),
    "ppo in turn": ("PPO", BOX, 2, {**PPO, **IN_TURN}, 5, 0),
    "ppo by minibatch": ("PPO", BOX, 3, {**PPO, **BY_MINIBATCH}, 5, 0),
    "rpo": ("PPO", BOX, 3, {**PPO, "rpo_alpha": 0.5}, 4, 0),
    "reinforce": ("REINFORCE", FOUR, 2, {**STEPS, "with_vf_baseline": True}, 5, 0),
    "impala": ("IMPALA", FOUR, 3, STEPS, 5, 5),
    "dqn": ("DQN", FOUR, 2, DQN, 100, 100),
    "dqn after episodes": ("DQN", FOUR, 2, {**DQN, **AFTER_EPISODES}, 25, 100),
    "dqn by priority": ("DQN", FOUR, 3, {**DQN, "prioritised": True}, 100, 100),
    "dueling quantiles": ("DQN", FOUR, 2, {**OFF, "dueling": True, "distribution": "quantile", "quantiles": 4}, 8, 8),
    "categorical": ("DQN", FOUR, 2, {**OFF, "distribution": "categorical", "atoms": 7}, 8, 8),
    "sac": ("SAC", BOX, 2, OFF, 8, 8),
    "discrete sac": ("SAC", FOUR, 2, OFF, 8, 8),
    "td3": ("TD3", BOX, 2, {**OFF, "policy_delay": 1}, 8, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_learn_what_one_learns(case: str) -> None:
    """The minibatches do not divide into equal parts, and the last update has fewer steps than there are ranks."""
    name, actions, size, parameters, updates, steps = CASES[case]
    replayed = "batch_size" in parameters
    close = 1e-5 if parameters.get("learning_rate") == 1e-2 and replayed else 1e-6
    one: Any = make_algorithm(name, OBSERVATIONS, actions, parameters, 3)
    before = weights(one)
    many, group = ranked(name, actions, parameters, learners=size)
    with group:
        ours, theirs = (train(algorithm, segments(actions, 11), updates) for algorithm in (many, one))
        taken, expected = (each._gradient_steps if replayed else max(each._optimizer.steps) for each in (many, one))
        assert taken == expected >= steps
        difference = np.abs(weights(many) - weights(one)).max()
        assert np.abs(weights(one) - before).max() > 1e-2 and difference < close, difference
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(other, rel=1e-3, abs=1e-4)

        changed = {**parameters, "learning_rate": 1e-4, "max_grad_norm": 0.01}
        group.change(changed)
        for algorithm in (many, one):  # a change of parameters, a return to an earlier state, and less data than ranks
            algorithm.change(changed)
            kept = algorithm.checkpoint()
            train(algorithm, segments(actions, 11), 1)
            algorithm.restore(kept)
            source = segments(actions, 11, steps=1)
            algorithm.observe(next(source))
            assert replayed or algorithm.update(partial=True) is not None
            train(algorithm, source, 1)
        assert np.abs(weights(many) - weights(one)).max() < close


def test_a_killed_rank_ends_the_group() -> None:
    algorithm, group = ranked(learners=3)
    with group:
        train(algorithm, segments(FOUR, 11), 1)
        pids = group.pids
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RankLost, match=rf"rank 1 of 3 \(pid {pids[0]}\) ended with signal 9 \(SIGKILL\)"):
            train(algorithm, segments(FOUR, 11), 1)
        assert not any(map(is_there, pids))
        with pytest.raises(RankError, match="rank 1 of 3"):
            train(algorithm, segments(FOUR, 11), 1)


def test_a_stopped_rank_is_given_up_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rank_group, rank_member):
        monkeypatch.setattr(module, "RANK_TIMEOUT_S", 8.0)
    algorithm, group = ranked(learners=2)
    with group:
        train(algorithm, segments(FOUR, 11), 1)
        (pid,) = group.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RankLost, match=rf"rank 1 of 2 \(pid {pid}\) runs but does not answer \(.*8000 ?ms.*is it stopped"):
            train(algorithm, segments(FOUR, 11), 1)
        assert not is_there(pid)


@pytest.mark.parametrize("moment", ["another one starts", "they connect"])
def test_a_rank_that_is_killed_while_the_group_starts_is_lost(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start raises `RankLost`. The client then starts again from its checkpoint."""
    for module in (rank_group, rank_member):
        monkeypatch.setattr(module, "RANK_TIMEOUT_S", 4.0)
    algorithm, group = placed(learners=3)
    killed: list[int] = []

    def kill() -> None:
        if not killed:
            killed.append(group.pids[0])
            os.kill(killed[0], signal.SIGKILL)
            until(lambda: not is_there(killed[0]))

    receive, connect = RankLink.receive, rank_member.RankMember.connect

    def received(link: Any) -> dict[str, Any]:
        message = receive(link)
        if moment == "another one starts" and link is group._others[0].link:
            kill()
        return message

    def connected(member: Any, *given: Any) -> None:
        kill()
        connect(member, *given)

    monkeypatch.setattr(RankLink, "receive", received)
    monkeypatch.setattr(rank_member.RankMember, "connect", connected)
    with pytest.raises(RankLost, match=r"rank 1 of 3 \(pid \d+\) ended with signal 9 \(SIGKILL\)$"):
        group.start()
        train(algorithm, segments(FOUR, 11), 1)  # rank 1 may have connected before it was killed
    assert killed and group.pids == []


def test_a_rank_that_cannot_be_started_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    _, group = placed(learners=2)
    monkeypatch.setattr(socket, "socketpair", full)
    with pytest.raises(RankLost, match=r"rank 1 cannot be started: .*Too many open files; raise the limit of open files"):
        group.start()


def test_an_error_in_the_middle_of_an_update_ends_the_group() -> None:
    """The other ranks wait for this one in a sum, so they cannot continue."""
    algorithm, group = ranked(learners=2)
    pids = group.pids
    with pytest.raises(ZeroDivisionError), group.leading({}, algorithm.checkpoint):
        raise ZeroDivisionError("made to raise")
    with pytest.raises(RankError, match=r"an update failed on rank 0 .*made to raise"):
        train(algorithm, segments(FOUR, 11), 1)
    assert not any(map(is_there, pids))


def test_ranks_end_with_their_parent(tmp_path: Path) -> None:
    """The parent is killed while it waits, so it sends no message to the ranks."""
    program = tmp_path / "parent.py"
    program.write_text(
        "import sys, threading\n"
        f"sys.path[:0] = [{str(Path(__file__).parents[1])!r}]\n"
        "import algorithms.test_ranks as t\n"
        "algorithm, group = t.ranked(learners=2)\n"
        "t.train(algorithm, t.segments(t.FOUR, 11), 1)\n"
        "print(*group.pids, flush=True)\n"
        "threading.Event().wait()\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 1
    until(lambda: not any(map(is_there, pids)))


def test_a_start_is_stopped_while_a_rank_does_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is stopped when it is ready, so rank 0 waits for it."""
    stopping, ready = threading.Event(), RankGroup._await_ready
    _, group = placed(stopping=stopping, learners=2)

    def stop(given: RankGroup, deadline: float) -> None:
        ready(given, deadline)
        os.kill(given.pids[0], signal.SIGSTOP)
        threading.Timer(0.2, stopping.set).start()

    monkeypatch.setattr(RankGroup, "_await_ready", stop)
    with pytest.raises(Closed, match="before its ranks were ready"):  # not RankLost after RANK_TIMEOUT_S
        group.start()
    assert group.pids == []


def test_a_rank_that_cannot_be_built_says_why() -> None:
    assign = assignment("PPO", FOUR, PPO, learners=2)
    group = RankGroup(assign, "rl4sys_zmq.algorithms.onpolicy.ppo:Missing", find_devices("cpu", 2), threading.Event())
    with pytest.raises(RankError, match=r"rank 1 of 2 \(pid \d+\) could not start: AttributeError: .*Missing"):
        group.start()


def play(agent: RL4SysAgent, stop: threading.Event) -> None:
    rng, traj = np.random.default_rng(2), None
    try:
        while not stop.is_set():
            traj, action = agent.request_for_action(traj, rng.normal(size=3).astype(np.float32))
            action.update_reward(1.0)
            agent.add_to_trajectory(traj, action)
            if rng.random() < 0.1:
                agent.mark_end_of_trajectory(traj, action)
                traj = None
    except (ClientFailed, Closed, LearnerUnavailable):
        pass


def child_ranks() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == os.getpid() and b"rank_process" in command:
            found.append(int(stat.parent.name))
    return sorted(found)


def test_a_client_goes_on_from_its_checkpoint_after_a_rank_was_killed(tmp_path: Path) -> None:
    entry = ClientConfig(
        algorithm_name="PPO", algorithm_parameters={**PPO, "rollout_length": 16}, learners=2, torch_threads=1,
        observation_space=OBSERVATIONS, action_space=FOUR,
    )  # fmt: skip
    config = LearnerConfig(bind="inproc://*", run_dir=tmp_path / "run", clients={"c": entry}, checkpoint_every_s=0.1, seed=1)
    stop = threading.Event()
    with ExitStack() as stack:
        learner = stack.enter_context(Learner(config))
        agent_config = AgentConfig(client_id="c", train_server_address=learner.address, connect_timeout_s=120.0)
        agent = stack.enter_context(RL4SysAgent(config=agent_config))
        player = threading.Thread(target=play, args=(agent, stop))
        player.start()
        try:
            learner.wait(client_id="c", version=3, timeout_s=60.0)
            until(lambda: learner.status()["clients"]["c"]["checkpoint"]["number"] > 0)
            (rank,) = child_ranks()
            before = learner.status()["clients"]["c"]
            os.kill(rank, signal.SIGKILL)
            until(lambda: learner.status()["clients"]["c"]["generation"] > before["generation"])
            learner.wait(client_id="c", version=before["version"] + 3, timeout_s=60.0)
            after = learner.status()["clients"]["c"]
            crash = rf"RankLost: rank 1 of 2 \(pid {rank}\) ended with signal 9"
            assert after["worker"]["crashes"] == 1 and re.match(crash, after["worker"]["last_crash"])
            assert after["state"] == "running" and after["worker"]["devices"] == ["cpu", "cpu"]
            assert after["verdicts"]["quarantined"] == 0 and "worker_crashed" in after["alarms"]
            assert after["checkpoint"]["number"] >= before["checkpoint"]["number"]
            assert child_ranks() not in ([], [rank])
        finally:
            stop.set()
            player.join(30.0)
    assert child_ranks() == []


def test_more_ranks_than_a_minibatch_has_rows_are_refused() -> None:
    for name, parameters, rows in (("PPO", PPO, 21), ("DQN", DQN, 17)):
        algorithm = make_algorithm(name, OBSERVATIONS, FOUR, parameters, 3)
        with pytest.raises(ConfigError, match=f"learners: 32 ranks cannot divide a minibatch of {rows} rows") as caught:
            place_algorithm(algorithm, assignment(name, FOUR, parameters, learners=32), threading.Event())
        assert caught.value.key == "learners"
    check_rows(None, ONE_RANK)


@pytest.mark.parametrize("value", [0, -1, 65, 1.5, "two"])
def test_a_wrong_number_of_ranks_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="learners: expected an integer from 1 to 64") as caught:
        ClientConfig.from_mapping({"learners": value})
    assert caught.value.key == "learners"


def test_an_algorithm_without_the_methods_is_refused() -> None:
    fake = FakeAlgorithm.factory()(OBSERVATIONS, FOUR, {}, 0)

    def place(**options: Any) -> Any:
        return place_algorithm(fake, assignment("FAKE", FOUR, **options), threading.Event())

    with pytest.raises(ConfigError, match="learners: algorithm FAKE trains in one process"):
        place(learners=2)
    with pytest.raises(ConfigError, match="device: algorithm FAKE trains on the CPU"):
        place(device="cuda")
    assert place(device="auto") == (("cpu",), None)


def at_the_top(*given: Any) -> Any:
    raise NotImplementedError


def test_a_factory_that_another_process_cannot_import_is_refused() -> None:
    def local(*given: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(ConfigError, match="learners: another process cannot import the factory of algorithm LOCAL"):
        importable_factory(AlgorithmEntry(name="LOCAL", factory=local))
    assert importable_factory(AlgorithmEntry(name="GIVEN", factory=at_the_top)).endswith("test_ranks:at_the_top")
    assert importable_factory(ALGORITHMS.get("PPO")) == "rl4sys_zmq.algorithms.onpolicy.ppo:PPO"
