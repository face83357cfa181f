"""For each algorithm, tables of its parameters in Stable-Baselines3 2.9, CleanRL (fe8d8a0) and RL4Sys (95255c8)."""

from __future__ import annotations

from typing import Any

from rl4sys_zmq.config.options import InvalidValue, number, whole_number
from rl4sys_zmq.learner.registry.like import ForeignParameter, Libraries, Library, Values, falling, times

LONGEST_SEGMENT = 128
"""The largest segment of an actor, in steps, if a library gives the steps of each environment per update."""
WHOLE_ERROR = {"huber_delta": 1e9, "adam_epsilon": 5e-9}
"""The squared error, of which our loss is half: so half of Adam's epsilon 1e-8 gives the same steps."""

_FOLLOWS, _DEVICE = "the targets follow each gradient step; leave it out", "it is an option of the learner; set device there"
_DATA = ("rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage")
_LOGS = "logs and TensorBoard files are in the run directory; leave it out"
_SB3_ABSENT = {
    **dict.fromkeys(("use_sde", "sde_sample_freq", "use_sde_at_warmup"), "its exploration is not available; leave it out"),
    **dict.fromkeys((*_DATA, "_init_setup_model"), "batches and the replay are this library's; leave it out"),
    **dict.fromkeys(("tensorboard_log", "stats_window_size", "verbose"), _LOGS), "device": _DEVICE, "policy": "give network",
    "policy_kwargs": "give its keys here, such as net_arch and activation_fn", "env": "actors have the environments",
    "action_noise": "give noise_std, the standard deviation of normal noise", "target_update_interval": _FOLLOWS,
    "normalize": "give normalise_observations and normalise_rewards",
}  # fmt: skip
_CLEANRL_ABSENT = {
    **dict.fromkeys(("exp_name", "env_id", "track", "wandb_project_name", "wandb_entity", "capture_video"), "leave it out"),
    **dict.fromkeys(("save_model", "upload_model", "hf_entity"), "rl4sys-learner export writes the policy"),
    "torch_deterministic": "leave it out", "cuda": _DEVICE, "target_network_frequency": _FOLLOWS,
    **dict.fromkeys(("batch_size", "minibatch_size", "num_iterations"), "give num_envs, num_steps and num_minibatches"),
    "num_envs": "it is an option of actors, --num-envs", "total_timesteps": "nothing depends on it here; leave it out",
    "policy_frequency": "one step of the policy follows each step of the critics; leave it out",
}  # fmt: skip
_BATCHES = "A batch consists of whole segments, so it can be some steps longer; the minibatches of a pass have equal sizes."
_VERSIONS = "Actors can have older weights. publish_every_updates 1, pacing_lag 0 and short segments give them the last ones."


def _activation(value: Any, values: Values) -> dict[str, object]:
    return {"activation": str(value).split(".")[-1].lower()}


def _layers(sizes: list[int], function: str) -> dict[str, Any]:
    """Return the descriptions and defaults of two parameters of Stable-Baselines3: `net_arch` and `activation_fn`."""
    return {"net_arch": sizes, "activation_fn": ForeignParameter(function, "nn.ReLU is relu", "activation", _activation)}


def _batch(steps: str, default: int, envs: str, environments: int, alone: str = "steps per segment") -> dict[str, Any]:
    """Return the descriptions of two parameters of another library that together give the size of a batch.

    They are `steps`, the steps of each environment per update, and `envs`, the number of environments.
    """
    count = whole_number(1, 1 << 20)

    def environment(value: Any, values: Values) -> dict[str, object]:
        return dict.fromkeys((), count(value))  # only the check: the other row computes the batch

    def convert(value: Any, values: Values) -> dict[str, object]:
        length = {} if "rollout_length" in values else {"rollout_length": min(count(value), LONGEST_SEGMENT)}
        return {"steps_per_update": count(value) * count(values[envs]), **length}

    note = f"steps of each environment per update, times {envs}; without like: {alone}"
    return {
        steps: ForeignParameter(default, note, "steps_per_update, rollout_length", convert, alone == "steps per segment"),
        envs: ForeignParameter(environments, "environments of all actors", "steps_per_update", environment),
    }


_CLIPPED = {"normalise_observations": False, "normalise_rewards": False, "squash": "clip", "anneal_floor": 0.0}
_SB3_RULES = {**_CLIPPED, "anneal_ahead": True}
_EACH = "over each minibatch; without like: over the whole batch"
_SB3_COMMON = {
    "gamma": 0.99, "max_grad_norm": 0.5, "ent_coef": 0.0, **_layers([64, 64], "tanh"), "log_std_init": 0.0,
    "vf_coef": times(2.0, "vf_coef", 0.5, "weight of the whole squared error, so twice; without like: of half of it"),
    "total_timesteps": ...,
}  # fmt: skip
_SB3_PPO = {
    "learning_rate": falling(3e-4, "learning_rate", {"anneal_lr": True}), **_SB3_COMMON, **_batch("n_steps", 2048, "n_envs", 1),
    "gae_lambda": 0.95, "batch_size": 64, "n_epochs": 10, "clip_range": falling(0.2, "clip_coef", {"anneal_clip": True}),
    "clip_range_vf": ForeignParameter(None, "the clipped error alone; without like: the larger one", differs=True),
    "normalize_advantage": ForeignParameter(True, _EACH, differs=True),
    "target_kl": times(1.5, "target_kl", None, "1.5 times it ends the update, at a minibatch; without like: it, after a pass"),
}  # fmt: skip
_SB3_A2C = {
    "learning_rate": falling(7e-4, "learning_rate", {"anneal_lr": True}), **_SB3_COMMON, **_batch("n_steps", 5, "n_envs", 1),
    "gae_lambda": 1.0, "normalize_advantage": False, "use_rms_prop": True,
    "rms_prop_eps": ForeignParameter(
        1e-5, "nothing without use_rms_prop: Adam has 1e-5", "adam_eps",
        lambda value, values: {"adam_eps": value if values["use_rms_prop"] else 1e-5},
    ),
}  # fmt: skip


def _cleanrl_ppo(file: str, *, alone: str = "steps per segment", numbers: bool = True, **other: Any) -> Library:
    """Return the parameters of a file of CleanRL's PPO. `other` has defaults that are not those for continuous actions."""
    names: dict[str, Any] = {
        "total_timesteps": 1_000_000, "learning_rate": 3e-4, "num_envs": 1, "num_steps": 2048, "anneal_lr": True, "gamma": 0.99,
        "gae_lambda": 0.95, "num_minibatches": 32, "update_epochs": 10, "norm_adv": ForeignParameter(True, _EACH, differs=True),
        "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.0, "max_grad_norm": 0.5,
        "vf_coef": ForeignParameter(0.5, "weight of half the squared error, as here", differs=True),
        "target_kl": ForeignParameter(None, "of a pass's last minibatch; without like: of the whole pass", differs=True), **other,
    }  # fmt: skip
    names |= _batch("num_steps", names["num_steps"], "num_envs", names["num_envs"], alone)
    rules = {**_CLIPPED, "norm_adv_over": "minibatch", "target_kl_over": "last_minibatch"}
    rules |= {"normalise_observations": numbers, "normalise_rewards": numbers}
    different = _BATCHES + " A time limit ends the value of an episode there, and not here."
    different += " Statistics of observations and returns change at each update, there at each step." if numbers else ""
    return Library(f"CleanRL, {file}", names, rules, _CLEANRL_ABSENT, different, numbers=numbers)


def _entropy(value: Any, values: Values) -> dict[str, object]:
    try:
        learned = isinstance(value, str)
        first = float(value.removeprefix("auto_")) if learned and value != "auto" else value
        return {"learn_temperature": learned, "temperature": None if value == "auto" else number(0.0, 1e9, above=True)(first)}
    except ValueError:
        raise InvalidValue("a number above 0, 'auto', or 'auto_' and the first value") from None


def _sb3_replay(name: str, rules: Values, **other: Any) -> Library:
    """Return the parameters of an off-policy algorithm of Stable-Baselines3, with their defaults."""
    names = {
        "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256, "tau": 0.005, "gamma": 0.99, "train_freq": 1,
        "gradient_steps": 1, "n_steps": 1, **other,
    }  # fmt: skip
    return Library(f"Stable-Baselines3, {name}", names, {"adam_epsilon": 1e-8, **rules}, _SB3_ABSENT, _VERSIONS)


def _cleanrl_replay(file: str, rules: Values, differences: str = "", **other: Any) -> Library:
    """Return the parameters of an off-policy file of CleanRL, with their defaults."""
    return Library(f"CleanRL, {file}", {"gamma": 0.99, **other}, rules, _CLEANRL_ABSENT, differences + _VERSIONS)


_DETERMINISTIC: dict[str, Any] = {
    "learning_rate": 1e-3, **_layers([400, 300], "relu"),
    "noise_std": ForeignParameter(0.0, "of action_noise, as a share of half the range", "exploration_noise"),
}  # fmt: skip
_DISCRETE: dict[str, Any] = {
    "total_timesteps": 500_000, "learning_rate": 2.5e-4, "buffer_size": 10_000, "batch_size": 128, "learning_starts": 10_000,
    "target_network_frequency": 500, "start_e": 1.0, "end_e": 0.05, "exploration_fraction": 0.5, "train_frequency": 10,
}  # fmt: skip
_REPLAY: dict[str, Any] = {"buffer_size": 1_000_000, "tau": 0.005, "batch_size": 256, "learning_starts": 25_000}
_DELAYED: dict[str, Any] = {**_REPLAY, "learning_rate": 3e-4, "exploration_noise": 0.1, "policy_frequency": 2}
_ONE_STEP = {"n_step": 1, "double_q": False, "max_grad_norm": None, "hidden_sizes": [120, 84], "activation": "relu"}

PPO: Libraries = {
    "sb3": Library(
        "Stable-Baselines3, PPO", _SB3_PPO,
        {**_SB3_RULES, "norm_adv_over": "minibatch", "value_clip_loss": "clipped", "target_kl_over": "minibatch"},
        _SB3_ABSENT, _BATCHES,
    ),
    "cleanrl": _cleanrl_ppo(
        "ppo.py", numbers=False, total_timesteps=500_000, learning_rate=2.5e-4, num_envs=4, num_steps=128, num_minibatches=4,
        update_epochs=4, ent_coef=0.01,
    ),
    "cleanrl_continuous": _cleanrl_ppo("ppo_continuous_action.py"),
    "rl4sys": Library(
        "RL4Sys, PPO",
        {
            "traj_per_epoch": 25_600, "train_pi_iters": 10, "train_v_iters": 10, "pi_lr": 3e-4, "vf_lr": 1e-3, "gamma": 0.99,
            "lam": 0.95, "clip_ratio": 0.2, "target_kl": 0.015, "max_grad_norm": 0.5, "norm_adv": True, "clip_vloss": True,
            "ent_coef": 0.01, "vf_coef": 0.5, "batch_size": 64, "buf_size": 1_000_000,
        },
        {"normalise_observations": False, "normalise_rewards": False, "activation": "relu", "adam_eps": 1e-8}, {},
        "As there, buf_size, batch_size, clip_vloss, ent_coef and vf_coef have no effect. The hidden layers are 64 and 64 units; "
        "there 32, 16 and 8 for the policy, 128 and 128 for the values. The policy's step whose KL exceeds the limit is left "
        "out; there it is the last one.",
        frozenset({"train_pi_iters", "train_v_iters", "traj_per_epoch", "pi_lr", "lam"}),
    ),
}  # fmt: skip
RPO: Libraries = {"cleanrl": _cleanrl_ppo("rpo_continuous_action.py", alone="of all", total_timesteps=8_000_000, rpo_alpha=0.5)}
A2C: Libraries = {"sb3": Library("Stable-Baselines3, A2C", _SB3_A2C, _SB3_RULES, _SB3_ABSENT, _BATCHES)}
DQN: Libraries = {
    "sb3": _sb3_replay(
        "DQN", {"double_q": False, "huber_delta": 1.0}, batch_size=32, tau=1.0, train_freq=4, max_grad_norm=10.0,
        learning_rate=falling(1e-4, "learning_rate", {"learning_rate_final": 0.0}), total_timesteps=...,
        **_layers([64, 64], "relu"), target_update_interval=10_000, exploration_fraction=0.1, exploration_initial_eps=1.0,
        exploration_final_eps=0.05,
    ),
    "cleanrl": _cleanrl_replay("dqn.py", {**_ONE_STEP, **WHOLE_ERROR}, tau=1.0, **_DISCRETE),
    "rl4sys": Library(
        "RL4Sys, DQN",
        {
            "learning_rate": ForeignParameter(1e-4, "also of lr, which its code reads"),
            "batch_size": 32, "gamma": 0.99, "tau": 0.005, "buffer_size": 1_000_000, "start_e": 1.0, "end_e": 0.05,
            "exploration_fraction": 0.1, "learning_starts": 50_000, "target_network_frequency": 1000, "traj_per_epoch": 5,
            "train_iters": 1, "total_timesteps": 1_000_000,
        },
        {**_ONE_STEP, **WHOLE_ERROR, "hidden_sizes": [64, 64]},
        {
            "lr": "give learning_rate", "buf_size": "its code reads buffer_size; give that",
            **dict.fromkeys(("epsilon", "epsilon_min", "epsilon_decay"), "its code does not read it; give start_e and end_e"),
            **dict.fromkeys(("train_frequency", "target_update"), "its code does not read it; leave it out"),
        },
        "Its code trains at each step, and keeps epsilon at 1; here its parameters mean what their names and its comments say.",
    ),
}  # fmt: skip
C51: Libraries = {
    "cleanrl": _cleanrl_replay("c51.py", {**_ONE_STEP, "tau": 1.0}, n_atoms=101, v_min=-100.0, v_max=100.0, **{
        **_DISCRETE, "batch_size": ForeignParameter(
            128, "Adam's epsilon is 0.01 divided by it", "batch_size, adam_epsilon",
            lambda value, _: {"batch_size": value, "adam_epsilon": 0.01 / whole_number(1, 1 << 20)(value)},
        ),
    }),
}  # fmt: skip
SAC: Libraries = {
    "sb3": _sb3_replay(
        "SAC", {}, learning_rate=3e-4, **_layers([256, 256], "relu"),
        ent_coef=ForeignParameter(
            "auto", "auto, auto_ and its first value, or fixed", "learn_temperature, temperature", _entropy
        ),
        target_entropy=ForeignParameter(
            "auto", "auto: null", "", lambda value, _: {"target_entropy": None if value == "auto" else value}
        ),
    ),
    "cleanrl": _cleanrl_replay(
        "sac_continuous_action.py", {"log_std_min": -5.0, "log_std_max": 2.0},
        "log σ is clipped to its range, into which a tanh maps it there. One step of the policy follows each one of the critics; "
        "there two follow each second one. ", **{**_REPLAY, "learning_starts": 5000}, policy_lr=3e-4, autotune=True,
        q_lr=ForeignParameter(
            1e-3, "of the critics and of the temperature", "critic_learning_rate, temperature_learning_rate",
            lambda value, _: {"critic_learning_rate": value, "temperature_learning_rate": value},
        ),
        alpha=ForeignParameter(
            0.2, "nothing with autotune, which begins at 1; without like: its first value", "temperature",
            lambda value, values: {"temperature": None if values["autotune"] else value}, True,
        ),
    ),
}  # fmt: skip
TD3: Libraries = {
    "sb3": _sb3_replay("TD3", {}, **_DETERMINISTIC, policy_delay=2, target_policy_noise=0.2, target_noise_clip=0.5),
    "cleanrl": _cleanrl_replay("td3_continuous_action.py", {}, **_DELAYED, policy_noise=0.2, noise_clip=0.5),
}
DDPG: Libraries = {
    "sb3": _sb3_replay("DDPG", {"twin_critics": False, "policy_delay": 1, "target_noise": 0.0}, **_DETERMINISTIC),
    "cleanrl": _cleanrl_replay("ddpg_continuous_action.py", {"twin_critics": False, "target_noise": 0.0}, **_DELAYED),
}
