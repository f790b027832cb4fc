"""Conservative Q-learning (Kumar et al., 2020): soft actor-critic whose critics distrust actions
that are not in the data.

    critics       (Q(s, a) - r - γ min Q̄(s', π(s')))² + α w (log Σ_a exp Q(s, a) - Q(s, a_data) - τ)
    actor         β log π(ã|s) - min Q(s, ã)
    temperature   β, so that the entropy of π approaches minus the number of actions
    α             grows while the conservative term is larger than its threshold τ

The sum over actions is estimated from random ones: uniform, π(s) and π(s'), each divided by its
probability. Defaults are those of d3rlpy, where the critics learn at a rate of 3e-4 and everything
else at 1e-4.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...baselines.checks import require_bool, require_count
from .learner import Learner, require_between
from .networks import GaussianPolicy
from .transitions import ACTION, OBSERVATION, TransitionBatch

LARGEST_ALPHA = 1e6
_UNIFORM = -ACTION * math.log(2)
"""Log-probability of a uniform action from -1 to 1."""


class CQLNoise(NamedTuple):
    """The random numbers of a step: standard normal ones, and `uniform` actions from -1 to 1."""

    following: Tensor  # (B, 1, A), of the action in the target, if the backup is soft
    actor: Tensor  # (B, 1, A)
    policy: Tensor  # (B, n, A), of actions of π(s)
    next_policy: Tensor  # (B, n, A), of actions of π(s')
    uniform: Tensor  # (B, n, A)


class ConservativeQLearning(Learner):
    """CQL; further options are those of `Learner`.

    samples: random actions of each of the three kinds
    weight: w of the conservative term
    threshold: τ; 0: no threshold, and α = 1
    soft_backup: the target takes a random action and its entropy instead of the mean action
    """

    def __init__(
        self,
        *,
        samples: int = 10,
        weight: float = 5.0,
        threshold: float = 10.0,
        soft_backup: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require_count("samples", samples)
        require_between("weight", weight, 0)
        require_between("threshold", threshold, 0)
        require_bool("soft_backup", soft_backup)
        self.samples, self.weight, self.threshold = samples, weight, threshold
        self.soft_backup = soft_backup
        self.actor = GaussianPolicy(OBSERVATION, ACTION, self.sizes)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.log_alpha = nn.Parameter(torch.zeros(())) if threshold else None
        slow = ("actor", "log_temperature", *("log_alpha",) * bool(threshold))
        self.rate_factors = dict.fromkeys(slow, 1 / 3)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (0,)

    def act(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self.actor.best(observation)

    def draw(self, batch: TransitionBatch) -> CQLNoise:
        one = batch.action.unsqueeze(-2)
        many = one.expand(-1, self.samples, -1)
        following, actor, policy, next_policy = (
            torch.randn_like(x) for x in (one, one, many, many)
        )
        return CQLNoise(following, actor, policy, next_policy, 2 * torch.rand_like(many) - 1)

    def losses(self, batch: TransitionBatch, drawn: CQLNoise) -> dict[str, Tensor]:
        value = self.values(batch.observation, batch.action.unsqueeze(-2)).squeeze(-1)
        error = self.bellman_error(value, batch.reward, self.future(batch, drawn.following))
        conservative = self.conservative(batch, value, drawn)
        found = self._actor_losses(batch, drawn.actor)
        if self.log_alpha is None:
            return found | {"critic": error, "conservative": conservative.sum()}
        alpha = self.log_alpha.exp().clamp(max=LARGEST_ALPHA)
        return found | {
            "critic": error,
            "conservative": (alpha.detach() * conservative).sum(),
            "alpha": -(alpha * conservative.detach()).mean(),
        }

    @torch.no_grad()
    def future(self, batch: TransitionBatch, noise: Tensor) -> Tensor:
        """The value (B) of the next state, by the targets."""
        if not self.soft_backup:
            best = self.actor.best(batch.following).unsqueeze(-2)
            return self.values(batch.following, best, target=True).amin(0).squeeze(-1)
        action, log_probability = self.actor.draw(batch.following, noise)
        value = self.values(batch.following, action, target=True).amin(0)
        return (value - self.log_temperature.exp() * log_probability).squeeze(-1)

    def conservative(self, batch: TransitionBatch, value: Tensor, drawn: CQLNoise) -> Tensor:
        """w (log Σ exp Q - Q of the data - τ) of each critic, (2), as means over the batch."""
        with torch.no_grad():
            own = self.actor.draw(batch.observation, drawn.policy)
            others = self.actor.draw(batch.following, drawn.next_policy)
            actions = torch.cat([own.action, others.action, drawn.uniform], dim=-2)
            uniform = torch.full_like(own.log_probability, _UNIFORM)
            log_probability = torch.cat(
                [own.log_probability, others.log_probability, uniform], dim=-1
            )
        values = self.values(batch.observation, actions) - log_probability
        gap = (values.logsumexp(-1) - value).mean(-1)
        return self.weight * (gap - self.threshold)

    def _actor_losses(self, batch: TransitionBatch, noise: Tensor) -> dict[str, Tensor]:
        action, log_probability = self.actor.draw(batch.observation, noise)
        value = self.values(batch.observation, action, frozen=True).amin(0)
        temperature = self.log_temperature.exp()
        excess = log_probability.detach() - ACTION
        return {
            "actor": (temperature.detach() * log_probability - value).mean(),
            "temperature": -(temperature * excess).mean(),
        }
