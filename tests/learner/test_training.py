"""Tests of updates that are undone: the segments that made them fail are found, and the state is as if they had never come."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import OneSegmentMessage, assert_same_state, random_segment

from rl4sys_zmq.errors import RankLost, TrainingDiverged
from rl4sys_zmq.learner.run.worker_storage import SuspectFiles
from rl4sys_zmq.learner.training.suspects import CrashSuspectRecord
from rl4sys_zmq.learner.training.training import MAX_DIVERGED, RecentSegments, UpdateRunner
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.testing.fakes import FakeParameters, fake_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # as in a learner thread

from rl4sys_zmq.algorithms.offpolicy.dqn import DQN  # noqa: E402
from rl4sys_zmq.algorithms.onpolicy.ppo import PPO  # noqa: E402

STEPS = 8


def segment(seq: int, **changes: Any) -> Segment:
    end = {"log_probs": np.full(STEPS, -0.6931, np.float32), "episode_return": 1.0, "episode_length": STEPS}
    return random_segment(STEPS, seq, spaces=(BoxSpace((4,)), DiscreteSpace(2)), **{**end, **changes})


def observe(trainer: UpdateRunner, seq: int, one: Segment) -> None:
    trainer.observe(OneSegmentMessage(seq, one), 0)  # type: ignore[arg-type]


def ppo(**parameters: Any) -> PPO:
    given = {"steps_per_epoch": 32 * STEPS, "normalise_rewards": True, "hidden_sizes": [16], "update_epochs": 2, **parameters}
    return PPO(BoxSpace((4,)), DiscreteSpace(2), given, 7)


def dqn(**parameters: Any) -> DQN:
    given = {"learning_starts": 0, "train_frequency": STEPS, "buffer_size": 1000, "batch_size": 32, "hidden_sizes": [16]}
    return DQN(BoxSpace((4,)), DiscreteSpace(2), {**given, "max_grad_norm": 1e18, **parameters}, 7)


def bad_segment(seq: int, kind: str) -> Segment:
    spoilt = {"nan": float("nan"), "3e38": 3e38}
    column = {"observations": (STEPS, 4), "rewards": (STEPS,)}["rewards" if kind == "rewards" else "observations"]
    value = np.full(column, spoilt.get(kind, 3e38), np.float32)
    return segment(seq, **{"rewards" if kind == "rewards" else "observations": value})


@pytest.mark.parametrize("culprits", [(0,), (31,), (5, 6), (0, 9, 17, 30)])
@pytest.mark.parametrize("normalise", [True, False])
def test_the_culprits_of_an_on_policy_update_are_found_and_nothing_of_them_stays(
    culprits: tuple[int, ...], normalise: bool
) -> None:
    algorithm, twin = ppo(normalise_observations=normalise), ppo(normalise_observations=normalise)
    trainer, clean = UpdateRunner(algorithm, CrashSuspectRecord(None)), UpdateRunner(twin, CrashSuspectRecord(None))
    for seq in range(32):
        observe(trainer, seq, bad_segment(seq, "nan") if seq in culprits else segment(seq))
        if seq not in culprits:
            observe(clean, seq, segment(seq))
    outcome = trainer.update()
    assert outcome is not None and outcome.metrics is None and outcome.reason
    assert tuple(one.seq for one in outcome.culprits) == culprits
    assert trainer.update() is None and trainer.updates == 0, "the rest waits for a full batch"
    assert len(trainer.held) == 32 - len(culprits)
    for seq in range(100, 100 + len(culprits)):
        for one in (trainer, clean):
            observe(one, seq, segment(seq))
    outcome, other = trainer.update(), clean.update()
    assert outcome is not None and other is not None and outcome.metrics == other.metrics and not outcome.unchanged
    assert len(outcome.used) == 32 and trainer.held == [] and trainer.updates == 1
    assert_same_state(algorithm.state(), twin.state())  # random numbers and statistics too


def test_a_log_probability_that_no_ratio_can_stand_is_found() -> None:
    algorithm = ppo()
    trainer = UpdateRunner(algorithm, CrashSuspectRecord(None))
    for seq in range(32):
        spoilt = {"log_probs": np.full(STEPS, -99.0, np.float32)} if seq == 11 else {}
        observe(trainer, seq, segment(seq, **spoilt))
    outcome = trainer.update()
    assert outcome is not None and [one.seq for one in outcome.culprits] == [11]
    assert all(np.isfinite(array).all() for array in algorithm.numbers_to_check())


def test_messages_of_a_replay_are_kept_within_a_limit() -> None:
    one = segment(0)
    recent = RecentSegments(8, 4 * one.nbytes)
    given = [OneSegmentMessage(seq, segment(seq)) for seq in range(30)]
    for message in given:
        recent.add(message, 0)  # type: ignore[arg-type]
    assert recent.nbytes == 4 * one.nbytes
    assert recent.pop(20) is None and recent.pop(30) is None
    found = [recent.pop(number) for number in (22, 25, 26, 29)]
    assert [f.seq for f in found if f] == [22, 25, 26, 29]
    messages: list[Any] = [f.message for f in found if f]
    assert messages == [None, None, given[26], given[29]], "the newest four messages"
    assert recent.pop(29) is None, "only once"


def test_segments_of_one_message_are_found_by_the_order_of_observation() -> None:
    recent, messages = RecentSegments(100, 1), [OneSegmentMessage(100, segment(0)), OneSegmentMessage(200, segment(0))]
    for place in (0, 3, 5):
        recent.add(messages[0], place)  # type: ignore[arg-type]
    recent.add(messages[1], 7)  # type: ignore[arg-type]
    found = [recent.pop(number) for number in (3, 1, 0, 2)]
    assert [(f.index, f.seq) for f in found if f] == [(7, 207), (3, 103), (0, 100), (5, 105)]


@pytest.mark.parametrize("prioritised", [False, True])
def test_culprits_in_a_replay_are_found_and_the_weights_go_back(prioritised: bool) -> None:
    algorithm = dqn(prioritised=prioritised)
    trainer = UpdateRunner(algorithm, CrashSuspectRecord(None))
    for seq in range(40):
        observe(trainer, seq, segment(seq))
        while trainer.update() is not None:
            pass
    assert trainer.updates == 40
    observe(trainer, 40, bad_segment(40, "3e38"))
    undone, found = 0, []
    for seq in range(41, 80):
        observe(trainer, seq, segment(seq))
        while (outcome := trainer.update()) is not None:
            if outcome.metrics is None:
                undone += 1
                found += [one.seq for one in outcome.culprits]
    assert found == [40] and undone == 1
    assert trainer.updates == 80 and all(np.isfinite(array).all() for array in algorithm.numbers_to_check())
    assert np.abs(np.asarray(algorithm._replay.gather(np.arange(40)).observations)).max() < 10


def test_an_off_policy_run_without_poison_is_bit_for_bit_as_without_the_net() -> None:
    one, other = dqn(), dqn()
    trainer = UpdateRunner(one, CrashSuspectRecord(None))
    for seq in range(60):
        observe(trainer, seq, segment(seq))
        other.observe(segment(seq))
        while trainer.update() is not None:
            pass
        while other.update() is not None:
            pass
    assert_same_state(one.state(), other.state())


class Touchy(FakeAlgorithm):
    """An algorithm that raises in each update with an episode of `alone`, or with all episodes of `together`."""

    def __init__(self, alone: set[int], together: set[int] | None = None) -> None:
        super().__init__(fake_spec(), FakeParameters(steps_per_update=16 * STEPS))
        self._alone, self._together = alone, together or {-1}

    def update(self, *, partial: bool = False) -> Any:
        batch = {episode for episode, _ in self.keys[self._used[0] :]}
        if (partial or self.demand() == 0) and (batch & self._alone or self._together <= batch):
            raise FloatingPointError(f"{len(batch)} segments")
        return super().update(partial=partial)


def fed(trainer: UpdateRunner, first: int = 0) -> Any:
    for seq in range(first, first + 16):
        observe(trainer, seq, segment(seq))
    return trainer.update()


def test_an_exception_of_some_data_is_undone_and_of_all_data_is_raised() -> None:
    outcome = fed(UpdateRunner(Touchy({3, 4}), CrashSuspectRecord(None)))
    assert [one.seq for one in outcome.culprits] == [3, 4] and "FloatingPointError" in outcome.reason
    with pytest.raises(FloatingPointError):
        fed(UpdateRunner(Touchy(set(range(16))), CrashSuspectRecord(None)))


class LosesARank(Touchy):
    """An algorithm that loses a rank in an update with an episode of `alone`, after `raises` such updates that only raise."""

    def __init__(self, alone: set[int], raises: int) -> None:
        super().__init__(alone)
        self._raises = raises

    def update(self, *, partial: bool = False) -> Any:
        try:
            return super().update(partial=partial)
        except FloatingPointError:
            self._raises -= 1
            if self._raises >= 0:
                raise
            raise RankLost("rank 1 of 2 (pid 7) ended with signal 6 (SIGABRT)") from None


@pytest.mark.parametrize("raises", [0, 1])
def test_the_segments_of_an_update_that_lost_a_rank_are_suspected_by_the_next_start(tmp_path: Path, raises: int) -> None:
    suspects = CrashSuspectRecord(SuspectFiles(tmp_path))
    with pytest.raises(RankLost):
        fed(UpdateRunner(LosesARank({3}, raises), suspects))
    suspects.close(crashed=True)
    following = CrashSuspectRecord(SuspectFiles(tmp_path))
    assert (
        following.finding
        and following.suspects(OneSegmentMessage.key, 3)
        and following.suspects(OneSegmentMessage.key, 12) is (raises == 0)
    )
    following.close()
    assert not CrashSuspectRecord(SuspectFiles(tmp_path)).finding


def test_what_fails_only_together_is_taken_out_together() -> None:
    outcome = fed(UpdateRunner(Touchy(set(), {4, 5}), CrashSuspectRecord(None)))
    assert {4, 5} <= {one.seq for one in outcome.culprits} and len(outcome.culprits) < 16


def test_an_algorithm_that_diverges_on_any_data_fails_in_the_end() -> None:
    algorithm = ppo(steps_per_epoch=16 * STEPS)
    trainer = UpdateRunner(algorithm, CrashSuspectRecord(None))
    algorithm._network.flat.fill_(float("nan"))
    trainer._keep()
    with pytest.raises(TrainingDiverged, match="restart the client"):
        for n in range(MAX_DIVERGED + 1):
            outcome = fed(trainer, 16 * n)
            assert outcome.metrics is None and len(outcome.culprits) == 16
