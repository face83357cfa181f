"""The replay buffer behaves like a plain list of transitions."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import raising

from rl4sys_zmq.errors import Closed, ConfigError, DataError, StoreEmpty
from rl4sys_zmq.serving import ReplayBuffer

HEIGHT, WIDTH = 3, 4


def plain(number: int = 0, **changes: Any) -> dict[str, Any]:
    data = {
        "observations": np.array([number, 1.0], np.float32),
        "actions": np.array([0.5], np.float32),
        "rewards": float(number),
        "next_observations": np.array([number + 1, 1.0], np.float32),
        "terminated": False,
    }
    return {key: value for key, value in (data | changes).items() if value is not None}


def episodes(lengths: list[int], stack: int, axis: int, seed: int) -> list[dict[str, Any]]:
    """Return transitions of a camera with a stack of frames, as Gymnasium's FrameStackObservation returns them."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        frames = [rng.integers(0, 256, (HEIGHT, WIDTH), np.uint8) for _ in range(length + 1)]
        frames = frames[:1] * (stack - 1) + frames
        for t in range(length):
            pair = [np.stack(frames[t + i : t + i + stack], axis) if stack > 1 else frames[t + i] for i in (0, 1)]
            rows.append(
                {
                    "observations": {"camera": pair[0], "joint": {"angle": rng.normal(size=2)}},
                    "next_observations": {"camera": pair[1], "joint": {"angle": rng.normal(size=2)}},
                    "actions": rng.integers(0, 5),
                    "rewards": np.float32(rng.normal()),
                    "terminated": t == length - 1,
                    "truncated": bool(rng.integers(0, 2)),
                    "extra": rng.normal(size=(2, 2)).astype(np.float16),
                }
            )
    return rows


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


def stack_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    return {
        key: stack_rows([row[key] for row in rows]) if isinstance(first[key], dict) else np.stack([row[key] for row in rows])
        for key in first
    }


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    capacity=st.integers(1, 20),
    stack=st.integers(1, 4),
    axis=st.sampled_from([0, 1, 2, -1]),
    images=st.booleans(),
    chunk=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_every_transition_comes_back_as_it_was(
    lengths: list[int], capacity: int, stack: int, axis: int, images: bool, chunk: int, seed: int
) -> None:
    rows = episodes(lengths, stack, axis, seed)
    options: dict[str, Any] = {"image_keys": ["camera"], "num_stack": stack, "stack_axis": axis} if images else {}
    store = ReplayBuffer(capacity, seed=seed, **options)
    for start in range(0, len(rows), chunk):
        if chunk == 1:
            store.insert(rows[start])
        else:
            store.batch_insert(rows[start : start + chunk])
    held = rows[-capacity:]
    for found, row in zip(store.get_latest_data(-1), held, strict=True):
        assert_same(found, {key: np.bool_(value) if key in ("terminated", "truncated") else value for key, value in row.items()})
    ids = np.arange(store.oldest_data_id(), store.latest_data_id() + 1)
    twin = stack_rows(held)
    twin["masks"] = (1 - twin["terminated"]).astype(np.float32)
    batch = store.sample(1, indx=ids)
    assert_same(batch, twin)
    drawn = store.sample(50)
    for index in range(50):
        assert any(
            np.array_equal(drawn["observations"]["joint"]["angle"][index], row["observations"]["joint"]["angle"]) for row in held
        )
    if images:
        shown = [row[name]["camera"] for row in held for name in ("observations", "next_observations")]
        distinct = {f.tobytes() for image in shown for f in ([image] if stack == 1 else np.moveaxis(image, axis, 0))}
        assert kept_frames(store) == {"camera": len(distinct)}


def kept_frames(store: ReplayBuffer) -> dict[str, int]:
    return {key: frames.used for key, frames in store._frames.items()}


def test_a_frame_is_kept_once_however_many_environments_take_turns() -> None:
    store = ReplayBuffer(500, image_keys=["camera"], num_stack=4)
    environments = [episodes([50], 4, 0, seed) for seed in range(8)]
    for step in zip(*environments, strict=True):
        store.batch_insert(step)
    assert kept_frames(store) == {"camera": 8 * 51}
    store.close()


def test_an_observation_may_be_the_image() -> None:
    rows = [
        {**row, **{name: row[name]["camera"] for name in ("observations", "next_observations")}} for row in episodes([9], 3, 0, 1)
    ]
    store = ReplayBuffer(5, image_keys=["observations"], num_stack=3)
    store.batch_insert(rows)
    np.testing.assert_array_equal(store.sample(1, indx=[8, 4])["next_observations"][0], rows[8]["next_observations"])
    assert kept_frames(store) == {"observations": 8}


def test_a_frame_may_be_a_number() -> None:
    store = ReplayBuffer(10, image_keys=["observations"], num_stack=4)
    for n in range(6):
        store.insert(plain(observations=np.arange(n, n + 4), next_observations=np.arange(n + 1, n + 5)))
    assert kept_frames(store) == {"observations": 10}
    np.testing.assert_array_equal(store.sample(1, indx=[5])["observations"][0], np.arange(5, 9))


@pytest.mark.parametrize("first", ["<", ">"])
def test_the_byte_order_does_not_matter(first: str) -> None:
    store = ReplayBuffer(10)
    rows = [
        plain(actions=np.array([n, 0.5], f"{order}f8"), observations=np.array(n, f"{order}i4"), next_observations=n)
        for n, order in enumerate((first, ">", ">", "<"))
    ]
    store.insert(rows[0])
    store.insert(rows[1])
    store.batch_insert(rows[2:])
    batch = store.sample(1, indx=range(4))
    assert batch["actions"].tolist() == [[n, 0.5] for n in range(4)]
    assert batch["observations"].tolist() == [0, 1, 2, 3]
    assert (batch["actions"].dtype.str, batch["observations"].dtype.str) == ("<f8", "<i4")


def test_sampling_is_uniform_its_own_and_repeatable() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    draws = []
    for _ in range(2):
        store = ReplayBuffer(10, seed=3)
        store.batch_insert([plain(i) for i in range(25)])
        draws.append(store.sample(20_000)["rewards"])
    np.testing.assert_array_equal(*draws)
    counts = np.bincount(draws[0].astype(int), minlength=25)
    assert not counts[:15].any()
    assert np.abs(counts[15:] - 2000).max() < 250
    np.testing.assert_array_equal(before, np.random.get_state(legacy=False)["state"]["key"])


@pytest.mark.parametrize(
    ("end", "terminated"), [({"masks": 0.0}, True), ({"masks": 1.0}, False), ({"dones": 1}, True), ({"dones": False}, False)]
)
def test_older_forms_of_the_end(end: dict[str, Any], terminated: bool) -> None:
    store = ReplayBuffer(3)
    store.insert(plain(terminated=None, **end))
    batch = store.sample(2)
    assert batch["terminated"].tolist() == [terminated] * 2
    assert batch["truncated"].tolist() == [False] * 2
    assert batch["masks"].tolist() == [1.0 - terminated] * 2
    assert "dones" not in batch
    other = ReplayBuffer(3)
    other.batch_insert(store.get_latest_data(-1))
    assert_same(other.sample(2), batch)


BAD = [
    (np.zeros(4), "", "a transition must be a dict"),
    ((1, 2, 3), "", "QueuedDataStore"),
    (plain(rewards=None), "rewards", "is missing"),
    (plain(terminated=None), "terminated", "one of terminated and masks, or dones; this one has none"),
    (plain(masks=1.0), "masks", "has terminated and masks"),
    (plain(dones=True), "dones", "is not a key of this store"),
    (plain(terminated=0.5), "terminated", "bool cannot hold"),
    (plain(terminated=None, masks=0.5), "masks", "not a boolean"),
    (plain(terminated=None, masks={"a": 1}), "masks", "object"),
    (plain(terminated=None, dones=[True]), "dones", r"shape \(1,\)"),
    (plain(observations=np.zeros(3, np.float32)), "observations", r"shape \(3,\) and dtype float32, .* shape \(2,\)"),
    (plain(next_observations=np.zeros((2, 1), np.float32)), "next_observations", r"shape \(2, 1\)"),
    (plain(actions=[0.5, 0.5]), "actions", r"shape \(2,\)"),
    (plain(actions=["left"]), "actions", "dtype <U4"),
    (plain(rewards=object()), "rewards", "object"),
    (plain(rewards=1e300), "rewards", "float32 cannot hold"),
    (plain(observations={"a": 1.0}), "observations", "is missing"),
    (plain(extra=1), "extra", "is not a key"),
    (plain(extra={}), "extra", "empty dict"),
    (plain() | {"a/b": 1}, "", "is not a key"),
    (plain() | {3: 1}, "", "is not a key"),
    (plain(observations=[[1], [2, 3]]), "observations", "not an array"),
]


@pytest.mark.parametrize(("data", "key", "words"), BAD)
def test_a_mistake_is_refused_by_its_key_and_nothing_is_stored(data: Any, key: str, words: str) -> None:
    store = ReplayBuffer(10)
    store.insert(plain(1))
    inserts: list[Callable[[], object]] = [lambda: store.insert(data), lambda: store.batch_insert([plain(2), data, plain(3)])]
    for insert in inserts:
        with pytest.raises(DataError, match=words) as caught:
            insert()
        assert caught.value.key == key
        assert isinstance(caught.value, ValueError)
    assert store.latest_data_id() == 0


@pytest.mark.parametrize(("first", "later"), [(np.int64(3), 2.5), (np.uint8(3), 300), (np.uint8(3), -1), (True, 2)])
def test_integers_keep_their_value_or_are_refused(first: Any, later: Any) -> None:
    store = ReplayBuffer(10)
    store.insert(plain(extra=first))
    store.insert(plain(extra=1))
    with pytest.raises(DataError, match="extra"):
        store.insert(plain(extra=later))
    assert [int(row["extra"]) for row in store.get_latest_data(-1)] == [int(first), 1]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"image_keys": "camera"}, "image_keys"),
        ({"image_keys": None}, "image_keys"),
        ({"num_stack": 0}, "num_stack"),
        ({"stack_axis": "a"}, "stack_axis"),
        ({"seed": -1}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"path": 5}, "path"),
        ({"observation_space": object()}, "observations"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], key: str) -> None:
    with raising(ConfigError, key=key):
        ReplayBuffer(10, **arguments)


def test_images_that_are_not_there_or_not_stacked_are_refused() -> None:
    for store, key in (
        (ReplayBuffer(10, image_keys=["lidar"]), "observations/lidar"),
        (ReplayBuffer(10, image_keys=["camera"], num_stack=5), "observations/camera"),
        (ReplayBuffer(10, image_keys=["camera"], num_stack=3, stack_axis=7), "observations/camera"),
    ):
        with raising(DataError, key=key):
            store.insert(episodes([1], 3, 0, 0)[0])
        assert len(store) == 0


def test_columns_that_no_memory_holds_are_a_matter_of_configuration() -> None:
    store = ReplayBuffer(1 << 60)
    with raising(ConfigError, "do not fit in memory", key="capacity"):
        store.insert(plain())
    assert len(store) == 0


def test_what_cannot_be_sampled() -> None:
    store = ReplayBuffer(3)
    with pytest.raises(StoreEmpty):
        store.sample(1)
    store.batch_insert([plain(i) for i in range(5)])
    for size in (0, -1, 2.0, True, 10**14, 10**30):
        with pytest.raises(DataError, match="batch_size"):
            store.sample(size)  # type: ignore[arg-type]
    for indices in ([1], [5], [-1], [[2]], [2.0], 3, "ab"):
        with pytest.raises(DataError, match="indx"):
            store.sample(1, indx=indices)
    store.close()
    store.close()
    for call in (lambda: store.sample(1), lambda: store.insert(plain()), lambda: store.get_latest_data(-1)):
        with pytest.raises(Closed):
            call()


def test_a_sample_shares_nothing_with_the_store() -> None:
    store, row = ReplayBuffer(3), plain(1)
    store.insert(row)
    row["observations"][:] = 9
    store.sample(1)["observations"][:] = 7
    store.get_latest_data(-1)[0]["observations"][:] = 5
    assert store.sample(1)["observations"].tolist() == [[1.0, 1.0]]


def test_the_spaces_fix_the_columns_from_the_first_transition_on() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    space = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Discrete(9)})
    store = ReplayBuffer(10, space, spaces.Box(-1, 1, (1,)))
    image = np.ones((2, 2), np.uint8)
    good = plain(observations={"camera": image, "place": 3}, next_observations={"camera": image, "place": 4}, actions=[0.25])
    for bad, key in (
        (good | {"observations": {"camera": image}}, "observations/place"),
        (good | {"actions": [1.0, 1.0]}, "actions"),
        (good | {"observations": {"camera": image[:1], "place": 3}}, "observations/camera"),
        (good | {"next_observations": {"camera": image * 1.5, "place": 3}}, "next_observations/camera"),
    ):
        with raising(DataError, key=key):
            store.insert(bad)
    store.insert(good)
    batch = store.sample(2)
    assert (batch["actions"].dtype, batch["observations"]["place"].dtype, len(store)) == (np.float32, np.int64, 1)
    with pytest.raises(ConfigError, match="Text"):
        ReplayBuffer(10, spaces.Dict({"words": spaces.Text(3)}))


@pytest.mark.parametrize("images", [(), ("camera",)])
def test_a_thread_that_samples_sees_whole_transitions(images: tuple[str, ...]) -> None:
    store = ReplayBuffer(40, image_keys=images)

    def row(number: int) -> dict[str, Any]:
        image = np.full((HEIGHT, WIDTH), number % 256, np.uint8)
        return {
            "observations": {"camera": image},
            "next_observations": {"camera": (image + 1).astype(np.uint8)},
            "actions": number,
            "rewards": number,
            "terminated": False,
        }

    def insert() -> None:
        for start in range(1, 3000, 6):
            store.batch_insert([row(i) for i in range(start, start + 5)])
            store.insert(row(start + 5))

    store.insert(row(0))
    thread = threading.Thread(target=insert)
    thread.start()
    rounds = 0
    while thread.is_alive() or not rounds:
        rounds += 1
        batch = store.sample(16)
        np.testing.assert_array_equal(batch["actions"], batch["rewards"])
        for name, ahead in (("observations", 0), ("next_observations", 1)):
            wanted = np.broadcast_to(((batch["actions"] + ahead) % 256)[:, None, None], (16, HEIGHT, WIDTH))
            np.testing.assert_array_equal(batch[name]["camera"], wanted)
    thread.join()
    assert len(store) == 40
