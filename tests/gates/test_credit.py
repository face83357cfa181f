"""A full spool drains beside busy actors. tests/delivery/test_credit_mixes.py has actors of different speeds."""

import time
from pathlib import Path
from typing import Any

import pytest
from kit import until

from .conftest import Report, Spawn, Tier, agent_options, check_law

pytestmark = pytest.mark.timeout(900)

SPOOL_PART_LONG = 0.5

WAITS: dict[str, Any] = {"overflow": "wait", "wait_timeout_s": 60.0}
DROPS: dict[str, Any] = {"overflow": "drop_oldest"}


def actors(address: str, plans: list[dict[str, Any]], name: str) -> dict[str, Any]:
    options = []
    for place, plan in enumerate(plans):
        chosen: dict[str, Any] = {key: plan[key] for key in ("overflow", "wait_timeout_s", "spool") if key in plan}
        agent = agent_options(address, actor_id=f"{name}-{place}", **chosen)
        member: dict[str, Any] = {key: plan[key] for key in ("hz", "episode") if key in plan}
        options.append({**member, "agent": agent})
    return {"actors": options}


def held(stats: dict[str, Any]) -> int:
    """Count what the actor holds at least. While it sends, ``in_actor`` counts some segments twice."""
    return int(stats["submitted"] - stats["dropped_at_source"] - stats["refused"] - stats["accepted"])


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
        until(lambda: held(full.ask("stats")[0]) >= segments, "a full spool")
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
