"""Learning curves: the moving mean, the values that are read from a log, groups of runs, tables and pictures."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.ops.curves import WINDOW, draw_curves, group_curves, moving_mean, read_curves, write_curves


def metrics(t: float, *episodes: tuple[float, float], client: str = "luna", lag: float | None = None) -> dict[str, Any]:
    scalars = {} if lag is None else {"dist/policy_lag": lag}
    rows = [[step, total, 10] for step, total in episodes]
    return {"t": t, "event": "metrics", "client_id": client, "step": 0, "update": 0, "scalars": scalars, "episodes": rows}


def write_log(run: Path, *records: dict[str, Any], tail: str = "") -> Path:
    run.mkdir(exist_ok=True)
    (run / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + tail)
    return run


@given(st.lists(st.floats(-1e6, 1e6), max_size=50), st.integers(1, 60))
def test_the_moving_mean_is_the_mean_of_each_window(values: list[float], window: int) -> None:
    slow = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    assert np.allclose(moving_mean(np.asarray(values), window), slow, atol=1e-6)


def test_seconds_count_from_the_first_actor_and_a_half_line_is_left_out(tmp_path: Path) -> None:
    joined = {"t": 100.0, "event": "actor_joined", "client_id": "luna", "actor_id": "a"}
    run = write_log(
        tmp_path / "run",
        joined,
        {**joined, "t": 101.0, "actor_id": "b"},
        metrics(102.0, (10, 1.0), (20, 2.0), lag=1.0),
        metrics(103.5, (30, 3.0), lag=2.0),
        tail='{"t": 104, "event": "metr',
    )
    (curve,) = read_curves(run)
    assert curve.label == "run"
    assert curve.steps.tolist() == [10, 20, 30]
    assert curve.returns.tolist() == [1, 2, 3]
    assert curve.seconds.tolist() == [2.0, 2.0, 3.5]
    assert curve.policy_lag == 1.5


def ready(t: float, steps: int, client: str = "luna") -> dict[str, Any]:
    return {"t": t, "event": "client_ready", "client_id": client, "checkpoint": 3 if steps else 0, "steps": steps, "episodes": 1}


def test_what_a_return_to_a_checkpoint_undid_is_cut(tmp_path: Path) -> None:
    run = write_log(
        tmp_path / "run",
        metrics(1.0, (10, 1.0), (20, 2.0), (30, 3.0)),
        metrics(1.0, (15, 9.0), client="other"),
        ready(2.0, 20),
        metrics(3.0, (32, 4.0)),
    )
    luna, other = read_curves(run)
    assert luna.steps.tolist() == [10, 20, 32]
    assert luna.returns.tolist() == [1, 2, 4]
    assert other.steps.tolist() == [15]


def test_evaluations_are_read_and_those_that_were_undone_are_cut(tmp_path: Path) -> None:
    def evaluated(t: float, step: int, mean: float) -> dict[str, Any]:
        return {**metrics(t), "step": step, "scalars": {"eval/mean_return": mean}}

    run = write_log(
        tmp_path / "run",
        metrics(1.0, (10, 1.0)),
        evaluated(2.0, 5, 7.0),
        evaluated(3.0, 30, 8.0),
        ready(4.0, 20),
        evaluated(5.0, 25, 9.0),
    )
    (curve,) = read_curves(run)
    assert curve.evaluations.tolist() == [[7.0, 5.0, 1.0], [9.0, 25.0, 4.0]]
    draw_curves([curve], tmp_path / "curves.svg")
    assert "run, evaluated" in (tmp_path / "curves.svg").read_text()


def test_a_client_that_begins_again_without_a_checkpoint_has_a_new_curve(tmp_path: Path) -> None:
    (curve,) = read_curves(write_log(tmp_path / "run", metrics(1.0, (50, 1.0)), ready(2.0, 0), metrics(3.0, (5, 2.0))))
    assert curve.steps.tolist() == [5]


def test_a_name_is_drawn_as_text_and_never_hidden(tmp_path: Path) -> None:
    names = ["$^$", "$é_{", "_hidden", "日本"]
    write_log(tmp_path, *(metrics(1.0, (8.0, 8.0), client=name) for name in names))
    curves = read_curves(tmp_path)
    draw_curves(curves, tmp_path / "curves.png")
    assert len(curves) == 4 and (tmp_path / "curves.png").stat().st_size


def test_the_time_without_a_learner_is_left_out(tmp_path: Path) -> None:
    joined = {"t": 100.0, "event": "actor_joined", "client_id": "luna", "actor_id": "a"}
    run = write_log(
        tmp_path / "run",
        {"t": 90.0, "event": "learner_started", "down_s": 0.0},
        joined,
        metrics(110.0, (10, 1.0)),
        {"t": 112.0, "event": "closed_with_pending_segments", "pending": {}},
        {"t": 5000.0, "event": "learner_started", "down_s": 4888.0},
        ready(5002.0, 10),
        {**joined, "t": 5010.0},
        metrics(5013.0, (20, 2.0)),
    )
    (curve,) = read_curves(run)
    assert curve.seconds.tolist() == [10.0, 25.0]  # 12 s until the first learner ended, and 13 s of the second


def test_each_client_has_a_curve(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", metrics(1.0, (1, 1.0), client="b"), metrics(1.0, (1, 2.0), client="a"))
    assert [c.label for c in read_curves(run)] == ["run/a", "run/b"]


def test_a_target_is_reached_by_a_full_window_only(tmp_path: Path) -> None:
    rows = [metrics(float(i), (10 * i, 500.0 if i > 10 else 0.0)) for i in range(2 * WINDOW)]
    (curve,) = read_curves(write_log(tmp_path / "run", *rows))
    first = next(i for i in range(WINDOW - 1, 2 * WINDOW) if np.mean(curve.returns[i + 1 - WINDOW : i + 1]) >= 475)
    assert curve.reached(475.0) == (float(first), 10 * first)
    assert curve.reached(501.0) is None


@pytest.mark.parametrize("content", [None, "not json\n"])
def test_what_is_no_run_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"log\.jsonl"):
        read_curves(tmp_path)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = read_curves(write_log(tmp_path / "run", *(metrics(float(i), (i, float(i))) for i in range(150))))
    draw_curves(curves * 2, tmp_path / "curve.png", target=100.0)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"curve\.what"):
        draw_curves(curves, tmp_path / "curve.what")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        draw_curves(curves, tmp_path / "nowhere" / "curve.png")


def seeded(folder: Path, seed: int, returns: list[float], **learner: Any) -> Path:
    """Write a run of the client luna with one episode for each return, every 10 steps and 1 s."""
    rows = [{**metrics(float(n), (10 * n, total)), "update": n} for n, total in enumerate(returns, 1)]
    run = write_log(folder / f"run-{seed}", *rows)
    (run / "config.json").write_text(json.dumps({"seed": seed, "clients": {"luna": {}}, **learner}))
    return run


def test_runs_that_differ_in_the_seed_only_are_one_group(tmp_path: Path) -> None:
    runs = [seeded(tmp_path, seed, [1.0, 3.0]) for seed in (1, 2)]
    other = seeded(tmp_path, 3, [5.0], algorithms={"PPO": {"gamma": 0.5}})
    curves = [curve for run in (*runs, other) for curve in read_curves(run)]
    assert [curve.seed for curve in curves] == [1, 2, 3]
    together, alone = group_curves(curves, "client")
    assert together.label == "luna, 2 runs (run-1 to run-2): mean, lowest to highest"
    assert [curve.run for curve in together.curves] == ["run-1", "run-2"]
    assert alone.label == "run-3"
    assert [group.label for group in group_curves(curves, "seed")] == [f"luna, seed {seed}" for seed in (1, 2, 3)]


def test_the_seed_of_a_client_goes_before_that_of_the_learner(tmp_path: Path) -> None:
    entry = {"luna": {"algorithm_parameters": {"seed": 9, "gamma": 0.5}}}
    (curve,) = read_curves(seeded(tmp_path, 1, [1.0], clients=entry))
    (other,) = read_curves(seeded(tmp_path, 2, [1.0], clients={"luna": {"algorithm_parameters": {"gamma": 0.5}}}))
    assert (curve.seed, other.seed) == (9, 2) and curve.settings == other.settings


@pytest.mark.parametrize("content", [None, "", "[1]", "{"])
def test_a_run_without_a_readable_configuration_has_no_seed(tmp_path: Path, content: str | None) -> None:
    run = write_log(tmp_path / "run", metrics(1.0, (10, 1.0)))
    if content is not None:
        (run / "config.json").write_text(content)
    (curve,) = read_curves(run)
    assert curve.seed is None and group_curves([curve], "seed")[0].label == "run"


def test_a_band_is_interpolated_and_ends_with_each_run(tmp_path: Path) -> None:
    runs = (seeded(tmp_path, 1, [0.0, 10.0, 20.0]), seeded(tmp_path, 2, [4.0, 4.0, 4.0, 4.0, 4.0]))
    (group,) = group_curves([curve for run in runs for curve in read_curves(run)], "client")
    for axis, unit in (("steps", 10.0), ("updates", 1.0)):
        grid, (rising, flat) = group.band(axis, 1)
        assert (grid[0], grid[-1]) == (unit, 5 * unit) and set(flat) == {4.0}
        inside = grid <= 3 * unit
        assert np.allclose(rising[inside], 10 * (grid[inside] / unit - 1)) and np.isnan(rising[~inside]).all()
    _, (mean, _) = group.band("time", 2)
    assert np.nanmax(mean) == pytest.approx(15.0, abs=0.1)


@pytest.mark.parametrize("axis", ["steps", "time", "updates"])
def test_groups_are_drawn_over_each_axis(tmp_path: Path, axis: str) -> None:
    curves = [curve for seed, n in ((1, 30), (2, 50)) for curve in read_curves(seeded(tmp_path, seed, [float(n)] * n))]
    draw_curves(group_curves(curves, "client"), tmp_path / "curves.svg", axes=[axis], window=7)
    drawn = (tmp_path / "curves.svg").read_text()
    for words in ("luna, 2 runs (run-1 to run-2): mean, lowest to highest", "where some of these runs have ended", "mean of 7"):
        assert words in drawn


def test_the_table_has_each_episode(tmp_path: Path) -> None:
    groups = group_curves(read_curves(seeded(tmp_path, 7, [1.0, 3.0, 5.0])), "client")
    write_curves(groups, tmp_path / "curve.csv", window=2)
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["seed"], row["steps"], row["updates"]) for row in rows] == [
        ("run-7", "7", f"{10 * n}.0", f"{n}.0") for n in (1, 2, 3)
    ]
    assert [(float(row["return"]), float(row["mean"])) for row in rows] == [(1.0, 1.0), (3.0, 2.0), (5.0, 4.0)]
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_curves(groups, tmp_path / "nowhere" / "curve.csv")
