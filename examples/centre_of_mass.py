"""From points to a trained, saved and reloaded network, on a CPU.

The task: predict the centre of mass of a few moving bodies after one unit of time. The network's
inputs are positions (points), velocities (directions) and masses (scalars); its output is one point
per set of bodies.

    python examples/centre_of_mass.py [--steps 240] [--folder runs/centre_of_mass]
"""

import argparse
import time

import torch

from flashgatr import (
    GATr,
    embed_direction,
    embed_point,
    embed_rotation,
    embed_translation,
    extract_point,
    readout,
    versors,
)
from flashgatr.testing import assert_equivariant

BODIES = 6


def bodies(batch, generator):
    """Random positions and velocities (batch, bodies, 3), log-masses (batch, bodies, 1)."""
    position = torch.randn(batch, BODIES, 3, generator=generator)
    velocity = torch.randn(batch, BODIES, 3, generator=generator)
    log_mass = torch.randn(batch, BODIES, 1, generator=generator)
    return position, velocity, log_mass


def embed(position, velocity):
    """Two multivector channels per body: (..., bodies, 2, 16)."""
    return torch.stack([embed_point(position), embed_direction(velocity)], dim=-2)


def predict(net, mv, log_mass):
    """One point (..., 3) per set."""
    out, _ = readout(*net(mv, log_mass))
    return extract_point(out[..., 0, :])


def truth(position, velocity, log_mass):
    share = log_mass.softmax(dim=-2)  # each body's share of the total mass
    return (share * (position + velocity)).sum(-2)


def move(motion, x):
    """Apply a rigid motion to coordinates (..., 3)."""
    matrix = versors.to_matrix(motion)
    return x @ matrix[:3, :3].mT + matrix[:3, 3]


def train(net, steps, generator):
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        position, velocity, log_mass = bodies(64, generator)
        prediction = predict(net, embed(position, velocity), log_mass)
        loss = (prediction - truth(position, velocity, log_mass)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step in (1, steps) or step % (steps // 8 or 1) == 0:
            print(f"  step {step:4d}   mean squared error {loss.item():.5f}")


def main():
    parser = argparse.ArgumentParser(description="Train a small GATr from end to end.")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--folder", default="runs/centre_of_mass", help="where to save the network")
    options = parser.parse_args()
    start = time.perf_counter()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    net = GATr(
        in_mv_channels=2,
        in_s_channels=1,
        out_mv_channels=1,
        hidden_mv_channels=8,
        hidden_s_channels=16,
        num_blocks=2,
        num_heads=4,
    )
    print(f"1. Network\n  {net}\n\n2. Training")
    train(net, options.steps, generator)

    net.eval()
    position, velocity, log_mass = bodies(1000, generator)
    target = truth(position, velocity, log_mass)
    with torch.no_grad():
        error = (predict(net, embed(position, velocity), log_mass) - target).square().mean()
    guess = ((position + velocity).mean(-2) - target).square().mean()
    print(f"  on new data    mean squared error {error:.5f}")
    print(f"  all masses taken as equal: error {guess:.5f}")

    print("\n3. Symmetry")
    position, velocity, log_mass = position[0], velocity[0], log_mass[0]
    mv = embed(position, velocity)
    worst = assert_equivariant(net, mv, log_mass)
    print(f"  largest equivariance error over random motions and mirrors, float64: {worst:.1e}")
    turn = embed_rotation(torch.nn.functional.normalize(torch.tensor([1.0, 2.0, 3.0, 4.0]), dim=0))
    motion = versors.compose(embed_translation(torch.tensor([10.0, -20.0, 30.0])), turn)
    with torch.no_grad():
        here = predict(net, mv, log_mass)
        there = predict(net, versors.apply(motion, mv), log_mass)
    print(f"  prediction                        {show(here)}")
    print(f"  rotated and shifted prediction    {show(move(motion, here))}")
    print(f"  prediction for the moved scene    {show(there)}")
    torch.testing.assert_close(there, move(motion, here), rtol=1e-4, atol=1e-4)

    print("\n4. Saving")
    net.save_pretrained(options.folder)
    again = GATr.from_pretrained(options.folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(predict(again, mv, log_mass), here, rtol=0, atol=0)
    print(f"  saved to {options.folder} and loaded again: the same prediction, bit for bit")
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")


def show(point):
    return "(" + ", ".join(f"{x:9.5f}" for x in point.tolist()) + ")"


if __name__ == "__main__":
    main()
