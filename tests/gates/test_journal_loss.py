"""The journal's files are damaged, deleted or replaced, at rest or under a running learner.

The loss is reported, counted or repaired.

No acknowledged segment may be lost without a report: it is in the lineage that survives, or it is counted as rolled back after
an operator has accepted the loss.
"""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit import until

from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.learner.run.resume import open_journal

from .conftest import PACKAGE, Report, Tier
from .kill_lab import Lab
from .test_state_faults import assert_exact, checkpoints, flip_a_bit, living, more, two_actors

pytestmark = pytest.mark.timeout(600)
FILES = ("journal.db", "journal.db-wal", "journal.marks")
DEADLINE_S = 20.0


def contents(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run_dir.glob("journal.*") if path.name != "journal.db.lock"}


def refusal(run_dir: Path) -> str:
    """Return the message of the refused start. The files stay unchanged, and a second start is refused as well."""
    before = contents(run_dir)
    for _ in range(2):
        with pytest.raises(JournalError, match="resume accept-loss") as caught:
            Learner(LearnerConfig(bind="inproc://refused", run_dir=run_dir)).start().close()
    assert contents(run_dir) == before
    return str(caught.value)


def flip_the_log_s_header(run_dir: Path, rng: random.Random) -> None:
    path = run_dir / "journal.db-wal"
    data = bytearray(path.read_bytes())
    data[rng.randrange(32)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def log_matters(run_dir: Path) -> bool:
    """Return True if the write-ahead log holds rows that the file lacks."""
    totals = []
    with tempfile.TemporaryDirectory() as place:
        for names in (FILES[:1], FILES[:2]):
            for name in names:
                shutil.copy(run_dir / name, place)
            with closing(sqlite3.connect(Path(place) / FILES[0])) as db:
                totals.append(db.execute("SELECT sum(received) FROM streams").fetchone())
            for path in Path(place).iterdir():
                path.unlink()
    return bool(totals[0] != totals[1])


def zero(run_dir: Path, rng: random.Random) -> None:
    """Overwrite both files with zeros: the write-ahead log alone would restore its contents."""
    for name in FILES[:2]:
        path = run_dir / name
        path.write_bytes(bytes(path.stat().st_size))


def empty(run_dir: Path, rng: random.Random) -> None:
    (run_dir / FILES[0]).write_bytes(b"")


def delete(run_dir: Path, rng: random.Random) -> None:
    for name in FILES[:2]:
        (run_dir / name).unlink()


AT_REST = {"header": flip_the_log_s_header, "zeros": zero, "empty": empty, "deleted": delete}


QUICK_AT_REST = {("header", True), ("zeros", False), ("deleted", True)}


@pytest.mark.parametrize("harm", AT_REST)
@pytest.mark.parametrize("saved", [True, False], ids=["saved", "unsaved"])
def test_a_journal_that_is_lost_is_refused_and_then_counted(
    folder: Path, seed: int, tier: Tier, report: Report, harm: str, saved: bool
) -> None:
    if not tier.long and (harm, saved) not in QUICK_AT_REST:
        pytest.skip("the long tier alone: RL4SYS_SOAK=1")
    with living(folder, seed, 300, checkpoint_every_s=0.2 if saved else 600.0) as (lab, actors):
        if saved:
            lab.loop.until(lambda: bool(checkpoints(lab)), DEADLINE_S, "a checkpoint")
        lab.learner.kill()
        while harm == "header" and not log_matters(lab.run_dir):
            lab.serving()
            more(lab, 10)
            lab.learner.kill()
        AT_REST[harm](lab.run_dir, random.Random(seed))
        said = refusal(lab.run_dir)
        assert "client 'on'" in said and "acknowledged" in said
        lab.reconfigure(resume="accept-loss")
        lab.serving()
        more(lab, 50)
        status = lab.finish(*actors)
        lost = assert_exact(lab, status, actors, gap=False)
        assert lost >= 300 or saved or harm == "header"  # most of the segments were in the file itself
        assert status["journal"]["lost"] >= lost
        assert '"loss_accepted"' in (lab.run_dir / "log.jsonl").read_text()
        report(
            harm=harm,
            saved=saved,
            unknown_to_the_journal=status["journal"]["lost"],
            lost_and_counted=lost,
            said=said.partition(": ")[2][:200],
        )


def test_checkpoints_without_journal_and_marks(folder: Path, seed: int, report: Report) -> None:
    """The learner cannot know the size of the loss then. The actors' acks show it when they return."""
    with Lab(folder, seed) as lab:
        lab.reconfigure(seed=1)  # the client is created again, and the seed determines the weights of a fake algorithm
        lab.serving()
        actors = two_actors(lab)
        more(lab, 200)
        lab.loop.until(lambda: bool(checkpoints(lab)), DEADLINE_S, "a checkpoint")
        lab.learner.kill()
        for path in lab.run_dir.glob("journal.*"):
            path.unlink()
        said = refusal(lab.run_dir)
        assert "client 'on'" in said
        lab.reconfigure(resume="accept-loss")
        lab.serving()
        more(lab, 50)
        lab.learner.kill()
        lab.reconfigure(resume="auto")
        lab.serving()  # segments that were accepted once are not requested again
        numbers = lab.finish(*actors)["clients"]["on"]
        assert numbers["accepted"] == numbers["verdicts"]["trained"] + numbers["rolled_back"]
        assert numbers["rolled_back"] == numbers["gap"] >= 200
        report(gap=numbers["gap"], trained=numbers["verdicts"]["trained"], said=said.partition(": ")[2][:200])


def test_the_command_refuses_with_its_exit_code(folder: Path, seed: int) -> None:
    with living(folder, seed, 50) as (lab, actors):
        lab.stop(*actors)
        lab.learner.kill()
        for name in FILES[:2]:
            (lab.run_dir / name).unlink()
        command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "serve", "--port", "0", "--run-dir", str(lab.run_dir)]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, env=environment, check=False)
        assert done.returncode == 2, done.stderr
        assert "--resume accept-loss" in done.stderr and "acknowledged segments" in done.stderr
        assert not lab.run_dir.with_name("run-2").exists()


class JournalContents:
    """The contents of a journal that is opened on a run directory."""

    def __init__(self, run_dir: Path, resume: str = "auto") -> None:
        journal, restored = open_journal(LearnerConfig(run_dir=run_dir, resume=resume), lambda: None)
        assert restored is not None
        try:
            self.rows = (
                restored.journal_id,
                sorted((c.client_id, c.accepted, c.refused, json.dumps(c.settings, sort_keys=True)) for c in restored.clients),
                sorted((s.client_id, s.actor_id, s.origin, s.received) for s in restored.streams),
            )
            self.entries: dict[tuple[str, int, int], tuple[int, bytes]] = {}
            self.damaged = 0
            for client in restored.clients:
                after, more_to_come = 0, True
                while more_to_come:
                    journal.read(client.client_id, 1, after, 1 << 20)
                    page: Any = until(journal.committed, "a page", DEADLINE_S, 0.001)[0]
                    for e in page.entries:
                        body = b"".join(map(bytes, e.frames))
                        self.entries[e.actor_id, e.origin, e.first_seq] = e.end_seq, body
                    self.damaged += page.damaged
                    after, more_to_come = page.last_row, page.more
        finally:
            journal.stop()
            assert journal.join(DEADLINE_S)


def test_flipped_bits_anywhere(folder: Path, seed: int, tier: Tier, report: Report) -> None:
    """A start is refused with a clear message, or it restores every client and mark. Then the missing entries are counted."""
    rng = random.Random(seed)
    with living(folder, seed, 150, checkpoint_every_s=600.0) as (lab, actors):
        lab.stop(*actors)
        lab.learner.kill()  # the write-ahead log has nearly everything
        killed = lab.run_dir.rename(folder / "killed")
    copy = folder / "copy"
    shutil.copytree(killed, copy)
    whole = JournalContents(copy)
    folded = copy.rename(folder / "folded")  # the journal was opened and closed, so that everything is in the file
    outcomes: dict[str, int] = {}
    for number in range(tier.size(60, 2_000)):
        source = killed if number % 2 else folded
        name = rng.choice([name for name in FILES if (source / name).exists()])
        shutil.copytree(source, copy)
        flip_a_bit(copy / name, rng)
        outcome = f"{name}: {after_a_flip(copy, whole)}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(copy)
    report(**dict(sorted(outcomes.items())))
    assert not any("refused" in outcome for outcome in outcomes if outcome.startswith("journal.marks")), outcomes


def after_a_flip(run_dir: Path, whole: JournalContents) -> str:
    """Return a short description of the start on a damaged run directory."""
    resumed = "auto"
    try:
        found = JournalContents(run_dir)
    except JournalError as exc:
        assert "damaged" in str(exc) or "acknowledged" in str(exc) or "schema version" in str(exc) or "written" in str(exc), exc
        if "accept-loss" not in str(exc):
            return "refused as no journal of ours"
        resumed = "accept-loss"
        found = JournalContents(run_dir, resumed)
    assert found.rows == whole.rows
    assert found.entries.items() <= whole.entries.items()
    missing = len(whole.entries) - len(found.entries)
    if resumed == "accept-loss":
        return "refused, then counted"
    return "a counted part lost" if missing or found.damaged else "nothing lost"


def remove_the_file(lab: Lab) -> None:
    (lab.run_dir / FILES[0]).unlink()


def remove_both_files(lab: Lab) -> None:
    lab.learner.pause()  # else it would create the journal again between the two, and lose the log of that one too
    for name in FILES[:2]:
        (lab.run_dir / name).unlink()
    lab.learner.resume()


def remove_the_log(lab: Lab) -> None:
    (lab.run_dir / FILES[1]).unlink()


def remove_the_directory(lab: Lab) -> None:
    lab.run_dir.rename(lab.folder / "doomed")  # a single step, else the learner would create it again between two files
    shutil.rmtree(lab.folder / "doomed")


def move_the_directory(lab: Lab) -> None:
    lab.run_dir.rename(lab.folder / "elsewhere")


def replace_the_file(lab: Lab) -> None:
    other = lab.folder / "other.db"
    other.write_bytes((lab.run_dir / FILES[0]).read_bytes())
    other.rename(lab.run_dir / FILES[0])


UNDER_IT = {
    "file": remove_the_file,
    "both files": remove_both_files,
    "log": remove_the_log,
    "directory": remove_the_directory,
    "directory moved": move_the_directory,
    "replaced": replace_the_file,
}


QUICK_UNDER_IT = {"both files", "directory", "replaced"}


@pytest.mark.parametrize("harm", UNDER_IT)
def test_a_journal_that_goes_away_under_the_learner(folder: Path, seed: int, tier: Tier, report: Report, harm: str) -> None:
    """The learner notices the loss before it acknowledges anything more, and restores the journal."""
    if not tier.long and harm not in QUICK_UNDER_IT:
        pytest.skip("the long tier alone: RL4SYS_SOAK=1")
    with living(folder, seed) as (lab, actors):
        lab.loop.until(lambda: len(checkpoints(lab)) >= 2, DEADLINE_S, "checkpoints")
        began = time.monotonic()
        UNDER_IT[harm](lab)
        lab.loop.until(lambda: lab.ask("status")["journal"].get("rescued", 0) == 1, DEADLINE_S, "a journal made anew")
        took = time.monotonic() - began
        lab.learner.kill()
        lab.serving()
        more(lab)
        status = lab.finish(*actors)
        lost = assert_exact(lab, status, actors, gap=False)
        assert not lost or harm.startswith("directory"), "only checkpoints that are gone may lose what they alone had"
        report(harm=harm, noticed_and_mended_s=round(took, 3), lost_and_counted=lost)


def test_an_idle_learner_notices_too(folder: Path, seed: int) -> None:
    with living(folder, seed, 50) as (lab, actors):
        lab.stop(*actors)
        remove_both_files(lab)
        lab.loop.until(lambda: lab.ask("status")["journal"].get("rescued", 0) == 1, DEADLINE_S, "a journal made anew")
        lab.learner.kill()
        lab.serving()
        assert assert_exact(lab, lab.finish(), actors, gap=False) == 0
