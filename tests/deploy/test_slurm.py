"""A run of the batch script of examples/deploy in a Slurm cluster of one node, which the test starts and ends."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import until

import rl4sys_zmq

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/deploy/slurm/rl4sys.sbatch"
PACKAGE = Path(rl4sys_zmq.__file__).parent.parent
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

pytestmark = [
    pytest.mark.skipif(any(shutil.which(tool, path=PATH) is None for tool in TOOLS), reason="Slurm or munge is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs as root"),
    pytest.mark.slow,
    pytest.mark.timeout(280),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
InactiveLimit=0
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=FORCE
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return numbers


class Cluster:
    """A cluster of one node with all roles. Its daemons stay in the foreground, so that the test owns them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        controller, node = free_ports(2)
        text = CONFIGURATION.format(host=host, controller=controller, node=node, folder=folder, cpus=min(2, os.cpu_count() or 1))
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "daemons.log").open("wb")
        munge = [
            f"--{name}={folder}/munge.{end}" for name, end in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"))
        ]
        self._start(
            "munged", "--foreground", "--force", *munge, f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"
        )
        until((folder / "munge.socket").exists, self.logs)
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D", "-N", host)
        until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), self.logs)

    def _start(self, *command: str) -> None:
        self._daemons.append(
            subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        )

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log"))

    def close(self) -> None:
        self.run("scancel", "--full", "--signal=KILL", "--me")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._log.close()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    for module in ("torch", "tensorboard", "rich", "gymnasium"):
        pytest.importorskip(module)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        yield cluster
    finally:
        cluster.close()


class Job:
    """A job of the batch script. `runs` is its folder, below the working directory."""

    def __init__(self, cluster: Cluster, folder: Path, **variables: str) -> None:
        self._cluster, self.output = cluster, folder / "job.out"
        (port,) = free_ports(1)
        cluster.environment |= {
            "PYTHONPATH": str(PACKAGE),
            "RL4SYS_PYTHON": sys.executable,
            "RL4SYS_PORT": str(port),
            **variables,
        }
        given = ("--chdir", str(folder), "--output", str(self.output), "--cpus-per-task=2")
        self.number = cluster.run("sbatch", "--parsable", *given, str(SCRIPT), "runs/pole", "CartPole-v1", "pole").strip()
        assert self.number.isdigit(), self.number + cluster.logs()

    @property
    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def everything(self) -> str:
        return f"{self._state()}\n{self.text}\n{self._cluster.logs()}"

    def _state(self) -> str:
        shown = self._cluster.run("scontrol", "show", "job", self.number, "--oneliner")
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait(self) -> str:
        until(lambda: self._state() in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"), self.everything, 200.0)
        return self._state()


def test_a_job_trains_until_its_actors_have_run_their_episodes_and_another_continues_it(cluster: Cluster, tmp_path: Path) -> None:
    first = Job(cluster, tmp_path, RL4SYS_EPISODES="20")
    assert first.wait() == "COMPLETED", first.everything()
    assert "1 done: " in first.text and "restarts 0" in first.text, first.text
    assert first.text.index("1 done: ") < first.text.index("SIGTERM: the learner has ended"), first.text
    keys = tmp_path / "runs/pole/keys"
    assert {path.stat().st_mode & 0o777 for path in keys.glob("*.keys")} == {0o600}

    cluster.environment.pop("RL4SYS_EPISODES")
    second = Job(cluster, tmp_path)
    until(lambda: "return " in second.text.rpartition("continues the run")[2], second.everything, 100.0)
    cluster.run("scancel", "--batch", "--signal=TERM", second.number)  # as Slurm does before the time limit
    assert second.wait() == "COMPLETED", second.everything()
    assert "draining 1 actors" in second.text and "Killed" not in second.text, second.text
    assert second.text.index("draining 1 actors") < second.text.index("SIGTERM: the learner has ended"), second.text
