"""A status report as text: the important values in 80 columns, and clear marks at faults."""

import io
import os
import sys
from typing import Any

import pytest

from rl4sys_zmq import __version__
from rl4sys_zmq.cli.status import show_status
from rl4sys_zmq.ops.report import MAX_ACTORS_SHOWN, conservation_error, report_lines

NOW = 1_800_000_000.0


def actor(**changes: Any) -> dict[str, Any]:
    return {
        "live": True,
        "library": "rl4sys_zmq 1.2.3",
        "incarnation": 1,
        "spooled": False,
        "silent_s": 0.25,
        "received": 1042,
        "durable": 1041,
        "trained": 1040,
        "checkpointed": 1039,
        "pending": 2,
        "accepted_steps": 9000,
        "credit_steps": 2048,
        "verdicts": {},
        **changes,
    }


def client(**changes: Any) -> dict[str, Any]:
    return {
        "state": "running",
        "error": "",
        "algorithm": "PPO",
        "generation": int((NOW - 300) * 1000),
        "version": 1234,
        "updates": 61,
        "steps": 12_345_678,
        "steps_per_s": 12345.6,
        "episodes": 123_456,
        "mean_return": -475.25,
        "mean_reward": 0.98765,
        "policy_lag": 0.5,
        "accepted": 131,
        "pending": 7,
        "rolled_back": 11,
        "gap": 4,
        "resuming": False,
        "queued": 5,
        "queued_bytes": 1_234_567,
        "checkpoint": {"number": 12, "version": 59, "age_s": 3.25, "duration_s": 0.1, "error": ""},
        "verdicts": {"trained": 100, "stale": 10, "quarantined": 3, "refused": 2, "duplicate": 9},
        "actors": {"3f2a9c41-long-name-of-it": actor()},
        "actors_total": 1,
        "actors_live": 1,
        **changes,
    }


def evaluator(**changes: Any) -> dict[str, Any]:
    return {
        "evaluations": 12,
        "skipped": 0,
        "busy_s": 0.1,
        "version": 1234,
        "mean_return": -475.25,
        "best_version": 1100,
        "best_return": -400.125,
        "best": "run/best/luna/policy",
        "error": "",
        **changes,
    }


def report(**changes: Any) -> dict[str, Any]:
    return {
        "address": "tcp://127.0.0.1:50051",
        "pub": "tcp://127.0.0.1:50052",
        "version": "1.2.3",
        "pid": 4242,
        "uptime_s": 12.5,
        "counters": {"hellos": 3, "refused.forbidden": 2, "refused.malformed": 1, "refused.gap": 0},
        "security": {
            "listed": 3,
            "loads": 1,
            "problem": "",
            "alive": True,
            "accepted": 9,
            "denied.unlisted": 2,
            "denied.expired": 1,
        },
        "journal": {
            "durable": True,
            "used_bytes": 12_345_678,
            "max_bytes": 4 << 30,
            "queued_bytes": 100,
            "queued_items": 17,
            "error": "",
            "commits": 1,
            "failures": 0,
            "commit_s": 0.0,
            "damaged": 0,
        },
        "clients": {"luna": client()},
        **changes,
    }


def text(**changes: Any) -> str:
    return "\n".join(report_lines(report(**changes), NOW))


def test_everything_is_there_in_80_columns() -> None:
    lines = report_lines(report(), NOW, 80)
    assert max(map(len, lines)) <= 80
    assert lines == [
        "learner at tcp://127.0.0.1:50051, process 4242, up 12 s",
        f"version 1.2.3, this command {__version__}",
        "journal on disk, 12.3 MB of 4.3 GB used, 17 queued",
        "security: 3 keys listed; denied: 1 expired, 2 unlisted",
        "messages refused: 2 forbidden, 1 malformed",
        "",
        "luna: running, PPO, version 1,234, generation 5 min old",
        "  return -475.2  reward/step 0.988  episodes 123,456",
        "  steps 12,345,678  steps/s 12,346  lag 0.50",
        "  accepted 131: trained 100  stale 10  quarantined 3  pending 7  rolled_back 11",
        "  refused 2  duplicate 9  gap 4  queue 5 (1.2 MB)",
        "  checkpoint 12: version 59, 3.2 s ago",
        "  actor                  live  silent  received  durable  trained  saved  credit",
        "  3f2a9c41-l…name-of-it  yes    0.2 s     1,042    1,041    1,040  1,039   2,048",
    ]


def test_actors_with_another_version_are_named() -> None:
    libraries = ["rl4sys_zmq 1.2.3", "rl4sys_zmq 1.2.2", "rl4sys_zmq 1.2.2", ""]
    actors = {str(place): actor(library=library) for place, library in enumerate(libraries)}
    actors["gone"] = actor(library="rl4sys_zmq 0.9", live=False)
    line = text(clients={"luna": client(actors=actors, actors_total=5)}).splitlines()[1]
    assert line == f"version 1.2.3, this command {__version__}, actors: 2 of rl4sys_zmq 1.2.2, 1 of unknown"


def test_the_forms_of_actors_are_named() -> None:
    libraries = [f"rl4sys_zmq 1.2.{text}" for text in ("3 compiled", "3 compiled", "3 pure: a spool", "2 compiled")]
    actors = {str(place): actor(library=library) for place, library in enumerate(libraries)}
    line = text(clients={"luna": client(actors=actors, actors_total=4)}).splitlines()[1]
    assert line.endswith("actors: 2 compiled, 1 pure: a spool, 1 of rl4sys_zmq 1.2.2 compiled")


def test_a_broken_law_is_loud_while_running_and_not_resuming() -> None:
    broken = client(accepted=132)
    assert conservation_error(broken).startswith("accepted 132, but trained 100 + stale 10")
    assert "!! SEGMENTS ARE UNACCOUNTED FOR: accepted 132" in text(clients={"luna": broken})
    assert conservation_error(client()) == ""
    assert "!!" not in text()
    for harmless in ({"state": "failed"}, {"state": "starting"}, {"resuming": True}):
        assert conservation_error({**broken, **harmless}) == ""
    assert "luna: running (resuming), PPO" in text(clients={"luna": client(resuming=True)})


SECURITY, JOURNAL = report()["security"], report()["journal"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"journal": {**JOURNAL, "error": "it is full"}}, "!! journal: it is full"),
        ({"journal": {**JOURNAL, "damaged": 2}}, "!! journal: 2 damaged entries"),
        ({"journal": {**JOURNAL, "durable": False}}, "journal in memory: untrained data is lost when the process ends"),
        ({"warnings": ["others may change run; chmod go-w run"]}, "!! others may change run; chmod go-w run"),
        ({"security": {**SECURITY, "warnings": ["others may change it"]}}, "!! others may change it"),
        ({"security": None}, "security: no keys; any peer that reaches the port has all rights"),
        ({"security": {**SECURITY, "problem": "not TOML"}}, "!! the list of users on disk is not in force: not TOML"),
        (
            {"security": {**SECURITY, "alive": False}},
            "!! the check of keys has stopped, so no peer can connect: restart the learner",
        ),
        ({"clients": {}}, "no clients yet"),
        (
            {"clients": {"a b": client(state="failed", error="no")}},
            "  !! no; to restart it: rl4sys-learner client ADDRESS 'a b' restart",
        ),
    ],
)
def test_what_is_wrong_has_a_line(changes: dict[str, Any], line: str) -> None:
    assert line in text(**changes).splitlines()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"error": "ValueError: \x1b[31mno\nway"}, "  !! ValueError: \\x1b[31mno\\nway"),
        ({"checkpoint": {"number": 0, "error": "no space"}}, "  no checkpoint yet"),
        ({"checkpoint": {"number": 0, "error": "no space"}}, "  !! checkpoint: no space"),
        (
            {"worker": {"engine": "thread", "devices": ["cuda:0", "cuda:1"]}, "restarts": 3},
            "  engine thread, 2 ranks, device cuda:0, cuda:1, 3 restarts",
        ),
        ({"worker": {"engine": "process", "pid": 7, "busy_s": 0.0, "devices": ["cpu"]}}, "  engine process, process 7"),
        (
            {"worker": {"engine": "ray", "node": "0123456789", "host": "edge-1", "pid": 7}, "restarts": 1},
            "  engine ray, process 7 on edge-1, node 01234567, 1 restarts",
        ),
        ({"worker": {"engine": "ray", "node": "", "waiting": "no node has it"}}, "  !! it waits: no node has it"),
        ({"worker": {"engine": "ray", "host": "node-3", "pid": 7, "busy_s": 0.0}}, "  engine ray, process 7 on node-3"),
        ({"evaluator": evaluator(version=None, best_version=None)}, "  evaluation: no result yet"),
        ({"evaluator": evaluator(version=None)}, "  best -400.1 (version 1,100)"),
        ({"evaluator": evaluator(skipped=3)}, "  evaluation -475.2 (version 1,234)  best -400.1 (version 1,100)  skipped 3"),
        ({"evaluator": evaluator(busy_s=600.0)}, "  an evaluation has run for 10 min"),
        (
            {"evaluation": {"episodes": 1030, "mean_return": 480.0, "mean_length": 480.0, "version": 1234}},
            "  actors without exploration 480.0 (to version 1,234)  episodes 1,030",
        ),
    ],
)
def test_a_client_has_a_line_for_each_of_its_parts(changes: dict[str, Any], line: str) -> None:
    assert line in text(clients={"a": client(**changes)}).splitlines()


def actor_lines(actors: dict[str, Any], width: int | None = None, **changes: Any) -> list[str]:
    """Return the lines of the table of actors, without its head."""
    lines = report_lines(report(clients={"luna": client(actors=actors, actors_total=len(actors), **changes)}), NOW, width)
    return lines[[line.startswith("  actor ") for line in lines].index(True) + 1 :]


def test_many_actors_are_cut_and_those_in_trouble_come_first() -> None:
    actors = {f"a{i:03}": actor(live=i % 9 != 0, silent_s=2.5 if i % 10 == 0 else 0.1) for i in range(45)}
    *lines, more = actor_lines(actors)
    assert more == f"  and {45 - MAX_ACTORS_SHOWN} more (--json shows all)"
    assert [line.split()[0] for line in lines] == [
        *("a000", "a009", "a018", "a027", "a036"),  # not connected
        *("a010", "a020", "a030", "a040"),  # silent
        *(f"a{i:03}" for i in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13)),
    ]
    fewer = report_lines(report(clients={"luna": client(actors=actors, actors_total=450)}), NOW)
    assert fewer[-1] == f"  and {450 - MAX_ACTORS_SHOWN} more (--json shows 45)"


def test_actors_are_shown_by_name_and_address_where_there_is_room() -> None:
    names = ("cache-7.4121-9f3c01ab", "x" * 60 + ".4-9f3c01ab")
    actors = {name: actor(address="10.0.0.7") for name in names}
    rows = [line.split() for line in actor_lines(actors)]
    assert [row[0] for row in rows] == [*names]
    assert all(row[-1] == "10.0.0.7" for row in rows)
    rows = [line.split() for line in actor_lines(actors, 80)]
    assert rows[-1][0].startswith("xxxx") and "…" in rows[-1][0] and rows[-1][0].endswith("01ab")
    short = actor_lines({"a.1": actor(address="10.0.0.7")}, 80)
    assert short == ["  a.1    yes    0.2 s     1,042    1,041    1,040  1,039   2,048  10.0.0.7"]


def test_whatever_is_in_it_the_table_is_not_wider_than_the_terminal() -> None:
    actors = {
        f"{'w' * 150}.{i}-9f3c01ab": actor(**dict.fromkeys(("received", "durable", "trained", "checkpointed"), 10**i))
        for i in range(19)
    }
    lines = actor_lines(actors, 80)
    assert len(lines) == 19 and max(map(len, lines)) <= 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_its_width_and_is_cleared_while_it_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.cli.status.request_status", lambda *_: report(warnings=["x y " * 30]))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((50, 24)))
    monkeypatch.setattr("rl4sys_zmq.cli.status._pause", lambda: 1 // 0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(ZeroDivisionError):
        show_status("a:1", 1.0, keys=None, as_json=False, watch=True)
    shown = terminal.getvalue()
    assert shown.startswith("\x1b[H\x1b[Jlearner at ") and "x1b" not in repr(shown[6:])
    assert max(map(len, shown[6:].splitlines())) <= 50
