"""A real Prometheus that scrapes the page of a real learner, and whose rules fire."""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kit import free_port, open_agent, play, until

from rl4sys_zmq.child_process import child_environment
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

for needed in ("starlette", "uvicorn", "plotly", "prometheus_client"):
    pytest.importorskip(needed, reason=f"{needed} is not installed (extra web)")

RULES = Path(__file__).resolve().parents[2] / "examples/deploy/prometheus/rules.yml"


@contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=child_environment()
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def read(url: str) -> tuple[int, str]:
    """Return the status and the text of an answer; 0 if nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError as error:
        return 0, str(error)


class Prometheus:
    """A Prometheus at a free port, with the recipe's rules without their waiting times, that scrapes five times a second."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @contextmanager
    def scraping(cls, page: str, folder: Path) -> Iterator["Prometheus"]:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed")
        quick = [line for line in RULES.read_text().splitlines() if not line.strip().startswith("for:")]
        (folder / "rules.yml").write_text("\n".join(quick) + "\n")
        every = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
        jobs = [{"job_name": "rl4sys", "static_configs": [{"targets": [page.removeprefix("http://")]}]}]
        (folder / "prometheus.yml").write_text(json.dumps({"global": every, "rule_files": ["rules.yml"], "scrape_configs": jobs}))
        address = f"127.0.0.1:{free_port()}"
        options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data", "web.listen-address": address}
        command = [program, *(f"--{name}={value}" for name, value in options.items())]
        with running(*command, log=folder / "prometheus.log"):
            found = cls(f"http://{address}")
            until(lambda: read(f"{found.url}/-/ready")[0] == 200, (folder / "prometheus.log").read_text)
            yield found

    def firing(self) -> set[tuple[str, str]]:
        """Return the name and the client of each alert that fires."""
        alerts = json.loads(read(f"{self.url}/api/v1/alerts")[1])["data"]["alerts"]
        return {(a["labels"]["alertname"], a["labels"].get("client", "")) for a in alerts if a["state"] == "firing"}

    def value(self, query: str) -> float | None:
        """Return the only value that a query gives now; None if there is none."""
        found = json.loads(read(f"{self.url}/api/v1/query?query={quote(query)}")[1])["data"]["result"]
        return float(found[0]["value"][1]) if len(found) == 1 else None


@pytest.mark.timeout(200)
def test_prometheus_reads_the_page_and_its_rules_fire_when_a_client_fails_and_when_the_learner_is_stopped(tmp_path: Path) -> None:
    register_algorithm("SOUND", FakeAlgorithm.factory(steps_per_update=8))
    register_algorithm("FAILS", FakeAlgorithm.factory(steps_per_update=8, fail_after_updates=0))
    command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "web"]
    address = f"tcp://127.0.0.1:{free_port()}"
    with running(*command, address, "--bind", "127.0.0.1:0", log=tmp_path / "page.log") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        page = line.removeprefix("page at ").partition(";")[0].strip()
        assert page.startswith("http://"), line + (tmp_path / "page.log").read_text()
        assert read(f"{page}/healthz")[0] == read(f"{page}/readyz")[0] == 503  # there is no learner yet
        with Prometheus.scraping(page, tmp_path) as prometheus:

            def fires(*alerts: tuple[str, str]) -> Any:
                return until(lambda: set(alerts) <= prometheus.firing(), lambda: f"{alerts} of {prometheus.firing()}")

            fires(("RL4SysLearnerDown", ""))
            with Learner(LearnerConfig(bind=address, run_dir=tmp_path / "run")) as learner:
                with open_agent(learner, "luna", algorithm_name="SOUND") as agent:
                    play(agent, 8)
                    until(lambda: prometheus.value('rl4sys_steps{client="luna"}') == 8, tmp_path.joinpath("page.log").read_text)
                until(lambda: not prometheus.firing(), prometheus.firing)
                assert read(f"{page}/healthz") == (200, "ok\n") == read(f"{page}/readyz")
                with open_agent(learner, "mars", algorithm_name="FAILS") as other:
                    play(other, 8)
                    fires(("RL4SysClientFailed", "mars"))
                assert read(f"{page}/healthz") == (200, "ok\n")
                status, text = read(f"{page}/readyz")
                assert status == 503 and f"{address}: client mars is failed: " in text
            fires(("RL4SysLearnerDown", ""))
            until(lambda: read(f"{page}/healthz")[0] == 503)
            assert ("RL4SysClientFailed", "mars") not in prometheus.firing()
        assert "rl4sys_up{" in read(f"{page}/metrics")[1]
