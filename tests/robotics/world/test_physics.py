"""Physics: the same protocol in every installed engine, repeatable and without surprises."""

import sys

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.demonstrations import stream
from flashgatr.experiments.robotics.demonstrations.stream import Recipe, demonstration, failures
from flashgatr.experiments.robotics.world import kinematics, physics, rewards, rollout, scenes
from flashgatr.experiments.robotics.world.kinematics import HOME
from flashgatr.experiments.robotics.world.rotations import from_quaternion

ENGINES = [
    pytest.param(
        name, marks=pytest.mark.skipif(not physics.installed(name), reason=f"{name} is missing")
    )
    for name in physics.ENGINES
]
engines = pytest.mark.parametrize("engine", ENGINES)
NONE = np.zeros(4)


@pytest.fixture
def scene():
    return scenes.scenes("test", 1)[0]


def moved(a, b):
    return np.abs(layouts.split(a)[1].position - layouts.split(b)[1].position).max()


@engines
def test_the_arm_goes_where_it_is_told(engine, scene):
    world = physics.make(engine)
    world.reset(scene)
    assert np.abs(world.state() - scene).max() < 1e-9
    for share in np.linspace(0, 1, 20):
        target = np.array(HOME) + share * 0.4
        world.step(target, NONE)
    assert np.abs(world.state()[:7] - target).max() < 0.01
    assert moved(world.state(), scene) < 0.003
    world.close()


@engines
def test_a_held_block_follows_the_endeffector_and_falls_when_released(engine, scene):
    world = physics.make(engine)
    position, _ = kinematics.forward(scene[:7])
    scene[7:10] = position - [0, 0, 0.04]
    scene[10:14] = (0, 0, np.sin(0.2), np.cos(0.2))
    scene[14] = 1  # held from the beginning
    world.reset(scene)
    target = scene[:7].copy()
    for _ in range(12):
        target[0] += 0.05
        world.step(target, np.array([1.0, 0, 0, 0]))
    state = world.state()
    tip, _ = kinematics.forward(state[:7])
    before, after = (
        kinematics.forward(x[:7])[1].T @ from_quaternion(x[10:14]) for x in (scene, state)
    )
    assert np.abs(after - before).max() < 0.05  # turned as it was taken
    assert state[14] == 1
    assert np.abs(state[7:10] - tip + [0, 0, 0.04]).max() < 0.01
    for _ in range(60):
        world.step(target, NONE)
    assert world.state()[14] == 0
    assert world.state()[9] == pytest.approx(0.03, abs=0.003)
    world.close()


@engines
def test_demonstrations_build_their_tower(engine, monkeypatch):
    made = [demonstration(Recipe(diversity=d), k) for k, d in enumerate((0.0, 1.0))]
    assert failures(made, engine) == []
    made[0].states[:, 14::8] = 0  # nothing is ever held
    assert failures(made, engine) == [0]
    monkeypatch.setattr(stream, "REPLAYED", 1)
    assert failures(made[::-1], engine) == [1]


@engines
def test_replays_are_repeated_exactly_also_in_other_company(engine):
    made = [demonstration(Recipe(diversity=1), k).states[:60].astype(float) for k in range(2)]
    plans = np.stack(made)
    q, attach = rollout.plan_of(plans[:, 1:])
    one, two = (rollout.replay(plans[:, 0], q, attach, engine=engine) for _ in range(2))
    assert (one.states == two.states).all()
    alone = rollout.replay(plans[1:, 0], q[1:], attach[1:], engine=engine)
    assert (alone.states[0] == one.states[1]).all()
    assert (alone.settled[0] == one.settled[1]).all()


@pytest.mark.skipif(not physics.installed("mujoco"), reason="mujoco is missing")
def test_workers_give_the_same_as_one_process():
    plans = np.stack([demonstration(Recipe(), k).states[:20] for k in range(2)]).astype(float)
    q, attach = rollout.plan_of(plans[:, 1:])
    one, two = (rollout.replay(plans[:, 0], q, attach, workers=n, settle=2) for n in (1, 2))
    assert (one.states == two.states).all()


@engines
def test_a_tower_off_balance_falls_while_it_settles(engine, scene):
    x = scene.copy()
    for k, shift in enumerate((0.0, 0.08, 0.16, 0.24)):  # each centre above the block below
        x[7 + 8 * k : 10 + 8 * k] = (0.5 + shift, 0, 0.03 + 0.06 * k)
    assert rewards.strict(x) == 100
    hold = np.tile(HOME, (1, 3, 1))
    done = rollout.replay(x[None], hold, np.zeros((1, 3, 4)), engine=engine, settle=48)
    assert rewards.strict(done.settled[0]) < 100


@engines
def test_wild_actions_leave_finite_states(engine, scene):
    chance = np.random.default_rng(0)
    world = physics.make(engine)
    world.reset(scene)
    for _ in range(30):
        world.step(chance.uniform(-1e6, 1e6, 7), chance.integers(0, 2, 4))
        assert np.isfinite(world.state()).all()
    world.close()


@engines
def test_bad_input_is_refused_with_a_sentence(engine, scene):
    world = physics.make(engine)
    world.reset(scene)
    with pytest.raises(ValueError, match="an action has entries that are not finite"):
        world.step(np.full(7, np.nan), NONE)
    with pytest.raises(ValueError, match=r"expected \(7,\) and \(4,\)"):
        world.step(np.zeros(11), NONE)
    with pytest.raises(ValueError, match="the state has entries that are not finite"):
        world.reset(scene * np.nan)
    with pytest.raises(ValueError, match="a block's quaternion is zero"):
        world.reset(scene * 0)
    world.close()


def test_scenes_have_their_blocks_on_the_table(scene):
    assert (physics.require_scene(scene) == scene).all()
    outside, below = scene.copy(), scene.copy()
    outside[7:9], below[17] = (1.5, 0), -0.2
    with pytest.raises(ValueError, match=r"block 0 is at \[1.5, 0.0\], outside the table"):
        physics.require_scene(outside)
    with pytest.raises(ValueError, match="block 1 is below the table"):
        physics.require_scene(below)


@engines
def test_a_block_off_the_table_falls(engine, scene):
    scene[7:10] = (1.5, 0, 0.03)
    hold = np.tile(HOME, (1, 5, 1))
    done = rollout.replay(scene[None], hold, np.zeros((1, 5, 4)), engine=engine)
    assert np.isfinite(done.states).all()
    assert done.states[0, -1, 9] < 0
    assert done.settled[0, 9] < done.states[0, -1, 9]


def test_replays_name_the_episode_that_is_wrong(monkeypatch, scene):
    monkeypatch.setattr(physics, "installed", lambda engine: True)
    start = np.stack([scene, scene])
    q, attach = np.zeros((2, 3, 7)), np.zeros((2, 3, 4))
    q[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match="episode 1 cannot be replayed: its plan has entries"):
        rollout.replay(start, q, attach)
    with pytest.raises(ValueError, match=r"expected \(E, 39\), \(E, T, 7\) and \(E, T, 4\)"):
        rollout.replay(start, q[:1], attach)


def test_a_missing_engine_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    monkeypatch.setattr(physics.sys, "version_info", (3, 11, 9))
    with pytest.raises(ImportError, match=r'mujoco: pip install "flashgatr\[robotics\]"'):
        physics.make("mujoco")
    with pytest.raises(ImportError, match=r'pybullet: pip install "flashgatr\[bullet\]"'):
        physics.require("bullet")
    with pytest.raises(ValueError, match="unknown engine 'havok'; expected one of mujoco, bullet"):
        physics.make("havok")


def test_an_engine_without_wheels_for_this_python_says_so(monkeypatch):
    """`pip install` would compile PyBullet for minutes; MuJoCo has wheels for every Python."""
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    monkeypatch.setattr(physics.sys, "version_info", (3, 12, 1))
    with pytest.raises(ImportError, match=r"end at Python 3.11; this is Python 3.12, where `pip"):
        physics.require("bullet")
    with pytest.raises(ImportError, match=r'mujoco: pip install "flashgatr\[robotics\]"$'):
        physics.require("mujoco")


@pytest.mark.skipif(not physics.installed("bullet"), reason="bullet is missing")
def test_bullet_needs_a_scene_and_an_open_world(scene):
    world = physics.make("bullet")
    acts = (
        world.state, lambda: world.step(np.zeros(7), NONE), lambda: world.place(np.zeros(7), NONE),
        lambda: world.settle(1),
    )  # fmt: skip
    for act in acts:
        with pytest.raises(RuntimeError, match="no scene yet; call reset with a state first"):
            act()
    world.reset(scene)
    world.close()
    for act in (*acts, lambda: world.reset(scene)):
        with pytest.raises(RuntimeError, match="this world is closed; make another one"):
            act()


def test_worlds_are_shared_among_processes(monkeypatch):
    monkeypatch.setattr(physics.os, "cpu_count", lambda: 4)
    for (count, workers), sizes in {
        (5, 2): [3, 2], (2, 9): [1, 1], (8, 0): [2] * 4, (0, 3): [], (3, 1): [3]
    }.items():  # fmt: skip
        found = physics.shares(count, workers)
        assert [len(part) for part in found] == sizes
        assert np.concatenate([*found, []]).tolist() == list(range(count))
    for wrong in (-2, 1.5, True):
        with pytest.raises(ValueError, match="workers must be an integer of at least 0, got"):
            physics.shares(3, wrong)


def test_planning_imports_no_torch_and_no_engine():
    import subprocess

    code = (
        "import sys\nfrom flashgatr.experiments.robotics.demonstrations import stream\n"
        "stream.demonstration(stream.Recipe(), 0)\n"
        "print([x for x in ('torch', 'mujoco', 'pybullet', 'scipy') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
