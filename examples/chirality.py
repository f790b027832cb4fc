"""A network that tells left from right by one output and is exactly blind to mirrors otherwise.

A molecule here is a centre with four different groups around it, as in a chiral carbon atom. Two
questions: which of its two mirror forms is it, and how far apart are the groups? The answer to the
first changes its sign in a mirror, the answer to the second does not. With types of channels both
hold exactly, for every molecule and every mirror, before and after training.

    python examples/chirality.py [--steps 400] [--seed 0]
"""

import argparse
import time

import torch
import torch.nn.functional as F

from flashgatr import GATr, embed_point, extract_scalar, parity, versors
from flashgatr.testing import assert_equivariant

GROUPS = 4
CORNERS = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])


def molecules(batch, generator):
    """Positions (batch, 4, 3) of groups near the corners of a tetrahedron, anywhere in space.

    Half of the molecules are mirrored.
    """
    groups = CORNERS + 0.3 * torch.randn(batch, GROUPS, 3, generator=generator)
    motions = versors.sample(batch, kind="E(3)", generator=generator, dtype=torch.float32)
    return moved(motions, groups)


def moved(motion, x):
    """Positions (..., 4, 3) after a motion (..., 16) that may include a mirror."""
    matrix = versors.to_matrix(motion)
    return x @ matrix[..., :3, :3].mT + matrix[..., None, :3, 3]


def form(x):
    """1 or 0 for the two mirror forms: the sign of the volume that the groups span."""
    return (torch.linalg.det(x[:, 1:] - x[:, :1]) > 0).to(x.dtype)


def spread(x):
    """The mean distance of two groups."""
    apart = torch.linalg.vector_norm(x[:, :, None] - x[:, None], dim=-1)
    return apart.sum((-2, -1)) / (GROUPS * (GROUPS - 1))


def network():
    """A molecule is one item, and each of its groups a channel: the groups are different."""
    return GATr(
        in_mv_channels=GROUPS,
        out_mv_channels=1,
        out_s_channels=1,
        hidden_mv_channels=8,
        hidden_s_channels=16,
        num_blocks=2,
        num_heads=4,
        initialization="geometric",
        in_mv_parity=parity(*["point"] * GROUPS),
        out_mv_parity=parity("handed_scalar"),
    )


def answers(net, x):
    """How sure the network is of the form (a logit of either sign), and its estimated spread."""
    mv, s = net(embed_point(x)[:, None])
    return extract_scalar(mv[:, 0, 0])[:, 0], s[:, 0, 0]


def train(net, steps, generator):
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        x = molecules(128, generator)
        logit, distance = answers(net, x)
        guessed = F.binary_cross_entropy_with_logits(logit, form(x))
        loss = guessed + (distance - spread(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step in (1, steps) or step % (steps // 8 or 1) == 0:
            print(f"  step {step:4d}   loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser(description="Tell mirror forms apart by an odd output.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    net = network()
    print(f"1. Network\n  {net}\n\n2. Training")
    train(net, options.steps, generator)

    net.eval()
    with torch.no_grad():
        x = molecules(1000, generator)
        logit, distance = answers(net, x)
        print("\n3. New molecules")
        right = ((logit > 0) == (form(x) > 0)).float().mean()
        print(f"  mirror form told correctly: {right:.1%} (guessing: 50 %)")
        guess = (spread(x) - spread(x).mean()).square().mean()
        error = (distance - spread(x)).square().mean()
        print(f"  squared error of the distance: {error:.5f} (its variance: {guess:.5f})")

        print("\n4. Mirrors")
        swapped = x * torch.tensor([-1.0, 1, 1])
        other, same = answers(net, swapped)
        assert torch.equal(other, -logit)
        assert torch.equal(same, distance)
        print("  x → -x: every logit changes its sign, no distance changes, bit for bit")
        mirror = versors.sample(1000, kind="reflection", generator=generator)
        other, same = answers(net.double(), moved(mirror, x.double()))
        logit, distance = answers(net, x.double())
        print(f"  any mirror, float64: {(other + logit).abs().max():.1e}", end=", ")
        print(f"{(same - distance).abs().max():.1e}")
        flat = x.double() * torch.tensor([1.0, 1, 0])
        largest = answers(net, flat)[0].abs().max()
        print(f"  flat molecules have no form: largest logit {largest:.1e}")
    types = net.config.in_mv_parity, net.config.out_mv_parity
    worst = assert_equivariant(net, embed_point(x[0])[None], parity=types)
    print(f"  largest error over random motions and mirrors: {worst:.1e}")
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
