"""Forces as the gradient of an energy: train on forces, and the energy is learned with them.

Five balls, every two of them joined by a spring of length one. The network's scalar outputs, summed
over the balls, are the energy E; the forces are -dE/dx, so they are equivariant and conserve
energy whatever the weights are. The loss contains a gradient, so its own gradient is a second
derivative, for which PyTorch's plain attention must be chosen.

    python examples/energy.py [--steps 500] [--seed 0]
"""

import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgatr import GATr, embed_point

BALLS, STIFFNESS = 5, 0.1


def spring_energy(position):
    """Energies of all springs, summed over the batch: position (batch, balls, 3)."""
    i, j = torch.triu_indices(BALLS, BALLS, 1)
    length = (position[:, i] - position[:, j]).norm(dim=-1)
    return STIFFNESS / 2 * (length - 1).square().sum()


def forces(energy, position, *, create_graph=False):
    """Minus the gradient of `energy(position)`, a number."""
    position = position.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (gradient,) = torch.autograd.grad(energy(position), position, create_graph=create_graph)
    return -gradient


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)

    net = GATr(
        in_mv_channels=1, out_mv_channels=0, out_s_channels=1,
        hidden_mv_channels=8, hidden_s_channels=16, num_blocks=4, num_heads=2,
    )  # fmt: skip

    def predicted_energy(position):
        _, energy = net(embed_point(position).unsqueeze(-2))
        return energy.sum()

    test = torch.randn(256, BALLS, 3)
    true = forces(spring_energy, test)
    optimizer = torch.optim.Adam(net.parameters(), lr=arguments.lr)
    for step in range(1, arguments.steps + 1):
        position = torch.randn(arguments.batch, BALLS, 3)
        found = forces(predicted_energy, position, create_graph=True)
        loss = (found - forces(spring_energy, position)).square().mean()
        optimizer.zero_grad()
        with sdpa_kernel(SDPBackend.MATH):
            loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == arguments.steps:
            error = (forces(predicted_energy, test) - true).square().mean()
            print(f"step {step}: force error {error / true.square().mean():.4f} of zero forces'")


if __name__ == "__main__":
    main()
