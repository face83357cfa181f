"""The measurements of one pass over a batch, and the scalars computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["PassRecord"]


@dataclass(slots=True)
class PassRecord:
    """The measurements of one pass. They stay tensors during the pass, because reading each number out is slow.

    Attributes:
        policy_losses: A scalar per minibatch.
        value_losses: A scalar per minibatch.
        entropies: A scalar per minibatch.
        log_ratios: ``[B]`` per minibatch, before its step.
    """

    policy_losses: list[Tensor] = field(default_factory=list)
    value_losses: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)

    def kl(self) -> float:
        """Return the mean approximate KL divergence ``E[(r - 1) - log r]`` of the new from the acting policy.

        Source: Schulman 2020.
        """
        x = torch.cat(self.log_ratios)
        return float((torch.expm1(x) - x).mean())

    def scalars(self, clip: float) -> dict[str, float]:
        """Return CleanRL's ``losses/``, averaged over the pass; `clip` is the current ε."""
        log_ratios = torch.cat(self.log_ratios)
        return {
            "losses/policy_loss": float(torch.stack(self.policy_losses).mean()),
            "losses/value_loss": float(torch.stack(self.value_losses).mean()),
            "losses/entropy": float(torch.stack(self.entropies).mean()),
            "losses/approx_kl": self.kl(),
            "losses/old_approx_kl": float(-log_ratios.mean()),
            "losses/clipfrac": float((torch.expm1(log_ratios).abs() > clip).float().mean()),
        }
