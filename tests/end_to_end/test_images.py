"""Actors that send images as files. The learner trains on the recorded images. A damaged image costs only its own segment."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from kit import play as play_episode

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.delivery import session
from rl4sys_zmq.errors import ConfigError, ProtocolError
from rl4sys_zmq.images import has_pillow
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.learner.run.deadletters import list_letters, read_letter
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, Segment
from rl4sys_zmq.wire import PackedSegment, decode, read_submit, with_images

from .conftest import Lab

pytest.importorskip("PIL")

SPACE = BoxSpace((64, 64, 3), "|u1", 0.0, 255.0)
STEPS = 8
EVIL = 13
"""The image quality of the actor whose second segment is damaged by `poison`."""

register_algorithm("LOOKS", FakeAlgorithm.factory(steps_per_update=STEPS, rollout_length=STEPS))


def waves(number: int) -> Any:
    y, x, c = np.ogrid[:64, :64, :3]
    return (127 + 100 * np.sin((y + x * (c + 1)) / 20 + number / 5)).astype(np.uint8)


def play(agent: RL4SysAgent, number: int) -> None:
    play_episode(agent, [waves(number)] * STEPS, reward=float(number))


def joined(lab: Lab, learner: Learner, **options: Any) -> RL4SysAgent:
    return lab.agent(learner, **{"algorithm_name": "LOOKS", "observation_space": SPACE, "rollout_length": STEPS, **options})


def looked_at(observed: list[Segment]) -> dict[int, Any]:
    """Return the observations of segments by their rewards."""
    return {int(segment.rewards[0]): segment.observations for segment in observed}


def judged(learner: Learner, segments: int) -> dict[str, Any]:
    while sum((client := learner.status()["clients"]["lab"])["verdicts"].values()) < segments or client["resuming"]:
        pass
    return dict(client)


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage an image in the second segment of the actor whose image quality is `EVIL`."""
    sent = []

    def poisoner(packed: PackedSegment, codec: Any) -> PackedSegment:
        out = with_images(packed, codec)
        if codec.quality != EVIL or packed.images is not None:
            return out
        sent.append(out)
        assert out.images is not None
        if len(sent) != 2:
            return out
        bad = bytes(out.large[0][:40]) + bytes(len(out.large[0]) - 40)
        digests = (xxhash.xxh3_64_intdigest(bad), *out.digests[1:])
        return dataclasses.replace(
            out, large=(bad, *out.large[1:]), digests=digests, images=dataclasses.replace(out.images, frame=bad)
        )

    monkeypatch.setattr(session, "with_images", poisoner)


def test_images_arrive_and_a_poisoned_one_costs_its_segment(
    lab: Lab, tmp_path: Path, observed: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    learner = lab.learner(run_dir=tmp_path / "run", checkpoint_every_s=1e6)
    agents = [
        joined(lab, learner, image_codec="png"),
        joined(lab, learner, image_codec="jpeg", compression="zstd"),
        joined(lab, learner, image_codec="png", jpeg_quality=EVIL),
        joined(lab, learner),
    ]
    for round_number in range(3):
        for place, agent in enumerate(agents):
            play(agent, 10 * place + round_number)
    for agent in agents:
        agent.flush(20.0)
    good = {10 * place + n for place in range(4) for n in range(3)} - {21}
    for life in (1, 2):
        client = judged(learner, 12)
        assert (client["accepted"], client["verdicts"]["trained"], client["verdicts"]["quarantined"]) == (12, 11, 1)
        assert len(observed) == 11 and set(looked_at(observed)) == good
        for number, observations in looked_at(observed).items():
            wanted = np.broadcast_to(waves(number), observations.shape)
            if number // 10 == 1:
                assert np.abs(observations.astype(int) - wanted).mean() < 6.0
            else:
                np.testing.assert_array_equal(observations, wanted)
        observed.clear()
        if life == 1:
            learner.restart("lab")  # there is no checkpoint: the journal delivers all segments again
            learner.wait(client_id="lab", version=11, timeout_s=20.0)
    assert [agent.stats()["refused"] for agent in agents] == [0, 0, 0, 0]
    learner.close()
    letters = list_letters(tmp_path / "run" / "dead")
    assert {(letter.actor_id, letter.seq) for letter in letters} == {(agents[2].actor_id, 1)}
    assert "observations" in letters[0].reason and "image 1 of 8, png" in letters[0].reason
    message = decode(list(read_letter(letters[0].path)))
    (error,) = read_submit(message)  # type: ignore[arg-type]
    assert isinstance(error, ProtocolError) and "image 1 of 8, png" in str(error)


def test_a_client_without_images_is_refused_at_construction(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    with pytest.raises(ConfigError, match="image_codec: needs a uint8 box") as caught:
        inproc_lab.agent(learner, image_codec="png")
    assert caught.value.key == "image_codec"
    inproc_lab.agent(learner)
    with pytest.raises(ConfigError, match="image_codec: needs a uint8 box"):
        inproc_lab.agent(learner, image_codec="png", observation_space=None)  # the observation space comes from the learner


def test_a_learner_without_pillow_refuses_by_name(
    inproc_lab: Lab, observed: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = inproc_lab.learner()
    agent = joined(inproc_lab, learner, image_codec="png")
    plain = joined(inproc_lab, learner)
    assert has_pillow()
    have: list[bool] = []
    monkeypatch.setattr("rl4sys_zmq.delivery.intake.has_pillow", lambda: bool(have))
    play(agent, 1)
    play(plain, 2)
    plain.flush(20.0)
    learner.wait(client_id="lab", version=1, timeout_s=20.0)
    while not agent.stats()["counters"].get("refused_by_learner.feature"):
        pass
    assert set(looked_at(observed)) == {2}
    have.append(True)
    agent.flush(20.0)  # with Pillow the learner accepts the segments
    learner.wait(client_id="lab", version=2, timeout_s=20.0)
    assert set(looked_at(observed)) == {1, 2}
