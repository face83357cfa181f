"""The blocks of algorithms in RL4Sys's ``config.json``."""

from typing import Any

from rl4sys_zmq.config import LearnerConfig

FLAT: dict[str, Any] = {"act_dim": 0, "act_limit": 1.0, "input_size": 0, "max_traj_length": 1000}
"""The keys of a block that actors read."""

BLOCKS: dict[str, dict[str, Any]] = {
    "A2C": FLAT,
    "A3C": FLAT,
    "C51": {
        **FLAT, "batch_size": 64, "act_dim": 4, "seed": 0, "traj_per_epoch": 5, "n_atoms": 51, "v_min": -500, "v_max": 1000,
        "gamma": 0.95, "epsilon": 1.0, "epsilon_min": 0.01, "epsilon_decay": 0.999, "train_update_freq": 4,
        "target_update_freq": 50, "q_lr": 1e-5, "train_q_iters": 50,
    },
    "DDPG": {
        **FLAT, "seed": 1, "gamma": 0.99, "tau": 1e-2, "learning_rate": 3e-3, "batch_size": 128, "buffer_size": 50000,
        "learning_starts": 128, "policy_frequency": 1, "noise_scale": 1e-3, "train_iters": 10,
    },
    "DQN": {
        **FLAT, "seed": 1, "learning_rate": 4e-4, "batch_size": 128, "gamma": 0.99, "tau": 1e-3, "target_network_frequency": 1,
        "buffer_size": 10000, "start_e": 1.0, "end_e": 0.1, "exploration_fraction": 0.5, "learning_starts": 128,
        "train_frequency": 10, "train_iters": 2, "total_timesteps": 500000, "type": "onpolicy",
    },
    "PPO": {
        **FLAT, "batch_size": 512, "act_dim": 4, "seed": 0, "traj_per_epoch": 256, "clip_ratio": 0.2, "gamma": 0.99, "lam": 0.95,
        "pi_lr": 3e-4, "vf_lr": 1e-3, "train_pi_iters": 80, "train_v_iters": 80, "target_kl": None, "input_size": 8,
        "type": "onpolicy",
    },
    "RPO": {
        **FLAT, "seed": 1, "learning_rate": 3e-4, "num_steps": 2048, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2,
        "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "rpo_alpha": 0.5, "update_epochs": 10, "num_minibatches": 32,
        "anneal_lr": True, "clip_vloss": True, "target_kl": None, "total_timesteps_anneal_lr": 1000000,
    },
    "REINFORCE": {
        **FLAT, "discrete": True, "with_vf_baseline": True, "seed": 0, "traj_per_epoch": 12, "gamma": 0.98, "lam": 0.97,
        "pi_lr": 3e-4, "vf_lr": 1e-3, "train_vf_iters": 100,
    },
    "SAC": {
        "discrete": True, "adaptive_alpha": False, "act_dim": 4, "batch_size": 128, "seed": 0, "traj_per_epoch": 128,
        "log_std_min": -20, "log_std_max": 2, "gamma": 0.99, "polyak": 0.995, "alpha": 0.2, "lr": 3e-4, "clip_grad_norm": 1,
        "train_update_freq": 1, "train_iters": 50, "input_size": 0, "max_traj_length": 1000,
    },
    "TD3": {
        **FLAT, "seed": 1, "gamma": 0.99, "tau": 0.005, "learning_rate": 3e-4, "batch_size": 256, "buffer_size": 1000000,
        "exploration_noise": 0.1, "policy_noise": 0.2, "noise_clip": 0.5, "learning_starts": 25000, "policy_frequency": 2,
    },
    "TRPO": FLAT,
}  # fmt: skip
"""The blocks of RL4Sys's ``config.json`` (DIR-LAB/RL4Sys at 95255c8), with its values."""


def learner_block(name: str) -> dict[str, Any]:
    """Return a block as a learner reads it from the file, without the seed."""
    read = LearnerConfig.from_mapping({"algorithms": BLOCKS}).algorithms[name]
    return {key: value for key, value in read.items() if key != "seed"}
