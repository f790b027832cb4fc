"""Forces as the gradient of an energy: train on forces, and the energy is learned with them.

Five balls, no two of them closer than 0.5, repel each other, every two of them with the energy
exp(-r²/2). The network's scalar outputs, summed over the balls, are the energy E. The forces are
-dE/dx, so they rotate with the balls and conserve energy whatever the weights are. The loss
contains a gradient, so its own gradient is a second derivative, for which PyTorch's plain attention
must be chosen.

    python examples/energy.py [--steps 500] [--seed 0] [--initialization geometric]
"""

import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import OneCycleLR

from flashgatr import GATr, embed_point

BALLS, CLOSEST = 5, 0.5


def distances(position):
    """Distances (batch, pairs) of all balls at these positions (batch, balls, 3)."""
    i, j = torch.triu_indices(BALLS, BALLS, 1)
    return (position[:, i] - position[:, j]).norm(dim=-1)


def draw(batch):
    """Random positions (batch, balls, 3) of balls that are not too close."""
    position = torch.randn(4 * batch, BALLS, 3)
    return position[distances(position).amin(-1) > CLOSEST][:batch]


def true_energy(position):
    """The energy of all pairs, summed over the batch: position (batch, balls, 3)."""
    return torch.exp(-distances(position).square() / 2).sum()


def forces(energy, position, *, create_graph=False):
    """Minus the gradient of `energy(position)`, a number."""
    position = position.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(position), position, create_graph=create_graph)
    return -gradient


def train(net, steps, lr=2e-3, batch=32, report=print):
    """Train `net` on forces; returns its squared force error divided by that of zero forces."""

    def energy(position):
        _, per_ball = net(embed_point(position).unsqueeze(-2))
        return per_ball.sum()

    test = draw(256)
    truth = forces(true_energy, test)
    optimizer = torch.optim.Adam(net.parameters())
    schedule = OneCycleLR(optimizer, max_lr=lr, total_steps=steps, cycle_momentum=False)
    error = 1.0
    for step in range(1, steps + 1):
        position = draw(batch)
        found = forces(energy, position, create_graph=True)
        loss = (found - forces(true_energy, position)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            difference = forces(energy, test) - truth
            error = float(difference.square().mean() / truth.square().mean())
            report(f"step {step}: squared force error {error:.4f} of that of zero forces")
    return error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--initialization", default="geometric", help="or default")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    net = GATr(
        in_mv_channels=1, out_mv_channels=1, out_s_channels=1, hidden_mv_channels=8,
        hidden_s_channels=16, num_blocks=4, num_heads=2, initialization=arguments.initialization,
    )  # fmt: skip
    with sdpa_kernel(SDPBackend.MATH):
        train(net, arguments.steps)


if __name__ == "__main__":
    main()
