"""Actors of different speeds share a learner thread: none slows the fast ones down, and each gets what it can use."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kit import until

from .conftest import Child, Report, Spawn, Tier, agent_options, check_law

pytestmark = pytest.mark.timeout(900)

PART_QUICK, PART_LONG = 0.3, 0.9
"""The least part of its rate alone that an actor must get. In the quick tier, other tests take the processors at any time.

Before credit followed the pace of the actors, it was 0 to 0.3.
"""

SPOOL_PART_LONG = 0.5
FAST_HZ = 2000
"""The rate of the fast actor. With a higher one, other programs on the machine would change it more than its neighbours do."""

WAITS: dict[str, Any] = {"overflow": "wait", "wait_timeout_s": 60.0}
DROPS: dict[str, Any] = {"overflow": "drop_oldest"}

MIXES: dict[str, list[dict[str, Any]]] = {
    "honest": [
        {"hz": 1, "episode": 1, **WAITS},
        {"hz": 5, "episode": 5, **DROPS},
        {"hz": 20, "episode": 4, **WAITS},
        {"hz": 20, "episode": 20, **WAITS},
        {"hz": 50, "episode": 50, **WAITS},
        {"hz": 100, "episode": 20, **DROPS},
    ],
    "greedy": [{"hz": 13, "episode": 4, "greedy": True, **DROPS}] * 4,
}


def actors(address: str, plans: list[dict[str, Any]], name: str) -> dict[str, Any]:
    options = []
    for place, plan in enumerate(plans):
        chosen: dict[str, Any] = {key: plan[key] for key in ("overflow", "wait_timeout_s", "spool") if key in plan}
        agent = agent_options(address, actor_id=f"{name}-{place}", **chosen)
        member: dict[str, Any] = {key: plan[key] for key in ("hz", "episode", "greedy") if key in plan}
        options.append({**member, "agent": agent})
    return {"actors": options}


@pytest.mark.parametrize("mix", MIXES)
def test_each_actor_gets_what_it_can_use(mix: str, tier: Tier, report: Report, spawn: Spawn, learner: Any) -> None:
    """A fast actor alone, then with the others, in turn."""
    rounds, window_s = (7, 3.0) if tier.long else (3, 0.7)
    config = {"pacing_lag": 0, "max_policy_lag": 10**6}
    _, address = learner(forgetful=True, config=config, steps_per_update=256, rollout_length=64)
    fast = spawn("crew", actors(address, [{"hz": FAST_HZ, **WAITS}], "fast"))
    others = spawn("crew", actors(address, MIXES[mix], "other"))
    assert [fast.hear(), others.hear()] == ["ready"] * 2
    fast.ask("begin")
    until(lambda: sum(fast.ask("steps")), "the first steps")
    parts: list[float] = []
    alone: list[float] = []
    slow = [0.0] * len(MIXES[mix])
    for _ in range(rounds):
        alone.append(rates(fast, window_s)[0])
        others.ask("begin")
        began = others.ask("steps")
        parts.append(rates(fast, window_s)[0] / max(alone[-1], 1.0))
        slow = [have + now - before for have, now, before in zip(slow, others.ask("steps"), began, strict=True)]
        others.ask("rest")
        if not tier.long and parts[-1] >= PART_QUICK:
            break
    useful = list(zip(MIXES[mix], slow, strict=True))
    part = statistics.median(parts) if tier.long else max(parts)
    report(
        mix=mix,
        fast_alone=round(statistics.median(alone)),
        part=round(part, 2),
        slow={
            f"{plan['hz']} Hz x{plan['episode']} {place}": round(steps / len(parts) / window_s, 1)
            for place, (plan, steps) in enumerate(useful)
        },
    )
    assert part >= (PART_LONG if tier.long else PART_QUICK), parts
    for plan, steps in useful:
        least = PART_LONG * plan["hz"] * window_s * len(parts) - len(parts) * 2 * plan["episode"]
        assert steps >= (least if tier.long else 0), (plan, steps)


def rates(asked: Child, window_s: float) -> list[float]:
    """Return the accepted steps per second of each actor of a crew."""
    before, began = asked.ask("steps"), time.monotonic()
    threading.Event().wait(window_s)
    after, took_s = asked.ask("steps"), time.monotonic() - began
    return [(new - old) / took_s for old, new in zip(before, after, strict=True)]


def test_a_spool_drains_beside_busy_actors(tier: Tier, report: Report, spawn: Spawn, learner: Any, tmp_path: Path) -> None:
    """The gateway is held until the spool is full. Then it is drained alone, and beside two busy actors."""
    segments = tier.size(1_500, 30_000, least=1_500)
    config = {"pacing_lag": 8, "run_dir": None}
    process, address = learner(forgetful=True, config=config, steps_per_update=512, rollout_length=64)
    busy = spawn("crew", actors(address, [{"hz": 1000, **WAITS}] * 2, "busy"))
    full = spawn("crew", actors(address, [{"hz": 0, "episode": 4, "spool": str(tmp_path / "spool"), **DROPS}], "full"))
    assert [busy.hear(), full.hear()] == ["ready"] * 2
    seconds: dict[str, float] = {}
    for name in ("alone", "beside"):
        process.ask("hold")
        full.ask("begin")
        until(lambda: full.ask("stats")[0]["in_actor"] >= segments, "a full spool")
        full.ask("rest")
        if name == "beside":
            busy.ask("begin")
        process.ask("release")
        until(lambda: full.ask("stats")[0]["in_actor"] < 0.9 * segments, "the first segments of the spool")
        began, left = time.monotonic(), full.ask("stats")[0]["in_actor"]
        until(lambda: full.ask("stats")[0]["in_actor"] == 0, "an empty spool")
        seconds[name] = (time.monotonic() - began) / max(left, 1)
    report(segments=segments, per_s={name: round(1 / each_s) for name, each_s in seconds.items()})
    stats = full.ask("stats")[0]
    check_law(stats)
    assert stats["accepted"] >= 2 * segments
    if tier.long:
        assert seconds["beside"] <= seconds["alone"] / SPOOL_PART_LONG
