"""Environments, exploration, inference and training in separate processes; DQN learns CartPole from their data.

This command starts everything on this machine::

    python examples/remote_envs.py --count 4 --episodes 256

It starts `count` remote environments (``rl4sys-actor serve-env``), one exploration worker for each environment, and a model
worker that answers all explorers in batches. The training worker is this process. It ends when the mean return of 20 episodes in
a row reaches `target`, or when each explorer has finished `episodes` episodes.

With environments on another machine, start them there, and give their host and port. Servers of fewer environments can also
run at consecutive ports, beginning with this one::

    rl4sys-actor serve-env --env CartPole-v1 --count 2 --bind tcp://0.0.0.0:18000 --keys KEYS
    python examples/remote_envs.py --count 2 --host 10.0.0.5 --port 18000 --keys NAME.keys

    environment i  <- steps -  explorer i  - observations ->  model worker
                                    |                              ^ newest weights
                                    +- transitions, once -> training worker

This example needs the extras gym and learner.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rl4sys_zmq.errors import CallError, CallRefusalReason, CallRefused, CallTimeout, Closed, RL4SysError
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.serving import BatchLimits, InferenceClient, InferenceServer, RemoteEnv, ReplayBuffer

CHUNK = 16
"""Largest number of transitions in one message to the training worker."""
WINDOW = 20
"""Number of episodes in a row whose mean return decides whether the environment is solved."""
DEFAULT_PORT = 18_000
LEARNING_RATE = 5e-4
"""The first learning rate. It falls to a tenth: at a constant rate, a good policy is often lost again."""
Array = np.ndarray[Any, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DQN on remote environments.")
    parser.add_argument(
        "--count", type=int, default=4, help="number of remote environments and of exploration workers (default: 4)"
    )
    parser.add_argument("--episodes", type=int, default=256, help="largest number of episodes of each explorer (default: 256)")
    parser.add_argument(
        "--target", type=float, default=475.0, help=f"end when the mean return of {WINDOW} episodes reaches this (default: 475)"
    )
    parser.add_argument("--host", help="host of environments that run already (default: start them on this machine)")
    parser.add_argument("--port", type=int, help=f"port of their server, or the first of several (default: {DEFAULT_PORT})")
    parser.add_argument("--keys", help="your key file, if the environments of the host require keys")
    parser.add_argument(
        "--env", default="CartPole-v1", help="environment with flat observations and discrete actions (default: CartPole-v1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers (default: 1)")
    return parser.parse_args()


# ---- the model worker: returns the values of all actions, with the newest weights


def q_values(weights: list[Array], observations: Array) -> Array:
    """Return the values of all actions ``[N, actions]`` for ``[N, observation]``, by a perceptron with two hidden layers.

    Each hidden layer has a weight, a bias, and the scale and shift of its layer normalization.
    """
    x = observations
    for i in range(0, len(weights) - 2, 4):
        weight, bias, scale, shift = weights[i : i + 4]
        x = x @ weight.T + bias
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = np.maximum(x * scale + shift, 0.0)
    return x @ weights[-2].T + weights[-1]


def work_as_model(trainer: str, pipe: Connection) -> None:
    held: dict[str, list[Array]] = {}
    ready = threading.Event()

    def take(weights: list[Array], number: int) -> None:
        held["weights"] = weights  # replaced as a whole: a batch uses either the old or the new weights
        ready.set()

    with InferenceServer(0) as server, Caller(trainer) as client:
        client.subscribe("weights", take)
        server.register_interface("q", lambda observations: q_values(held["weights"], observations), BatchLimits(max_size=64))
        while not ready.wait(0.2):
            if pipe.poll():
                return
        server.start(threaded=True)
        pipe.send(server.address)
        wait_for_end(pipe)


# ---- an exploration worker: acts in one remote environment, mostly greedily, and sends transitions


@dataclass(frozen=True)
class Exploration:
    """The task of one explorer."""

    number: int
    seed: int
    episodes: int
    env: str
    keys: str | None
    model: str
    trainer: str


def work_as_explorer(task: Exploration, pipe: Connection) -> None:
    env = RemoteEnv(task.env, keys=task.keys)
    greedy, teacher = InferenceClient(task.model), Caller(task.trainer, timeout_s=60.0)
    try:
        pipe.send("ready")
        explore(env, greedy, teacher, task)
    except (Closed, CallError) as error:
        if not pipe.poll():  # the parent has not requested the end, so this is an error
            raise SystemExit(f"explorer {task.number}: {error}") from error
    finally:
        for closing in (env, greedy, teacher):
            closing.close()


def explore(env: RemoteEnv, greedy: InferenceClient, teacher: Caller, task: Exploration) -> None:
    """Explore for the number of episodes, or until the training worker reports that it has enough."""
    rng = np.random.default_rng([task.seed, task.number])
    epsilon, chunk, total, episodes = 1.0, [], 0.0, 0
    assert isinstance(env.action_space, Discrete)
    actions = int(env.action_space.n)
    observation, _ = env.reset(seed=task.seed * 1000 + task.number)
    while episodes < task.episodes:
        explores = rng.random() < epsilon
        action = int(rng.integers(actions) if explores else np.argmax(greedy.call("q", observation)))
        following, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        ended = terminated or truncated
        chunk.append((observation, action, float(reward), following, terminated, truncated, total if ended else 0.0))
        observation = following
        if ended:
            observation, total, episodes = env.reset()[0], 0.0, episodes + 1
        if ended or len(chunk) == CHUNK:
            columns = [np.array(column) for column in zip(*chunk, strict=True)]
            answer = teacher.call("learn", columns, once=True)  # may be resent, but runs once
            epsilon, chunk = answer["epsilon"], []
            if answer["enough"]:
                return


# ---- the training worker: DQN (double, with a soft target), one update for each transition


class Trainer:
    """The training worker: its replay memory and its networks. Its callback runs for one chunk at a time.

    A policy that gets worse has short episodes, and uses up a hundred of them in a few seconds before it recovers. So the number
    of episodes is only an upper bound: the training ends when the environment is solved.
    """

    def __init__(self, observation_size: int, actions: int, episodes: int, target: float, seed: int) -> None:
        import torch

        self.torch, self.episodes, self.target_return = torch, episodes, target
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.net, self.target = (
            torch.nn.Sequential(
                torch.nn.Linear(observation_size, 128),
                torch.nn.LayerNorm(128),  # without it, the values diverge now and then and the policy collapses
                torch.nn.ReLU(),
                torch.nn.Linear(128, 128),
                torch.nn.LayerNorm(128),
                torch.nn.ReLU(),
                torch.nn.Linear(128, actions),
            )
            for _ in range(2)
        )
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE)
        self.memory = ReplayBuffer(50_000, seed=seed)
        self.returns: list[float] = []
        self.seen = self.terminal = self.cut = self.updates = 0
        self.enough = threading.Event()

    def learn(self, columns: list[Array]) -> dict[str, Any]:
        """Store a chunk and make one update for each transition.

        Explorers wait for the reply, so they are as fast as the training.
        """
        if not self.enough.is_set():
            for observation, action, reward, following, terminated, truncated, total in zip(*columns, strict=True):
                transition = {"observations": observation, "actions": action, "rewards": reward, "next_observations": following}
                self.memory.insert({**transition, "terminated": terminated, "truncated": truncated})
                self.seen += 1
                self.terminal += bool(terminated)
                self.cut += bool(truncated and not terminated)
                if terminated or truncated:
                    self.returns.append(float(total))
                if len(self.memory) >= 128:
                    self.update()
            if len(self.returns) >= self.episodes or self.solved:
                self.enough.set()
        return {"epsilon": max(0.02, 1.0 - self.seen / 1000), "enough": self.enough.is_set()}

    def update(self) -> None:
        """Make one step of the optimizer, on 128 transitions from the memory."""
        torch = self.torch
        batch = {key: torch.from_numpy(column) for key, column in self.memory.sample(128).items()}
        with torch.no_grad():
            following = batch["next_observations"].float()
            best = self.net(following).argmax(1, keepdim=True)
            later = self.target(following).gather(1, best).squeeze(1)
            goal = batch["rewards"] + 0.99 * batch["masks"] * later  # a terminal state has no future value; a truncated one has
        values = self.net(batch["observations"].float())
        taken = values.gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(taken, goal)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * max(0.1, 1 - self.updates / 30_000)
        self.optimizer.step()
        with torch.no_grad():
            for theirs, ours in zip(self.target.parameters(), self.net.parameters(), strict=True):
                theirs.lerp_(ours, 0.01)
        self.updates += 1

    @property
    def solved(self) -> bool:
        """True if the mean return of the last episodes has reached the target."""
        last = self.returns[-WINDOW:]
        return len(last) == WINDOW and sum(last) / WINDOW >= self.target_return

    def weights(self) -> list[Array]:
        """Return a copy of the network's parameters, for the model worker."""
        return [p.detach().numpy().copy() for p in self.net.parameters()]


# ---- all of it, on one machine


def wait_for_end(pipe: Connection) -> None:
    """Wait until the parent requests the end, or has ended itself."""
    with contextlib.suppress(EOFError):
        pipe.recv()


def ignoring_ctrl_c(work: Any, *args: Any) -> None:
    """Run `work` in a child process, without SIGINT. Ctrl-C reaches all processes of a terminal; the parent ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(*args)


class Fleet:
    """The processes that this process started."""

    def __init__(self) -> None:
        self.environments: list[subprocess.Popen[str]] = []
        self.workers: list[tuple[Any, Connection]] = []

    def serve_environment(self, env: str) -> subprocess.Popen[str]:
        """Start a server for one remote environment. Its first line of output holds its address."""
        words = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "serve-env", "--env", env, "--port", "0", "--exit-with-stdin"]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        self.environments.append(process)
        return process

    def start(self, work: Any, *args: Any) -> Connection:
        """Start a worker, whose last argument is its end of a pipe. Return the other end."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=ignoring_ctrl_c, args=(work, *args, theirs), daemon=True)
        process.start()
        theirs.close()
        self.workers.append((process, ours))
        return ours

    def said(self, pipe: Connection) -> Any:
        """Return the first message of a worker."""
        try:
            return pipe.recv()
        except EOFError:
            raise RuntimeError("a worker ended before it began; its error is above") from None

    def check(self) -> None:
        """Raise RuntimeError if a worker has failed."""
        for process, _ in self.workers:
            if process.exitcode not in (None, 0):
                raise RuntimeError(f"a worker ended with code {process.exitcode}; its error is above")

    def end(self) -> None:
        """End all processes and wait for them."""
        for _, pipe in self.workers:
            with contextlib.suppress(OSError):  # the worker has ended
                pipe.send("end")
        for process, pipe in reversed(self.workers):  # explorers first: they give their environments back
            process.join(5.0)
            if process.exitcode is None:
                process.terminate()
                process.join()
            pipe.close()
        for environment in self.environments:
            environment.communicate()  # closes stdin, which ends the server
        self.workers, self.environments = [], []


def address_of(environment: subprocess.Popen[str]) -> str:
    assert environment.stdout is not None
    line = environment.stdout.readline()
    if " at " not in line:
        raise RuntimeError("an environment did not start; its error is above")
    return line.partition(" at ")[2].partition(";")[0]


def free_environments(host: str, port: int, count: int, keys: str | None) -> list[str]:
    """Return the address of each of `count` free environments, of the server at `port` and, if it has fewer, of the following."""
    addresses: list[str] = []
    with contextlib.ExitStack() as held:
        while len(addresses) < count:
            address = f"tcp://{host}:{port}"
            try:
                held.enter_context(RemoteEnv(address, keys=keys))
            except CallRefused as refused:
                if refused.code is not CallRefusalReason.OCCUPIED:
                    raise
                port += 1
            except CallTimeout as error:
                raise RuntimeError(f"{len(addresses)} of {count} environments are free up to port {port}: {error}") from error
            else:
                addresses.append(address)
    return addresses


def environment_addresses(args: argparse.Namespace, fleet: Fleet) -> list[str]:
    """Return the addresses of the environments, which run on another host or are started here."""
    if args.host is not None or args.port is not None:
        return free_environments(
            args.host or "127.0.0.1", DEFAULT_PORT if args.port is None else args.port, args.count, args.keys
        )
    return [address_of(environment) for environment in [fleet.serve_environment(args.env) for _ in range(args.count)]]


def train(args: argparse.Namespace, fleet: Fleet) -> None:
    started = time.monotonic()
    addresses = environment_addresses(args, fleet)
    with RemoteEnv(addresses[0], keys=args.keys) as env:
        if not isinstance(env.observation_space, Box) or not isinstance(env.action_space, Discrete):
            raise RuntimeError(f"{addresses[0]} does not have a Box observation space and a Discrete action space")
        size, actions = math.prod(env.observation_space.shape), int(env.action_space.n)
    trainer = Trainer(size, actions, args.count * args.episodes, args.target, args.seed)
    with Server("tcp://127.0.0.1:0", name="trainer", pub="tcp://127.0.0.1:0") as server:
        server.register("learn", trainer.learn)
        server.start()
        server.publish("weights", trainer.weights())
        model = fleet.said(fleet.start(work_as_model, server.address))
        explorers = [
            fleet.start(work_as_explorer, Exploration(i, args.seed, args.episodes, address, args.keys, model, server.address))
            for i, address in enumerate(addresses)
        ]
        for pipe in explorers:
            fleet.said(pipe)
        published = said = 0
        try:
            print(
                f"{args.count} environments at {', '.join(addresses)}; model at {model}; trainer at {server.address}", flush=True
            )
            while not trainer.enough.wait(0.02):
                fleet.check()
                if trainer.updates > published:
                    published = trainer.updates
                    server.publish("weights", trainer.weights())
                if len(trainer.returns) >= said + 16:
                    said = len(trainer.returns)
                    print(f"{time.monotonic() - started:6.1f} s  {progress(trainer)}", flush=True)
        finally:
            trainer.enough.set()
            fleet.end()  # while the server can still answer them
            counts = server.status()["counters"]
            verdict = "solved" if trainer.solved else f"not solved, best {WINDOW} in a row: {best(trainer.returns):.1f}"
            print(f"{time.monotonic() - started:6.1f} s  {progress(trainer)}; {verdict}")
            ends = f"terminal {trainer.terminal}, truncated {trainer.cut}"
            print(
                f"transitions {trainer.seen}, of them {ends}; updates {trainer.updates}; chunks {counts.get('calls', 0)}",
                flush=True,
            )


def progress(trainer: Trainer) -> str:
    last = trainer.returns[-WINDOW:]
    mean = sum(last) / max(1, len(last))
    return f"episodes {len(trainer.returns)}  transitions {trainer.seen}  mean return of the last {len(last)}: {mean:.1f}"


def best(returns: list[float]) -> float:
    """Return the best mean of `WINDOW` episodes in a row, or of all episodes if there are fewer."""
    width = min(WINDOW, len(returns))
    return max((sum(returns[i : i + width]) / width for i in range(len(returns) - width + 1)), default=0.0) if width else 0.0


def main() -> int:
    args = parse_arguments()
    fleet = Fleet()
    try:
        train(args, fleet)
    except KeyboardInterrupt:
        return 130
    except (RL4SysError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        fleet.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
