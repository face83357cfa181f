"""The table of learning: trainings of this library, with Stable-Baselines3 in turn where it has the algorithm.

    python benchmarks/learning.py                                  # the table of what is in the file
    python benchmarks/learning.py --cases dqn-cartpole sac-pendulum --seeds 1 2 3 4 5
    python benchmarks/learning.py --cases all --seeds 1 2 3 4 5    # a day on two cores; stop it and go on at any time
    python benchmarks/learning.py --cases all --seeds 4 5 &        # a second run with other seeds or cases shares the file
    python benchmarks/learning.py --cases ppo-pendulum --since v1  # again what was trained before that commit
    python benchmarks/learning.py --chance dqn-cartpole            # how many seeds a comparison needs
    python benchmarks/learning.py --coverage                       # how much the intervals promise, by seeds

A training of ours is a learner and one actor process over tcp; `bench.learning_cases` has the values. The score at a
mark (a half, three quarters and all of the steps) is the mean return of the training episodes that ended in the last tenth of the
steps before it. *Greedy* is the mean return of 50 greedy episodes after the training, with the same seeds on both sides. Over the
seeds the table has interquartile means with a 90 % interval from a bootstrap over the seeds, and (ours - random) /
(theirs - random). The file has one row for each case, seed and side, with the commit that trained it. A row in the file is not
repeated. With ``--since``, rows of commits that do not contain that commit are trained again, and replaced one by one.

``--chance`` draws both sides from the scores of both, so that they are equal, and counts how often such a pair passes: a ratio
of at least 0.9 with the lower end of its interval at 0.75 or above, at all three marks. ``--coverage`` draws seeds from known
distributions, and counts how often the interval has the true value. ``--page`` writes the table into the page.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bench.environment import environment
from bench.greedy import greedy_returns
from bench.learning_cases import CASES, Case
from bench.peers import PeerMissing, run_peer
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.curves import read_curves
from rl4sys_zmq.ops.episodes import MASK_KEY

CLIENT = "learning"
FILE = Path(__file__).parent / "results" / "learning.json"
EPISODES = 50
FIRST_SEED = 1000
"""The seed of the first greedy episode."""
OTHER_EPISODES = r"\*"
"""The mark of a greedy return whose episodes are not those of the other side."""
FEWEST, FEW = 3, " (intervals of about 60 and 74 %)"
"""A number of seeds, and what the table says beside it (`coverage`)."""
RANDOM_EPISODES = 100
RESAMPLES = 10_000
LIMIT_S = 900.0
"""Longest time from one policy version to the next."""
PEER_LIMIT_S = 3 * 3600.0
LEAST_RATIO, LEAST_END = 0.9, 0.75
"""The measure: the ratio, and the lower end of its interval."""
PAIRS = 200
COUNTS = (5, 10, 20, 30, 50)
PAGE = Path(__file__).parents[1] / "docs/explanation/learning.md"
START, END = "<!-- table -->\n", "<!-- end -->"
COVERED_COUNTS = (3, 5, 10, 14, 33)
COVERED_DRAWS, COVERED_RESAMPLES = 1000, 500


def main() -> None:
    """Does the trainings that the file lacks, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", choices=[*CASES, "all"], default=[], metavar="CASE", help=f"all, or {', '.join(CASES)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", nargs="+", choices=["ours", "sb3"], default=["ours", "sb3"])
    parser.add_argument("--since", metavar="COMMIT", help="train again what was trained by a commit without this one")
    parser.add_argument("--chance", choices=list(CASES), metavar="CASE", help="the chance of two equal sides to pass, by seeds")
    parser.add_argument("--coverage", action="store_true", help="how often the intervals contain the true value, by seeds")
    parser.add_argument("--page", action="store_true", help=f"write the table into docs/explanation/{PAGE.name}")
    parser.add_argument("--json", type=Path, default=FILE, help="the file with the rows")
    options = parser.parse_args()
    if options.chance is not None:
        print(chance(read(options.json), options.chance))
        return
    if options.coverage:
        print(coverage())
        return
    names = list(CASES) if "all" in options.cases else options.cases
    for seed in options.seeds:
        for name in names:
            for side in options.sides:
                key = {"case": name, "seed": seed, "side": side}
                known = [row for row in read(options.json)["rows"] if key.items() <= row.items()]
                if known and (options.since is None or contains(known[0].get("commit"), options.since)):
                    continue
                commit = machine_record()["commit"]
                found = ours(CASES[name], seed) if side == "ours" else theirs(CASES[name], seed)
                if found is None:
                    continue
                row = {**key, **found, "commit": commit}
                print(json.dumps(row), flush=True)
                with changed(options.json) as record:
                    record["rows"] = [*(other for other in record["rows"] if not key.items() <= other.items()), row]
    record = read(options.json)
    for env in {CASES[row["case"]].env for row in record["rows"]} - set(record["random"]):
        record["random"][env] = random_return(env)
        with changed(options.json) as kept:
            kept["random"][env] = record["random"][env]
    print(table(record))
    if options.page:
        before, _, rest = PAGE.read_text().partition(START)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{START}{table(record)}\n{END}{after}")


def contains(commit: str | None, other: str) -> bool:
    """True if `other` is `commit` or one of its ancestors. A row without a commit is older than all."""
    if commit in (None, "unknown"):
        return False
    command = ["git", "-C", str(FILE.parent), "merge-base", "--is-ancestor", other, str(commit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"--since {other}: {done.stderr.strip()}")
    return done.returncode == 0


def read(path: Path) -> dict[str, Any]:
    """The record in the file; one without rows if there is no file."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"random": {}, "rows": []}
    return record


@contextmanager
def changed(path: Path) -> Iterator[dict[str, Any]]:
    """The record in the file, which is written back at the end. Its folder is locked meanwhile, so runs can share the file."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        record = read(path)
        yield record
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**record, **machine_record()}, indent=1) + "\n")
        new.replace(path)
    finally:
        os.close(folder)


def ours(case: Case, seed: int) -> dict[str, Any]:
    """One training of this library."""
    presets = ALGORITHMS.get(case.algorithm).presets
    values = presets[case.env].parameters if case.values is None else case.values
    pacing_lag = presets[case.env].pacing_lag if case.values is None else case.pacing_lag
    client = ClientConfig(algorithm_name=case.algorithm, algorithm_parameters=dict(values), pacing_lag=pacing_lag)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = LearnerConfig(
            bind="tcp://127.0.0.1:0", run_dir=run_dir, clients={CLIENT: client}, seed=seed, torch_threads=1,
            checkpoint_every_s=3600.0, engine=case.engine, shutdown_timeout_s=60.0,
        )  # fmt: skip
        with Learner(config) as learner:
            began = time.monotonic()
            command = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--env", case.env, "--learner", learner.address]
            command += ["--client-id", CLIENT, "--num-envs", str(case.num_envs), "--seed", str(seed), "--exit-with-stdin"]
            actor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment())
            try:
                version = 0
                while True:
                    learner.wait(client_id=CLIENT, version=version, timeout_s=LIMIT_S)
                    status = learner.status()["clients"][CLIENT]
                    if status["steps"] >= case.steps:
                        break
                    version = status["version"] + 1
            finally:
                actor.terminate()
                actor.wait(10)
            seconds = time.monotonic() - began
        greedy = greedy_returns(case.env, run_dir, CLIENT, episodes=EPISODES, first_seed=FIRST_SEED)
        (curve,) = read_curves(run_dir)
    episodes = [(int(at), float(total)) for at, total in zip(curve.steps, curve.returns, strict=True)]
    return {"training": scores(episodes, case.steps), **greedy_figures(greedy), "seconds": round(seconds, 1)}


def theirs(case: Case, seed: int) -> dict[str, Any] | None:
    """One training of Stable-Baselines3, or None if it lacks the algorithm or is not installed."""
    if case.peer is None:
        return None
    values = json.dumps(case.peer_values)
    arguments: list[object] = ["--algorithm", case.peer, "--env", case.env, "--seed", seed, "--steps", case.steps]
    arguments += ["--values", values, "--episodes", EPISODES, "--first-seed", FIRST_SEED]
    try:
        found = run_peer("sb3", *arguments, limit_s=PEER_LIMIT_S)
    except PeerMissing as exc:
        print(f"without the peer: {exc}", flush=True)
        return None
    return {"training": scores(found["episodes"], case.steps), **greedy_figures(found["greedy"]), "seconds": found["seconds"]}


def greedy_figures(returns: list[float]) -> dict[str, Any]:
    """The mean of the greedy returns, and their number."""
    return {"greedy": round(float(np.mean(returns)), 1), "greedy_episodes": len(returns)}


def scores(episodes: list[tuple[int, float]], steps: int) -> list[float]:
    """The mean return of the training episodes before each mark; of the last ten before it if none ended there."""
    at, returns = np.array(episodes, dtype=np.float64).T
    found = []
    for mark in (steps // 2, steps * 3 // 4, steps):
        before = returns[at <= mark]
        inside = returns[(at > mark - steps // 10) & (at <= mark)]
        found.append(round(float((inside if len(inside) else before[-10:]).mean()), 3))
    return found


def random_return(name: str) -> float:
    """The mean return of uniformly random actions, of those that the environment allows."""
    env = gymnasium.make(name)
    env.action_space.seed(0)
    total = 0.0
    for number in range(RANDOM_EPISODES):
        _, info = env.reset(seed=number)
        over = False
        while not over:
            _, reward, terminated, truncated, info = env.step(env.action_space.sample(mask=info.get(MASK_KEY)))
            total += float(reward)
            over = terminated or truncated
    return round(total / RANDOM_EPISODES, 3)


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half of the last axis."""
    cut = values.shape[-1] // 4
    return np.asarray(np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1))


def table(record: dict[str, Any]) -> str:
    """The rows as a table in Markdown: one line for each case."""
    lines = [
        "| case | steps | seeds | ours: half, three quarters, end | greedy | s | Stable-Baselines3 | greedy | s "
        "| ratio above random [90 %] | reference |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        sides = {side: [row for row in record["rows"] if (row["case"], row["side"]) == (name, side)] for side in ("ours", "sb3")}
        if not sides["ours"]:
            continue
        count = len(sides["ours"])
        cells = [name + (", equal values" if case.fair else ""), f"{case.steps:,}", f"{count}{FEW if count == FEWEST else ''}"]
        for side in ("ours", "sb3"):
            cells += side_cells(sides[side], compared=bool(sides["sb3"]))
        cells += [ratios(sides["ours"], sides["sb3"], record["random"][case.env]) if sides["sb3"] else "", case.reference]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def side_cells(rows: list[dict[str, Any]], *, compared: bool) -> list[str]:
    """The scores with the interval of the last, the greedy return, and the median of the time.

    If the sides are compared, a greedy return of 20 episodes, whose seeds differ between the sides, has a mark. If rows have the
    episodes with equal seeds, only these rows count.
    """
    if not rows:
        return ["", "", ""]
    training = np.array([row["training"] for row in rows], dtype=np.float64).T
    middle = interquartile_mean(training)
    low, high = interval(interquartile_mean(training[-1][draws(len(rows))]))
    scored = " / ".join(map(figure, middle)) + f" [{figure(low)}, {figure(high)}]"
    equal = [row["greedy"] for row in rows if row.get("greedy_episodes") == EPISODES]
    greedy = np.array(equal or [row["greedy"] for row in rows if "greedy" in row], dtype=np.float64)
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    mean = figure(float(interquartile_mean(greedy))) + (OTHER_EPISODES if compared and not equal else "") if len(greedy) else ""
    return [scored, mean, f"{np.median(seconds):.0f}" if seconds else ""]


def figure(value: float) -> str:
    """A return as text: small ones have two decimals."""
    return f"{value:.0f}" if abs(value) >= 20 else f"{value:.2f}"


def ratios(mine: list[dict[str, Any]], other: list[dict[str, Any]], floor: float) -> str:
    """(ours - random) / (theirs - random) at each mark, with its interval."""
    found = []
    for mark in range(3):
        a, b = (np.array([row["training"][mark] for row in rows], dtype=np.float64) for rows in (mine, other))
        ratio = float((interquartile_mean(a) - floor) / (interquartile_mean(b) - floor))
        resampled = interquartile_mean(b[draws(len(b), seed=1)]) - floor
        low, high = interval((interquartile_mean(a[draws(len(a))]) - floor) / np.where(resampled == 0, np.nan, resampled))
        found.append(f"{ratio:.2f} [{low:.2f}, {high:.2f}]")
    return " / ".join(found)


def draws(count: int, seed: int = 0, size: int = RESAMPLES) -> NDArray[np.int64]:
    """The indices of bootstrap samples, ``[size, count]``."""
    return np.random.default_rng(seed).integers(count, size=(size, count))


def chance(record: dict[str, Any], name: str) -> str:
    """The spread of two equal sides, and the share of such pairs that pass, by the number of seeds."""
    scored = np.array([row["training"] for row in record["rows"] if row["case"] == name], dtype=np.float64).T
    lines = [f"{scored.shape[1]} scores", "| seeds | ratio at the end of two equal sides [90 %] | they pass |", "|---|---|---|"]
    for count in COUNTS:
        floor, rng = record["random"][CASES[name].env], np.random.default_rng(count)
        picks = rng.integers(scored.shape[1], size=(2, PAIRS, count))
        one, other = (np.moveaxis(scored[:, pick], 1, 0) for pick in picks)  # [PAIRS, marks, count]
        ratio = (interquartile_mean(one) - floor) / (interquartile_mean(other) - floor)
        ends = []
        for mine, their in zip(one, other, strict=True):
            above, below = (
                interquartile_mean(side[:, draws(count, seed, 1000)]) - floor for seed, side in enumerate((mine, their))
            )
            ends.append(np.quantile(above / below, 0.05, axis=1))
        passed = ((ratio >= LEAST_RATIO) & (np.array(ends) >= LEAST_END)).all(axis=1)
        low, high = interval(ratio[:, -1])
        lines.append(f"| {count} | {low:.2f} to {high:.2f} | {passed.mean():.0%} |")
    return "\n".join(lines)


def coverage() -> str:
    """The share of the intervals of 90 % that contain the true value, for seeds drawn from known distributions."""
    rng = np.random.default_rng(0)

    def normal(*size: int) -> NDArray[np.float64]:
        return rng.normal(1.0, 0.1, size)

    def two_groups(*size: int) -> NDArray[np.float64]:
        """Seeds of which a quarter has learned little."""
        return rng.normal(1.0, 0.05, size) - 0.4 * (rng.random(size) < 0.25)

    lines = ["| seeds on each side | distribution | interval of the score | of the ratio |", "|---|---|---|---|"]
    for name, draw in (("normal", normal), ("two groups", two_groups)):
        truth = float(interquartile_mean(draw(1_000_000)))
        for count in COVERED_COUNTS:
            hits = np.zeros(2)
            for _ in range(COVERED_DRAWS):
                picks = rng.integers(count, size=(2, COVERED_RESAMPLES, count))
                mine, other = (interquartile_mean(draw(count)[pick]) for pick in picks)
                for place, (values, true) in enumerate(((mine, truth), (mine / other, 1.0))):
                    low, high = interval(values)
                    hits[place] += low <= true <= high
            score, ratio = hits / COVERED_DRAWS
            lines.append(f"| {count} | {name} | {score:.0%} | {ratio:.0%} |")
    return "\n".join(lines)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 90 %."""
    low, high = np.nanquantile(values, [0.05, 0.95])
    return float(low), float(high)


if __name__ == "__main__":
    main()
