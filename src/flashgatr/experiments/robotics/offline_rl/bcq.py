"""Batch-constrained Q-learning (Fujimoto et al., 2019): choose among actions that the data suggest.

    VAE           (a - decoder(s, z))² + β KL(encoder(s, a) ‖ N(0, 1)),  z from the encoder
    actor         ξ with a + Φ tanh ξ(s, a) for an action a of the decoder: -Q₁
    critics       (Q(s, a) - r - γ max_i [λ min Q̄(s', aᵢ) + (1 - λ) max Q̄(s', aᵢ)])²

Actions aᵢ come from the decoder with z between -½ and ½, and are changed by the actor (in critics'
targets by its own target). To act, the best of many is taken, as the first critic judges them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...baselines.checks import require_count
from .learner import Learner, require_between, target_of
from .networks import Perceptrons, beside
from .transitions import ACTION, OBSERVATION, TransitionBatch

LATENT = 2 * ACTION
LOG_STD = (-4.0, 15.0)
"""Bounds of the logarithm of the encoder's standard deviation."""
NEAR = 0.5
"""Largest latent number in actions that are chosen from."""


class BCQNoise(NamedTuple):
    """The random numbers of a step, standard normal."""

    vae: Tensor  # (B, Z)
    actor: Tensor  # (B, 1, Z)
    following: Tensor  # (B, n, Z)


class BatchConstrainedQLearning(Learner):
    """BCQ; further options are those of `Learner`.

    samples: actions from which the critics' targets take the best
    candidates: actions from which `act` takes the best
    flexibility: Φ, the largest change of an action by the actor
    pessimism: λ, the weight of the smaller of two values
    divergence: β, the weight of the divergence in the loss of the VAE
    """

    def __init__(
        self,
        *,
        samples: int = 10,
        candidates: int = 100,
        flexibility: float = 0.05,
        pessimism: float = 0.75,
        divergence: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require_count("samples", samples)
        require_count("candidates", candidates)
        require_between("flexibility", flexibility, 0, 2)
        require_between("pessimism", pessimism, 0, 1)
        require_between("divergence", divergence, 0)
        self.samples, self.candidates = samples, candidates
        self.flexibility, self.pessimism, self.divergence = flexibility, pessimism, divergence
        pair = OBSERVATION + ACTION
        self.encoder = Perceptrons((pair, *self.sizes, 2 * LATENT))
        self.decoder = Perceptrons((OBSERVATION + LATENT, *self.sizes, ACTION))
        self.actor = Perceptrons((pair, *self.sizes, ACTION))
        self.target_actor = target_of(self.actor)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (self.candidates, LATENT)

    def targets(self) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
        return [*super().targets(), (self.target_actor, self.actor)]

    def act(self, observation: Tensor, noise: Tensor) -> Tensor:
        actions = self.changed(observation, self.suggested(observation, noise))
        best = self.values(observation, actions)[0].argmax(-1)
        return actions[torch.arange(len(best), device=best.device), best]

    def draw(self, batch: TransitionBatch) -> BCQNoise:
        size = len(batch.reward)
        shapes = (size, LATENT), (size, 1, LATENT), (size, self.samples, LATENT)
        return BCQNoise(*(torch.randn(shape, device=batch.reward.device) for shape in shapes))

    def losses(self, batch: TransitionBatch, drawn: BCQNoise) -> dict[str, Tensor]:
        value = self.values(batch.observation, batch.action.unsqueeze(-2)).squeeze(-1)
        with torch.no_grad():
            idea = self.suggested(batch.observation, drawn.actor)
        action = self.changed(batch.observation, idea)
        return {
            "vae": self.vae_loss(batch, drawn.vae),
            "critic": self.bellman_error(
                value, batch.reward, self.future(batch.following, drawn.following)
            ),
            "actor": -self.values(batch.observation, action, frozen=True)[0].mean(),
        }

    def vae_loss(self, batch: TransitionBatch, noise: Tensor) -> Tensor:
        """How badly actions are coded and decoded, and how far their code is from normal."""
        code: Tensor = self.encoder(torch.cat([batch.observation, batch.action], dim=-1))[0]
        mean, log_std = code.chunk(2, dim=-1)
        log_std = log_std.clamp(*LOG_STD)
        latent = mean + log_std.exp() * noise
        error = self.decoded(torch.cat([batch.observation, latent], dim=-1)) - batch.action
        divergence = 0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std
        return error.square().mean() + self.divergence * divergence.mean()

    @torch.no_grad()
    def future(self, observation: Tensor, noise: Tensor) -> Tensor:
        """The value (B) of observations by the targets, for latent numbers (B, n, Z)."""
        actions = self.changed(observation, self.suggested(observation, noise), target=True)
        values = self.values(observation, actions, target=True)
        share = self.pessimism
        return (share * values.amin(0) + (1 - share) * values.amax(0)).amax(-1)

    def decoded(self, pairs: Tensor) -> Tensor:
        """The actions (..., A) of pairs of an observation and latent numbers, (..., O + Z)."""
        found: Tensor = self.decoder(pairs)[0].tanh()
        return found

    def suggested(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Actions (B, n, A) as in the data, for observations (B, O) and normal noise (B, n, Z)."""
        return self.decoded(beside(observation, noise.clamp(-NEAR, NEAR)))

    def changed(self, observation: Tensor, action: Tensor, *, target: bool = False) -> Tensor:
        """Actions (B, n, A) after the actor changed them a little."""
        actor = self.target_actor if target else self.actor
        change: Tensor = actor(beside(observation, action))[0].tanh()
        return (action + self.flexibility * change).clamp(-1, 1)
