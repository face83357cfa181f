"""SAC with an actor and a learner that run asynchronously: `rl4sys_zmq.serving` with your own trainer.

Start learner and actors as separate processes, on one machine or several, or both as threads of one process::

    python examples/async_learner_actor.py --learner
    python examples/async_learner_actor.py --actor --ip 127.0.0.1

    python examples/async_learner_actor.py

The actor sends transitions and uses the newest network. The learner makes as many gradient steps as the replay ratio allows
for the transitions that it has, and publishes its policy as numpy arrays. An actor needs gymnasium and no torch.

Soft actor-critic is [1] Haarnoja, Zhou, Abbeel, Levine 2018, "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement
Learning with a Stochastic Actor" (arXiv 1801.01290), with the learned temperature and without the value network of [2] Haarnoja
et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import CallTimeout
from rl4sys_zmq.serving import QueuedDataStore, ReplayBuffer, TrainerClient, TrainerConfig, TrainerServer

if TYPE_CHECKING:
    from torch import Tensor  # the learner imports torch when it is created; an actor never does

Arrays = dict[str, NDArray[Any]]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
REPORT_S = 5.0
NETWORK_WAIT_S = 1.0
UPDATE_S = 0.01
"""Time between two updates of an actor, in seconds: well before the learner has used the previous `Settings.max_lead` steps."""
ACTOR_CAPACITY = 100_000
RECENT_EPISODES = 20


@dataclass(frozen=True)
class Settings:
    """Hyperparameters. The defaults solve Pendulum-v1 in 4000 to 7000 steps of the environment."""

    replay_ratio: float = 1.0
    """Largest number of gradient steps per environment step."""
    random_steps: int = 400
    """Steps with random actions before the first gradient step."""
    batch_size: int = 64
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the hidden layers, of the policy and of each critic."""
    policy_rate: float = 2e-3
    critic_rate: float = 2e-3
    temperature_rate: float = 3e-3
    discount: float = 0.98
    target_rate: float = 0.02
    """Share of the critics that moves into their targets at each gradient step (τ in [1])."""
    reward_scale: float = 0.1
    """Factor of the rewards in training ([1], section 5.2)."""
    policy_every: int = 1
    """Critic steps for each step of the policy and of the temperature."""
    capacity: int = 100_000
    """Transitions in the replay."""
    publish_every: int = 20
    """Gradient steps between published networks."""
    max_lead: int = 25
    """Steps that an actor takes with one network before it waits for the next.

    It is more than ``publish_every / replay_ratio``, the number of steps that the learner needs for the next network."""


# -- The policy as the actor sees it: numpy only ------------------------------------------------------------------------------


def act(params: Arrays, observation: NDArray[Any], rng: np.random.Generator, explore: bool = True) -> NDArray[np.float32]:
    """Return an action of the policy, within the bounds of the environment's action space.

    Args:
        params: The result of `Sac.parameters_for_acting`.
        observation: One observation ``[*obs]``.
        rng: The random generator for exploration.
        explore: Sample from the policy; otherwise take its mode in the unsquashed space.

    Returns:
        The action ``[A]``.
    """
    hidden = observation.astype(np.float32).ravel()
    layers = len(params) // 2 - 1
    for layer in range(layers):
        hidden = hidden @ params[f"weight_{layer}"] + params[f"bias_{layer}"]
        if layer < layers - 1:
            hidden = np.maximum(hidden, 0.0)
    mean, log_std = np.split(hidden, 2)
    if explore:
        std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
        mean += std * rng.standard_normal(len(mean), dtype=np.float32)
    action: np.ndarray[Any, Any] = params["centre"] + params["half_range"] * np.tanh(mean)
    return action


def evaluate(params: Arrays, env: gym.Env[Any, Any], seed: int, episodes: int = 20) -> float:
    """Return the mean return of this many episodes without exploration."""
    rng, total = np.random.default_rng(seed), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed if episode == 0 else None)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(params, observation, rng, explore=False))
            total += float(reward)
            over = terminated or truncated
    return total / episodes


# -- The learner: torch -------------------------------------------------------------------------------------------------------


class FlatMLP:
    """`copies` ReLU networks of one shape, evaluated as one batched product, with all parameters in one vector.

    With one vector, Adam and the moving average of the targets are one kernel each. For small networks these calls take most
    of the time.

    Attributes:
        flat: The parameters ``[size]``.
    """

    def __init__(self, sizes: Sequence[int], copies: int, generator: Any) -> None:
        import torch

        self.shapes = [
            shape for rows, columns in itertools.pairwise(sizes) for shape in ((copies, rows, columns), (copies, 1, columns))
        ]
        parts = []
        for rows, columns in itertools.pairwise(sizes):  # torch.nn.Linear's initialisation: uniform within 1/√fan-in
            bound = 1.0 / math.sqrt(rows)
            parts.append(torch.empty(copies * (rows + 1) * columns).uniform_(-bound, bound, generator=generator))
        self.flat = torch.cat(parts).requires_grad_()

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return weight ``[copies, in, out]`` and bias ``[copies, 1, out]`` of each layer."""
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def __call__(self, inputs: Tensor, flat: Tensor | None = None) -> Tensor:
        """Return the outputs ``[copies, B, out]`` for inputs ``[B, in]``, with the parameters `flat` if given."""
        views = self.views(self.flat if flat is None else flat)
        hidden = inputs.expand(self.shapes[0][0], *inputs.shape)
        for layer in range(0, len(views), 2):
            hidden = views[layer + 1].baddbmm(hidden, views[layer])
            if layer < len(views) - 2:
                hidden = hidden.relu()
        return hidden


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a reparameterised sample of the squashed Gaussian, and its log-density.

    With u = μ + σε, the action is tanh(u). Its density is that of u with the change of variables of [1], appendix C:
    log π(a) = log N(u; μ, σ) - Σ log(1 - tanh²(u)). The last term is written as 2 (log 2 - u - softplus(-2u)), which does not
    overflow if tanh(u) rounds to one.

    Args:
        mean: The mean μ ``[B, A]``.
        log_std: The logarithm of σ ``[B, A]``.
        noise: The noise ε ``[B, A]``, standard normal.

    Returns:
        The action in (-1, 1) ``[B, A]`` and its log-density ``[B]``.
    """
    from torch.nn.functional import softplus

    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    change = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    return u.tanh(), (gaussian - change).sum(-1)


class Sac:
    """Soft actor-critic with twin critics, target critics and a learned temperature, on one thread of the CPU."""

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.spaces.Box, settings: Settings, seed: int) -> None:
        import torch

        if not np.all(np.isfinite(action_space.low) & np.isfinite(action_space.high)):
            raise ValueError(f"SAC needs an action space with finite bounds, not {action_space}")
        torch.set_num_threads(1)
        self._settings = settings
        self._generator = torch.Generator().manual_seed(seed)
        observations, actions = math.prod(observation_space.shape), math.prod(action_space.shape)
        self._centre = torch.from_numpy((action_space.high + action_space.low) / 2.0).float()
        self._half_range = torch.from_numpy((action_space.high - action_space.low) / 2.0).float()
        self._policy = FlatMLP((observations, *settings.hidden, 2 * actions), 1, self._generator)
        self._critics = FlatMLP((observations + actions, *settings.hidden, 1), 2, self._generator)
        self._targets = self._critics.flat.detach().clone()
        self._log_temperature = torch.zeros(1, requires_grad=True)
        self._target_entropy = -float(actions)  # [2], appendix D
        self._critic_adam = torch.optim.Adam([self._critics.flat], lr=settings.critic_rate, fused=True)
        self._policy_adam = torch.optim.Adam(
            [
                {"params": [self._policy.flat], "lr": settings.policy_rate},
                {"params": [self._log_temperature], "lr": settings.temperature_rate},
            ],
            fused=True,
        )
        self._entropy = torch.zeros(())
        self.updates = 0

    def update(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Make one gradient step of the critics, the policy and the temperature.

        Args:
            batch: ``observations`` and ``next_observations`` ``[B, *obs]``, ``actions`` ``[B, A]`` as the environment got them,
                ``rewards`` ``[B]``, and ``terminated`` ``[B]``: the end of the task, not a time limit.

        Returns:
            The critics' loss, the policy's entropy and the temperature; the last two from the last step of the policy.
        """
        import torch

        s = self._settings
        count = len(batch["rewards"])
        observation = torch.from_numpy(batch["observations"]).reshape(count, -1).float()
        next_observation = torch.from_numpy(batch["next_observations"]).reshape(count, -1).float()
        action = (torch.from_numpy(batch["actions"]).reshape(count, -1).float() - self._centre) / self._half_range
        reward = torch.from_numpy(batch["rewards"]).float() * s.reward_scale
        alive = (
            1.0 - torch.from_numpy(batch["terminated"]).float()
        )  # a time limit is not terminal: the target bootstraps from the value after it
        temperature = self._log_temperature.detach().exp()

        with torch.no_grad():  # [1], equations 8 and 9, with the smaller of two target critics in place of the value network
            next_action, next_log_prob = self._sample(next_observation)
            next_value = self._critics(torch.cat((next_observation, next_action), -1), self._targets).amin(0).squeeze(-1)
            target = reward + s.discount * alive * (next_value - temperature * next_log_prob)
        values = self._critics(torch.cat((observation, action), -1)).squeeze(-1)  # [2, B]
        critic_loss = 0.5 * (values - target).square().mean(-1).sum()
        (self._critics.flat.grad,) = torch.autograd.grad(critic_loss, self._critics.flat)
        self._critic_adam.step()
        with torch.no_grad():
            self._targets.lerp_(self._critics.flat, s.target_rate)

        self.updates += 1
        if self.updates % s.policy_every == 0:
            new_action, log_prob = self._sample(observation)
            value = self._critics(torch.cat((observation, new_action), -1), self._critics.flat.detach()).amin(0).squeeze(-1)
            policy_loss = (temperature * log_prob - value).mean()  # [1], equation 12
            (self._policy.flat.grad,) = torch.autograd.grad(policy_loss, self._policy.flat)
            self._entropy = -log_prob.detach().mean()
            # [2], equation 18. Its gradient by log α needs no graph: α (entropy - target entropy)
            self._log_temperature.grad = temperature * (self._entropy - self._target_entropy)
            self._policy_adam.step()
        return {"critic_loss": float(critic_loss.detach()), "entropy": float(self._entropy), "temperature": float(temperature)}

    def parameters_for_acting(self) -> Arrays:
        """Return the policy for `act`, as copies that no later `update` changes."""
        params: Arrays = {"centre": self._centre.numpy().copy(), "half_range": self._half_range.numpy().copy()}
        views = iter(self._policy.views(self._policy.flat.detach()))
        for layer, (weight, bias) in enumerate(zip(views, views, strict=True)):
            params[f"weight_{layer}"] = weight[0].numpy().copy()
            params[f"bias_{layer}"] = bias[0, 0].numpy().copy()
        return params

    def _sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action in (-1, 1) ``[B, A]`` and its log-density ``[B]`` for observations ``[B, features]``."""
        import torch

        mean, log_std = self._policy(observation)[0].chunk(2, -1)
        noise = torch.empty_like(mean).normal_(generator=self._generator)
        return squash(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX), noise)


# -- The pace of both ---------------------------------------------------------------------------------------------------------


class ReplayRatio:
    """The limit on a learner's gradient steps: at most `ratio` for each environment step after the first `skip`.

    Attributes:
        updates: The number of gradient steps so far.
    """

    def __init__(self, ratio: float, skip: int) -> None:
        self._ratio = ratio
        self._skip = skip
        self.updates = 0

    def due(self, steps: int) -> bool:
        """Return True if one more gradient step is within the ratio, with this many environment steps received."""
        return self.updates + 1 <= self._ratio * (steps - self._skip)

    def count(self) -> None:
        """Count one gradient step."""
        self.updates += 1


class Newest:
    """The newest network for one actor. It replaces older networks that the actor did not take."""

    def __init__(self) -> None:
        self._given = threading.Condition()
        self._params: Arrays | None = None

    def put(self, params: Arrays) -> None:
        """Store a network in place of one that was not taken; the callback for `TrainerClient.recv_network_callback`."""
        with self._given:
            self._params = params
            self._given.notify()

    def take(self, timeout_s: float) -> Arrays | None:
        """Return the newest network since the last `take`, or None if none arrives within `timeout_s`."""
        with self._given:
            self._given.wait_for(lambda: self._params is not None, timeout_s)
            params, self._params = self._params, None
        return params


# -- The two loops, independent of how transitions and networks are sent -------------------------------------------------------


class Replay(Protocol):
    """The replay interface that the learner needs."""

    def sample(self, batch_size: int) -> Mapping[str, NDArray[Any]]:
        """Return transitions drawn at random, by the names that `run_actor` gives them, each ``[batch_size, ...]``."""
        ...


def run_actor(
    env: gym.Env[Any, Any],
    settings: Settings,
    insert: Callable[[dict[str, Any]], None],
    networks: Newest,
    stop: threading.Event,
    *,
    seed: int,
    target_return: float = math.inf,
) -> float:
    """Act until `stop` is set, or until the mean return of the last episodes and of a greedy evaluation reach a target.

    The actor acts at random first, then with the newest network. It takes at most `Settings.random_steps` steps before the
    first network, and at most `Settings.max_lead` with each network, so that a fast simulator does not run too far ahead of the
    learner. If the next network does not arrive within `NETWORK_WAIT_S`, the actor continues with the current one.

    Args:
        env: An environment with Box spaces.
        settings: The limits on how far the actor runs ahead.
        insert: Accepts one transition.
        networks: Holds the newest network.
        stop: Ends the loop.
        seed: The seed of the exploration and of the environment.
        target_return: Ends the loop when reached.

    Returns:
        The mean return of the last evaluation, NaN if no network arrived.
    """
    rng, params, evaluated = np.random.default_rng(seed), None, math.nan
    recent: deque[float] = deque(maxlen=RECENT_EPISODES)
    started, report_at, steps, episodes, total = time.monotonic(), REPORT_S, 0, 0, 0.0
    lead, allowed = 0, settings.random_steps
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    while not stop.is_set():
        fresh = networks.take(NETWORK_WAIT_S if lead >= allowed else 0.0)
        if fresh is not None:
            params, lead, allowed = fresh, 0, settings.max_lead
        elif lead >= allowed:
            lead = 0
            continue  # back to the check of `stop`
        action = env.action_space.sample() if params is None else act(params, observation, rng)
        next_observation, reward, terminated, truncated, _ = env.step(action)
        insert(
            {
                "observations": observation,
                "actions": action,
                "rewards": np.float32(reward),
                "next_observations": next_observation,
                "terminated": np.bool_(terminated),  # not `truncated`: see `Sac.update`
            }
        )
        observation, steps, lead, total = next_observation, steps + 1, lead + 1, total + float(reward)
        if not (terminated or truncated):
            continue
        episodes += 1
        recent.append(total)
        total = 0.0
        seconds, mean = time.monotonic() - started, sum(recent) / len(recent)
        if params is not None and len(recent) == RECENT_EPISODES and mean >= target_return:
            evaluated = evaluate(params, env, seed + 1)
            if evaluated >= target_return:
                print(
                    f"actor   {seconds:6.1f} s  solved: {steps} steps, mean return of the last {len(recent)}: {mean:.1f},"
                    f" evaluation {evaluated:.1f}",
                    flush=True,
                )
                return evaluated
        observation, _ = env.reset()
        if seconds >= report_at:
            report_at += REPORT_S
            print(f"actor   {seconds:6.1f} s  {steps:7d} steps  {episodes:4d} episodes  mean return {mean:8.1f}", flush=True)
    if params is not None:
        evaluated = evaluate(params, env, seed + 1)
        print(f"actor   stopped after {steps} steps, evaluation {evaluated:.1f}", flush=True)
    return evaluated


def run_learner(
    learner: Sac,
    settings: Settings,
    replay: Replay,
    received: Callable[[], int],
    arrived: threading.Event,
    publish: Callable[[Arrays], object],
    stop: threading.Event,
) -> int:
    """Train as fast as the replay ratio allows, until `stop` is set.

    Args:
        learner: The SAC learner.
        settings: The replay ratio and the publication interval.
        replay: The source of the batches.
        received: Returns the number of transitions that have arrived in all.
        arrived: Set whenever transitions arrive; the loop waits for it while no gradient step is due.
        publish: Sends the policy's parameters.
        stop: Ends the loop, within 0.1 s.

    Returns:
        The number of gradient steps.
    """
    ratio = ReplayRatio(settings.replay_ratio, settings.random_steps)
    started, report_at = time.monotonic(), REPORT_S
    while not stop.is_set():
        if not ratio.due(received()):
            arrived.wait(0.1)
            arrived.clear()
            continue
        metrics = learner.update(replay.sample(settings.batch_size))
        ratio.count()
        if ratio.updates % settings.publish_every == 0:
            publish(learner.parameters_for_acting())
        seconds = time.monotonic() - started
        if seconds >= report_at:
            report_at += REPORT_S
            told = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            rate = ratio.updates / seconds
            print(
                f"learner {seconds:6.1f} s  {received():7d} steps  {ratio.updates:7d} updates ({rate:.0f}/s)  {told}",
                flush=True,
            )
    return ratio.updates


# -- The connection between them: rl4sys_zmq.serving --------------------------------------------------------------------------

STORE = "transitions"


@dataclass(frozen=True)
class LearnerLink:
    """The learner's end of the connection: the arguments for `run_learner`, and `close`."""

    replay: Replay
    received: Callable[[], int]
    publish: Callable[[Arrays], object]
    close: Callable[[], None]


@dataclass(frozen=True)
class ActorLink:
    """An actor's end of the connection: `insert` for transitions, and `close`."""

    insert: Callable[[dict[str, Any]], None]
    close: Callable[[], None]


def trainer_config(args: argparse.Namespace) -> TrainerConfig:
    """Return a configuration with the default ports of `TrainerConfig`, or with the given address."""
    if not args.address:
        return TrainerConfig()
    # Actors do not need the address of the networks: the learner sends it to them.
    return TrainerConfig(args.address, 0 if args.address.startswith("tcp://") else f"{args.address}-networks")


def open_learner_link(args: argparse.Namespace, env: gym.Env[Any, Any], arrived: threading.Event) -> LearnerLink:
    """Start a trainer with a replay buffer. It sets `arrived` whenever transitions arrive."""
    replay = ReplayBuffer(args.settings.capacity, env.observation_space, env.action_space, seed=args.seed)
    server = TrainerServer(trainer_config(args), lambda name, payload: arrived.set(), run_dir=args.run_dir, keys=args.keys)
    try:
        server.register_data_store(STORE, replay)
        server.start(threaded=True)
    except BaseException:
        server.stop()
        raise
    return LearnerLink(replay, lambda: replay.latest_data_id() + 1, server.publish_network, server.stop)


def open_actor_link(args: argparse.Namespace, networks: Newest, stop: threading.Event) -> ActorLink:
    """Start a `TrainerClient` that sends inserted transitions every `UPDATE_S` and stores received networks in `networks`."""
    store = QueuedDataStore(ACTOR_CAPACITY)
    while True:
        try:
            client = TrainerClient(
                f"actor-{args.seed}", args.address or args.ip, trainer_config(args), data_stores={STORE: store}, keys=args.keys
            )
        except CallTimeout as exc:
            if stop.is_set():
                raise SystemExit(f"no learner answered: {exc}") from exc
        else:
            break
    client.recv_network_callback(networks.put)
    client.start_async_update(UPDATE_S)
    return ActorLink(store.insert, client.stop)


def make_env(name: str) -> gym.Env[Any, Any]:
    try:
        return gym.make(name)
    except gym.error.DependencyNotInstalled as exc:
        extra = "mujoco" if "mujoco" in str(exc).lower() else "gym"
        raise SystemExit(f"{name} needs the extra {extra}: pip install 'rl4sys-zmq[{extra}]' ({exc})") from exc


def learn(args: argparse.Namespace, stop: threading.Event, ended: threading.Event) -> None:
    """Train until `stop` is set. Set `ended` at the end, also after an error, for an actor in the same process."""
    arrived, env = threading.Event(), make_env(args.env)
    try:
        if not isinstance(env.observation_space, gym.spaces.Box) or not isinstance(env.action_space, gym.spaces.Box):
            raise SystemExit(f"{args.env}: SAC needs Box spaces for observations and actions")
        learner = Sac(env.observation_space, env.action_space, args.settings, args.seed)
        link = open_learner_link(args, env, arrived)
        try:
            run_learner(learner, args.settings, link.replay, link.received, arrived, link.publish, stop)
        finally:
            link.close()
    finally:
        ended.set()
        env.close()


def play(args: argparse.Namespace, stop: threading.Event) -> None:
    networks, env = Newest(), make_env(args.env)
    link = open_actor_link(args, networks, stop)
    try:
        run_actor(env, args.settings, link.insert, networks, stop, seed=args.seed, target_return=args.target_return)
    finally:
        link.close()
        env.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="SAC with an actor and a learner that run asynchronously.")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--learner", action="store_true", help="run only the learner (default: both, as threads)")
    role.add_argument("--actor", action="store_true", help="run only an actor (default: both, as threads)")
    parser.add_argument(
        "--env", default="Pendulum-v1", help="environment with Box observations and bounded Box actions (default: Pendulum-v1)"
    )
    parser.add_argument("--ip", default="127.0.0.1", help="the learner's host, for an actor (default: 127.0.0.1)")
    parser.add_argument("--address", help="the learner's URI, instead of --ip and the default port")
    parser.add_argument("--keys", help="a learner's folder of keys, or an actor's file (default: no keys, loopback only)")
    parser.add_argument("--run-dir", help="folder of the learner's journal (default: no journal)")
    parser.add_argument("--seed", type=int, default=1, help="seed; give each actor its own (default: 1)")
    parser.add_argument(
        "--replay-ratio",
        "--utd",
        type=float,
        default=Settings.replay_ratio,
        help="largest number of gradient steps per environment step (default: 1)",
    )
    parser.add_argument("--max-seconds", type=float, default=60.0, help="stop after this time (default: 60)")
    parser.add_argument(
        "--target-return", type=float, default=math.inf, help="an actor stops when it reaches this mean return (default: never)"
    )
    args = parser.parse_args()
    if not args.replay_ratio > 0:
        parser.error(f"--replay-ratio is {args.replay_ratio}; expected more than 0")
    lead = math.ceil(1.25 * Settings.publish_every / args.replay_ratio)
    args.settings = replace(Settings(), replay_ratio=args.replay_ratio, max_lead=lead)
    return args


def main() -> int:
    args, stop, learner_stop = parse_arguments(), threading.Event(), threading.Event()
    timer = threading.Timer(args.max_seconds, learner_stop.set if args.learner else stop.set)
    timer.daemon = True
    timer.start()
    try:
        if args.actor:
            play(args, stop)
        elif args.learner:
            learn(args, learner_stop, stop)
        else:
            args.address = args.address or "inproc://async-learner-actor"
            learning = threading.Thread(target=learn, args=(args, learner_stop, stop), name="learner")
            learning.start()
            try:
                play(args, stop)
            finally:
                learner_stop.set()  # after the actor, so that the learner receives the actor's last messages
                learning.join()
    except KeyboardInterrupt:
        return 130
    finally:
        timer.cancel()
    return 0


if __name__ == "__main__":
    sys.exit(main())
