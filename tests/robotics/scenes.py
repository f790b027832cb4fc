"""Invented demonstrations for tests: an effector without arm takes blocks and puts them down."""

from typing import NamedTuple

import torch


class Demos(NamedTuple):
    frames: torch.Tensor  # (F, 49), metres, flags 0 and 1
    offsets: torch.Tensor  # (D + 1)


def demonstrations(count, seed=0, leg=8):
    """`count` demonstrations of 6 legs of `leg` frames: to a block, to another one, twice; home."""
    generator = torch.Generator().manual_seed(seed)
    made = [_demonstration(generator, leg) for _ in range(count)]
    lengths = torch.tensor([0, *(len(x) for x in made)])
    return Demos(torch.cat(made), lengths.cumsum(0))


def _demonstration(generator, leg):
    angles = torch.rand(4, generator=generator) * 1.2 + torch.arange(4) * torch.pi / 2
    places = 0.6 * torch.stack([angles.cos(), angles.sin(), torch.full((4,), 0.05)], -1)
    yaw = torch.rand(4, generator=generator) * 6.28
    order = torch.randperm(4, generator=generator).tolist()
    home = torch.tensor([0.0, 0.0, 1.0])
    hand, blocks, frames = home, places.clone(), []
    ease = torch.linspace(0, 1, leg + 1)[1:]
    ease = ease * ease * (3 - 2 * ease)
    height = torch.tensor([0.0, 0.0, 0.06])
    target = order[0]
    for moved in order[1:3]:
        for goal, held in ((blocks[moved] + height, None), (blocks[target] + 2 * height, moved)):
            start, goal = hand, goal.clone()
            for u in ease:
                hand = start + u * (goal - start)
                if held is not None:
                    blocks[held] = hand - height
                frames.append(_frame(hand, blocks, yaw, held))
        target = moved
    start = hand
    frames += [_frame(start + u * (home - start), blocks, yaw, None) for u in ease]
    return torch.stack(frames)


def _frame(hand, blocks, yaw, held):
    c, s, o = yaw.cos(), yaw.sin(), torch.zeros(4)
    first, second = torch.stack([c, s, o], -1), torch.stack([-s, c, o], -1)
    own = torch.cat([hand, torch.tensor([1.0, 0, 0, 0, -1, 0])])  # the hand points down
    objects = torch.cat([blocks, first, second], -1)
    flags = torch.zeros(4)
    if held is not None:
        flags[held] = 1
    return torch.cat([own, objects.flatten(), flags])
