"""The commands of ``docs/howto/deploy.md`` run as they stand there, with real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .player import ROOT, play

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

PAGE = ROOT / "docs/howto/deploy.md"


@pytest.mark.timeout(300)
def test_a_policy_goes_into_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(PAGE, tmp_path)
    exported = re.search(
        r"^client pole, PPO, version (\d+), saved .* ago \([\d,]+ steps, .* training episodes", played.output, re.M
    )
    assert exported and int(exported[1]) >= 1
    assert "policy/policy.safetensors" in played.output
    assert re.search(r"^mean return [\d.]+ \(95 % interval [\d.]+ to [\d.]+\)", played.output, re.M)
    assert f"acting with version {exported[1]} of client pole" in played.output
    steps = re.search(r"the episode had (\d+) steps", played.output)
    assert steps and int(steps[1]) >= 8
    runtime = pytest.importorskip("onnxruntime")
    if not (tmp_path / "policy/policy.onnx").exists():  # the commands run in the environment of this package
        pytest.skip("the package onnx is not installed")
    assert runtime is not None
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"^```python\n(import numpy.*?)^```", PAGE.read_text(), re.M | re.S)[0]
    names: dict[str, object] = {}
    exec(block, names)
    assert getattr(names["logits"], "shape", None) == (1, 2)
