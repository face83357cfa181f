"""What one pass over a batch saw, and the scalars that are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["PassRecord"]


@dataclass(slots=True)
class PassRecord:
    """Kept as tensors during the pass: reading each number out would cost more than computing it.

    Attributes:
        policy_losses: a scalar per minibatch.
        value_losses: a scalar per minibatch.
        entropies: a scalar per minibatch.
        log_ratios: ``[B]`` per minibatch, before its step.
    """

    policy_losses: list[Tensor] = field(default_factory=list)
    value_losses: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)

    def kl(self) -> float:
        """The mean approximate KL divergence of the new policy from the acting one, ``E[(r - 1) - log r]`` (Schulman 2020)."""
        x = torch.cat(self.log_ratios)
        return float((torch.expm1(x) - x).mean())

    def scalars(self, clip: float) -> dict[str, float]:
        """CleanRL's ``losses/``, averaged over the pass; `clip` is the ε in force."""
        log_ratios = torch.cat(self.log_ratios)
        return {
            "losses/policy_loss": float(torch.stack(self.policy_losses).mean()),
            "losses/value_loss": float(torch.stack(self.value_losses).mean()),
            "losses/entropy": float(torch.stack(self.entropies).mean()),
            "losses/approx_kl": self.kl(),
            "losses/old_approx_kl": float(-log_ratios.mean()),
            "losses/clipfrac": float((torch.expm1(log_ratios).abs() > clip).float().mean()),
        }
