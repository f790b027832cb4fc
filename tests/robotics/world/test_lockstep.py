"""Worlds that advance together: the same states in one process and in several."""

from contextlib import closing

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.world import kinematics, physics, scenes
from flashgatr.experiments.robotics.world.lockstep import Lockstep

ENGINES = [
    pytest.param(
        name, marks=pytest.mark.skipif(not physics.installed(name), reason=f"{name} is missing")
    )
    for name in physics.ENGINES
]
engines = pytest.mark.parametrize("engine", ENGINES)
SCENES = scenes.scenes("test", 3)


def played(engine, start, workers):
    """States of a few frames in which the arms turn and hold their first block."""
    chance = np.random.default_rng(0)
    turns = np.cumsum(chance.uniform(-0.1, 0.1, (4, len(SCENES), 7)), axis=0)[:, : len(start)]
    held = np.zeros((len(start), 4))
    held[:, 0] = 1
    with closing(Lockstep(engine, start, workers=workers)) as worlds:
        states = [worlds.place(start[:, :7] + turn, held) for turn in turns]
        return np.stack([*states, worlds.settle(2)])


@engines
def test_processes_and_company_make_no_difference(engine):
    alone = played(engine, SCENES[:1], 1)
    together, apart = played(engine, SCENES, 1), played(engine, SCENES, 2)
    assert np.array_equal(together, apart)
    assert np.array_equal(together[:, :1], alone)
    assert together.shape == (5, 3, 39)


@engines
def test_an_arm_that_is_placed_is_there_at_once_and_takes_its_block_along(engine):
    state = SCENES[0].copy()
    position, _ = kinematics.forward(state[:7])
    state[7:10] = position - [0, 0, 0.04]
    world = physics.make(engine)
    world.reset(state)
    for _ in range(6):
        q = world.state()[:7] + 0.1
        world.place(q, np.array([1.0, 0, 0, 0]))
        assert np.abs(world.state()[:7] - q).max() < 0.02
    tip, _ = kinematics.forward(world.state()[:7])
    assert np.linalg.norm(world.state()[7:10] - tip) < 0.06
    world.place(np.full(7, 9.0), np.zeros(4))
    assert kinematics.within_limits(world.state()[:7] * 0.99)
    world.close()


@engines
def test_a_falling_block_keeps_its_velocity(engine):
    """`step` takes it away in every frame, as the original evaluation does; `place` does not."""
    state = SCENES[0].copy()
    state[9] = 0.8
    heights = []
    for move in ("step", "place"):
        world = physics.make(engine)
        world.reset(state)
        for _ in range(6):
            getattr(world, move)(state[:7], np.zeros(4))
        heights.append(layouts.split(world.state())[1].position[0, 2])
        world.close()
    assert heights[1] < 0.8 - 9.8 / 2 * (6 / 24) ** 2 + 0.05 < heights[0]


@engines
def test_an_error_in_a_process_is_raised_here(engine):
    with (
        closing(Lockstep(engine, SCENES[:2], workers=2)) as worlds,
        pytest.raises(ValueError, match="an action has entries that are not finite"),
    ):
        worlds.place(np.full((2, 7), np.nan), np.zeros((2, 4)))


def test_no_episodes_are_no_states(monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: True)
    with closing(Lockstep("mujoco", SCENES[:0])) as worlds:
        assert worlds.place(np.zeros((0, 7)), np.zeros((0, 4))).shape == (0, 39)


def test_a_missing_engine_and_a_bad_state_are_sentences(monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    with pytest.raises(ImportError, match="needs the package mujoco"):
        Lockstep("mujoco", SCENES)
    monkeypatch.setattr(physics, "installed", lambda engine: True)
    with pytest.raises(ValueError, match="not finite"):
        Lockstep("mujoco", SCENES * np.nan)
