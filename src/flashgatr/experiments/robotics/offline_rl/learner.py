"""What CQL and BCQ have in common: an actor, two critics, and targets that follow slowly.

    losses = learner(batch)             one loss per part; none has a gradient for another part
    action = learner.act(observation, noise)
    learner.follow()                    target += τ (network - target), after every step

One optimiser step is one backward pass of the sum of all losses. The parts are therefore updated
together, from the same weights; the published programs update them one after another.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from ....precision import full_precision
from ....shortcuts import move_all
from ...baselines.checks import require_count
from .networks import Perceptrons, beside
from .transitions import ACTION, OBSERVATION, TransitionBatch

CRITICS = 2


class Learner(nn.Module):
    """An actor that learns from transitions. Its arithmetic is float32, also under autocast.

    hidden, layers: width and number of the hidden layers of all networks
    discount: of the reward of the next frame
    tau: fraction of the way that a target goes to its network in one step
    """

    def __init__(
        self, *, hidden: int = 256, layers: int = 2, discount: float = 0.99, tau: float = 0.005
    ) -> None:
        super().__init__()
        require_count("hidden", hidden)
        require_count("layers", layers)
        require_between("discount", discount, 0, 1)
        require_between("tau", tau, 0, 1)
        self.discount, self.tau = discount, tau
        self.rate_factors: dict[str, float] = {}
        """Factors of the learning rate; see `flashgatr.train.Task`."""
        self.sizes = (hidden,) * layers
        self.critics = Perceptrons((OBSERVATION + ACTION, *self.sizes, 1), CRITICS)
        self.target_critics = target_of(self.critics)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """The shape of the noise that `act` needs for one observation."""
        raise NotImplementedError

    def draw(self, batch: TransitionBatch) -> Any:
        """The random numbers of a training step."""
        raise NotImplementedError

    def losses(self, batch: TransitionBatch, drawn: Any) -> dict[str, Tensor]:
        """The loss of each part, a function of the batch and the random numbers."""
        raise NotImplementedError

    def forward(self, batch: TransitionBatch) -> dict[str, Tensor]:
        """The loss of each part, with random numbers drawn here."""
        with full_precision(batch.reward.device):
            return self.losses(batch, self.draw(batch))

    def act(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Actions (E, 11) for observations (E, 39) and standard normal noise (E, *noise_shape)."""
        raise NotImplementedError

    def values(
        self, observation: Tensor, action: Tensor, *, target: bool = False, frozen: bool = False
    ) -> Tensor:
        """Q of both critics, (2, B, n), for observations (B, O) and actions (B, n, A)."""
        critics = self.target_critics if target else self.critics
        found: Tensor = critics(beside(observation, action), frozen=frozen)
        return found.squeeze(-1)

    def bellman_error(self, value: Tensor, reward: Tensor, future: Tensor) -> Tensor:
        """Σ over critics of the mean of (Q - r - γ V')²; value (2, B), future V' (B)."""
        goal = (reward + self.discount * future).detach()
        return (value - goal).square().mean(-1).sum()

    def targets(self) -> list[tuple[nn.Module, nn.Module]]:
        """The targets, each with the network that it follows."""
        return [(self.target_critics, self.critics)]

    @torch.no_grad()
    def follow(self) -> None:
        """Move all targets towards their networks."""
        targets: list[Tensor] = []
        networks: list[Tensor] = []
        for target, network in self.targets():
            targets += target.parameters()
            networks += network.parameters()
        move_all(targets, networks, self.tau)


def target_of(network: nn.Module) -> nn.Module:
    """A copy that gets no gradient; it belongs to the model, so checkpoints hold it."""
    return copy.deepcopy(network).requires_grad_(False)


def require_between(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Refuse what is no number from `least` to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
        raise ValueError(f"{name} must be a number {limits}, got {value!r}")
