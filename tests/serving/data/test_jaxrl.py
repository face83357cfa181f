"""The conventions of jaxrl and SERL: their transition, the names and arguments of their stores, and their samples."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, DataError, StoreEmpty, StoreFileError
from rl4sys_zmq.serving import (
    MemoryEfficientReplayBufferDataStore,
    ReplayBuffer,
    ReplayBufferDataStore,
    TrajectoryBufferDataStore,
    make_default_trajectory_buffer,
)
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace

STATE = BoxSpace((3,))
ACTION = BoxSpace((1,))
CAMERA = BoxSpace((1, 8, 8, 3), "|u1", 0, 255)


def image_store(capacity: int = 10, **options: Any) -> MemoryEfficientReplayBufferDataStore:
    return MemoryEfficientReplayBufferDataStore(DictSpace({"wrist": CAMERA}), ACTION, capacity, ["wrist"], **options)


def transition(number: int, *, done: bool = False, truncated: bool = False, **more: Any) -> dict[str, Any]:
    """Return a transition as SERL's actor writes it."""
    return {
        "observations": np.full(3, number, np.float32),
        "actions": np.zeros(1, np.float32),
        "next_observations": np.full(3, number + 1, np.float32),
        "rewards": np.asarray(number, dtype=np.float32),
        "masks": 1.0 - done,
        "dones": done or truncated,
        **more,
    }


@pytest.mark.parametrize(
    ("masks", "dones", "terminated", "truncated"),
    [
        (1.0, False, False, False),
        (1.0, True, False, True),
        (0.0, True, True, False),
        (0.0, False, True, False),  # a goal that does not end the episode
        (np.float32(0), np.bool_(True), True, False),
    ],
)
def test_masks_rule_bootstrapping_and_dones_end_episodes(masks: Any, dones: Any, terminated: bool, truncated: bool) -> None:
    store = ReplayBufferDataStore(STATE, ACTION, 10)
    store.insert(transition(1) | {"masks": masks, "dones": dones})
    batch = store.sample(4)
    for key, value in {"masks": 1.0 - terminated, "dones": dones, "terminated": terminated, "truncated": truncated}.items():
        assert batch[key].tolist() == [value] * 4
    assert (batch["masks"].dtype, batch["dones"].dtype) == (np.float32, np.bool_)


def test_the_episodes_of_a_store_survive_a_copy_and_a_restart(tmp_path: Path) -> None:
    copy = ReplayBuffer(10, STATE, ACTION)
    with ReplayBufferDataStore(STATE, ACTION, 10, path=tmp_path / "a") as store:
        store.insert(transition(1, truncated=True))
        store.insert(transition(2, done=True))
    with ReplayBufferDataStore(STATE, ACTION, 10, path=tmp_path / "a") as again:
        copy.batch_insert(again.get_latest_data(-1))
        for one in (again, copy):
            batch = one.sample(1, indx=[0, 1])
            assert batch["dones"].tolist() == [True, True]
            assert batch["masks"].tolist() == [1.0, 0.0]
            assert batch["truncated"].tolist() == [True, False]


def test_a_sample_has_the_keys_that_were_requested() -> None:
    plain = ReplayBuffer(10)
    data = transition(1, done=True)
    del data["masks"], data["dones"]
    plain.insert(data | {"terminated": True, "extra": {"a": 1, "b": 2}})
    batch = plain.sample(2, keys=("observations", "masks", "dones", "extra"))
    assert batch.keys() == {"observations", "masks", "dones", "extra"} and batch["extra"].keys() == {"a", "b"}
    assert batch["dones"].tolist() == [True, True]
    assert plain.sample(2, ["rewards"]).keys() == {"rewards"}
    assert "dones" not in plain.sample(2)
    for keys, words in ((["nope"], "nope: is not a key"), ("masks", "not a list of keys"), ([3], "as indx="), (3, "not a list")):
        with pytest.raises(DataError, match=words):
            plain.sample(2, keys)  # type: ignore[arg-type]


def test_a_seed_repeats_the_samples() -> None:
    store = ReplayBufferDataStore(STATE, ACTION, 100)
    store.batch_insert([transition(n) for n in range(100)])
    assert store.seed(5) == [5]
    first = store.sample(8)["rewards"].tolist()
    (chosen,) = store.seed()
    second = store.sample(8)["rewards"].tolist()
    store.seed(5)
    assert store.sample(8)["rewards"].tolist() == first != second
    store.seed(chosen)
    assert store.sample(8)["rewards"].tolist() == second
    with pytest.raises(ConfigError, match="seed is 'x'"):
        store.seed("x")  # type: ignore[arg-type]


def test_an_iterator_draws_batches_without_end() -> None:
    store = ReplayBufferDataStore(STATE, ACTION, 100)
    batches = store.get_iterator(queue_size=2, sample_args={"batch_size": 4, "keys": ["rewards"]})  # before there is data
    with pytest.raises(StoreEmpty):
        next(batches)
    batches = store.get_iterator(sample_args={"batch_size": 4})
    store.insert(transition(7))
    assert next(batches)["rewards"].tolist() == [7.0] * 4
    for _ in range(3):
        store.insert(transition(8))
        assert next(batches)["observations"].shape == (4, 3)
    for size in (0, True, 1.5):
        with pytest.raises(ConfigError, match="queue_size"):
            store.get_iterator(queue_size=size)  # type: ignore[arg-type]


def test_an_iterator_copies_to_a_device_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReplayBufferDataStore(STATE, ACTION, 100)
    store.insert(transition(7))
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(ConfigError, match="device is 'gpu', which needs JAX"):
        store.get_iterator(sample_args={"batch_size": 4}, device="gpu")
    put = SimpleNamespace(device_put=lambda batch, device: (device, batch["rewards"].tolist()))
    monkeypatch.setitem(sys.modules, "jax", put)
    batch: Any = next(store.get_iterator(sample_args={"batch_size": 2}, device="gpu"))
    assert batch == ("gpu", [7.0, 7.0])


def test_another_order_of_arguments_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the order is ReplayBuffer\(capacity, .* ReplayBufferDataStore has agentlace's order"):
        ReplayBuffer(STATE, ACTION, 10)  # type: ignore[arg-type]
    for made in (ReplayBufferDataStore, MemoryEfficientReplayBufferDataStore, make_default_trajectory_buffer):
        with pytest.raises(ConfigError, match=rf"the order is {made.__name__}\(observation_space, action_space, capacity\)"):
            made(10, STATE, ACTION)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"device is 7; the order is .*TrajectoryBuffer has the seed in this place"):
        TrajectoryBufferDataStore(10, None, 7)
    with pytest.raises(ConfigError, match="capacity: expected an integer"):
        ReplayBufferDataStore(STATE, ACTION, 0)


def test_an_rlds_logger_is_refused() -> None:
    logger: Any = object()
    for make in (
        lambda: ReplayBufferDataStore(STATE, ACTION, 10, rlds_logger=logger),
        lambda: TrajectoryBufferDataStore(10, rlds_logger=logger),
        lambda: make_default_trajectory_buffer(STATE, ACTION, 10, rlds_logger=logger),
    ):
        with pytest.raises(ConfigError, match="does not write RLDS"):
            make()


def test_the_default_trajectory_buffer_samples_transitions(caplog: pytest.LogCaptureFixture) -> None:
    buffer = make_default_trajectory_buffer(STATE, DiscreteSpace(2), capacity=100, device="cpu:0")
    assert "device cpu:0 is ignored" in caplog.text
    for number in range(6):
        step = transition(number, done=number == 5)
        del step["dones"]
        buffer.insert(step | {"actions": 1, "end_of_trajectory": number % 3 == 2})
    data, mask = buffer.sample("training", 200)
    six = {"observations", "next_observations", "actions", "rewards", "masks", "end_of_trajectory"}
    assert data.keys() == mask.keys() == six
    assert (data["end_of_trajectory"] == (data["rewards"] % 3 == 2)).all()
    assert set(data["rewards"].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    np.testing.assert_array_equal(data["next_observations"], data["observations"] + 1)
    assert (data["masks"] == (data["rewards"] != 5.0)).all() and all(m.all() for m in mask.values())


def robot_transition(number: int, **more: Any) -> dict[str, Any]:
    images = {name: {"wrist": np.full((1, 8, 8, 3), n, np.uint8)} for name, n in (("now", number), ("next", number + 1))}
    return transition(number, **more) | {"observations": images["now"], "next_observations": images["next"]}


def test_the_keys_that_hil_serl_includes() -> None:
    both = image_store(include_grasp_penalty=True, include_next_actions=True)
    following = {"next_actions": np.ones(1), "next_intvn": True}
    both.insert(robot_transition(1, grasp_penalty=-0.02, **following))
    batch = both.sample(2, pack_obs_and_next_obs=True)
    assert (batch["grasp_penalty"].dtype, batch["next_actions"].dtype, batch["next_intvn"].dtype) == ("f4", "f4", "?")
    assert batch["grasp_penalty"].tolist() == [np.float32(-0.02)] * 2 and batch["next_actions"].shape == (2, 1)
    with pytest.raises(DataError, match="grasp_penalty: is missing"):
        both.insert(robot_transition(2, **following))
    with pytest.raises(DataError, match="next_intvn"):
        both.insert(robot_transition(2, grasp_penalty=0.0, next_actions=np.ones(1), next_intvn=0.5))
    none = image_store()
    none.insert(robot_transition(1, grasp_penalty=-0.02, **following))
    assert not {"grasp_penalty", "next_actions", "next_intvn"} & none.sample(1).keys()


def test_keys_that_the_stores_do_not_have_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    plain = ReplayBufferDataStore(STATE, ACTION, 10)
    images = image_store()
    for store, make in ((plain, transition), (images, robot_transition)):
        infos: dict[str, Any] = {"infos": {"succeed": "yes", "left": None}, "grasp_penalty": 0.0}
        store.batch_insert([make(1, **infos), make(2), make(3, **infos)])
        assert store.sample(3, indx=[0, 1, 2])["rewards"].tolist() == [1.0, 2.0, 3.0]
        assert "infos" not in store.sample(1) and len(store) == 3
    assert caplog.text.count("does not store the keys ['grasp_penalty', 'infos']; use ReplayBuffer") == 2
    with pytest.raises(DataError, match="must be a dict"):
        plain.insert([1, 2])  # type: ignore[arg-type]


def test_an_on_disk_store_keeps_the_included_keys(tmp_path: Path) -> None:
    with image_store(path=tmp_path / "a", include_grasp_penalty=True) as first:
        first.insert(robot_transition(1, grasp_penalty=1.0))
    with image_store(path=tmp_path / "a", include_grasp_penalty=True) as again:
        assert again.sample(1)["grasp_penalty"].tolist() == [1.0]
    with pytest.raises(StoreFileError, match="next_actions"):
        image_store(path=tmp_path / "a", include_next_actions=True)


def test_a_program_with_flax_gets_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(dict[str, Any]):
        """A stand-in for flax's FrozenDict."""

    monkeypatch.setitem(sys.modules, "flax.core.frozen_dict", SimpleNamespace(freeze=Frozen))
    plain = ReplayBufferDataStore(STATE, ACTION, 10)
    images = image_store()
    plain.insert(transition(1))
    images.insert(robot_transition(1))
    assert type(plain.sample(2)) is type(next(images.get_iterator(sample_args={"batch_size": 2}))) is Frozen
    packed = images.sample(2, pack_obs_and_next_obs=True)
    assert type(packed) is Frozen and packed["observations"]["wrist"].shape == (2, 2, 8, 8, 3)
    ours = ReplayBuffer(10)
    ours.insert(transition(1))
    assert type(ours.sample(2)) is dict


def test_images_are_packed_with_the_next_one() -> None:
    camera = BoxSpace((2, 4, 4, 3), "|u1", 0, 255)
    store = MemoryEfficientReplayBufferDataStore(DictSpace({"wrist": camera, "state": STATE}), ACTION, 20, image_keys=["wrist"])

    def seen(number: int) -> dict[str, Any]:
        stack = [np.full((4, 4, 3), max(n, 0), np.uint8) for n in (number - 1, number)]
        return {"wrist": np.stack(stack), "state": np.full(3, number, np.float32)}

    for number in range(5):
        store.insert(transition(number) | {"observations": seen(number), "next_observations": seen(number + 1)})
    batch = store.sample(1, indx=[3])
    np.testing.assert_array_equal(batch["next_observations"]["wrist"][0], seen(4)["wrist"])
    packed = next(store.get_iterator(sample_args={"batch_size": 9, "pack_obs_and_next_obs": True}))
    assert packed["observations"]["wrist"].shape == (9, 3, 4, 4, 3) and packed["next_observations"].keys() == {"state"}
    numbers = packed["rewards"].astype(int)
    assert (
        packed["observations"]["wrist"][:, :, 0, 0, 0] == np.stack([np.maximum(numbers - 1, 0), numbers, numbers + 1], 1)
    ).all()
    with pytest.raises(DataError, match="needs observations and next_observations"):
        store.sample(2, ["observations"], pack_obs_and_next_obs=True)
    with pytest.raises(ConfigError, match="image_keys: expected keys of the images"):
        MemoryEfficientReplayBufferDataStore(DictSpace({"state": STATE}), ACTION, 20)
