"""A program in the form of RL4Sys's examples runs with its imports alone changed."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl4sys_zmq.learner import Learner, LearnerConfig

PROGRAM = """
import time
import numpy as np
from rl4sys.client.agent import RL4SysAgent
from rl4sys.utils.util import StructuredLogger
from rl4sys.utils.logging_config import setup_rl4sys_logging
from rl4sys.utils.step_per_sec_log import StepPerSecLogger
from rl4sys.utils.mem_prof import MemoryProfiler
from rl4sys.utils.step_statistic import compute_field_statistics

class Plant:
    def __init__(self):
        self.logger = StructuredLogger("Plant", debug=True)
        self.agent = RL4SysAgent(conf_path="conf.json")

    def run(self, episodes):
        traj, summaries, rates = None, [], StepPerSecLogger("plant")
        for episode in range(episodes):
            begun = time.perf_counter()
            for step in range(20):
                traj, action = self.agent.request_for_action(traj, np.full((1, 4), step, np.float32))
                self.agent.add_to_trajectory(traj, action)
                action.update_reward(float(action.act))
            action.done = True
            self.agent.mark_end_of_trajectory(traj, action)
            self.logger.info("Iteration completed", iteration=episode, moves=np.int64(20))
            summaries.append({"steps/s": 20 / (time.perf_counter() - begun)})
            rates.log(summaries[-1]["steps/s"])
        print("waiting", len(self.agent._trajectory_buffer), sorted(compute_field_statistics(summaries)))
        rates.close()
        self.agent.flush(30)
        self.agent.close()

if __name__ == "__main__":
    from rl4sys.utils.logging_config import RL4SysLogConfig
    RL4SysLogConfig.setup_logging(config_dict=RL4SysLogConfig.get_default_config(log_level="INFO", structured_logging=True))
    plant = Plant()
    profiler = MemoryProfiler("plant", log_interval=0.05)
    profiler.start_background_profiling()
    from rl4sys.utils.cpu_prof import CPUProfiler
    processor = CPUProfiler("plant", log_interval=0.05)
    processor.start_background_profiling()
    plant.run(30)
    profiler.stop_background_profiling()
    processor.stop_background_profiling()
"""


def test_a_program_runs_with_its_imports_changed_by_the_pages_command(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    pytest.importorskip("torch")
    page = Path(__file__).parents[2] / "docs" / "howto" / "migration_rl4sys.md"
    (command,) = [line for line in page.read_text().splitlines() if line.startswith("sed ")]
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert "from rl4sys." not in (tmp_path / "program.py").read_text()
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as learner:
        conf = {
            "client_id": "plant",
            "algorithm_name": "PPO",
            "algorithm_parameters": {
                "input_size": 4,
                "act_dim": 3,
                "traj_per_epoch": 64,
                "train_pi_iters": 2,
                "train_v_iters": 2,
            },
            "max_traj_length": 1000,
            "type": "onpolicy",
            "train_server_address": learner.address,
            "send_frequency": 10,
        }
        (tmp_path / "conf.json").write_text(json.dumps(conf))
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0 and "Logging error" not in done.stderr, done.stderr
        assert learner.status()["clients"]["plant"]["accepted"] > 0
    lines = done.stdout.splitlines()
    assert sum('Plant - INFO - Iteration completed - {"iteration": ' in line for line in lines) == 30, done.stdout
    assert any(line.startswith("waiting ") and line.endswith("['steps/s']") for line in lines)
    for folder, rows in (("memtest", 1), ("cputest", 1), ("speedlog", 30)):
        (file,) = (tmp_path / folder).glob("*/*.csv")
        with file.open(newline="") as opened:
            found = list(csv.DictReader(opened))
        assert len(found) >= rows and all(value for row in found for value in row.values()), file
