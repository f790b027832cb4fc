"""The learners by the names that model.name takes."""

from __future__ import annotations

from .bcq import BatchConstrainedQLearning
from .cql import ConservativeQLearning
from .learner import Learner

LEARNERS: dict[str, type[Learner]] = {
    "cql": ConservativeQLearning,
    "bcq": BatchConstrainedQLearning,
}
