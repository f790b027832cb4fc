"""The environment keeps gymnasium's contract in all its forms."""

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.demonstrations.stream import Recipe, demonstration
from flashgatr.experiments.robotics.world import physics, rewards

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

from flashgatr.experiments.robotics.world.env import KukaStack  # noqa: E402

NAME = "flashgatr.experiments.robotics.world.env:KukaStack-v0"
ENGINES = [
    pytest.param(
        name, marks=pytest.mark.skipif(not physics.installed(name), reason=f"{name} is missing")
    )
    for name in physics.ENGINES
]
needs_mujoco = pytest.mark.skipif(not physics.installed("mujoco"), reason="mujoco is missing")


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*infinity:UserWarning")
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized:UserWarning")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(observation="geometric", action="delta"),
        dict(mode="conditional", reward="strict"),
        dict(mode="rearrangement", observation="geometric"),
    ],
    ids=str,
)
def test_gymnasium_s_checker_passes(engine, options):
    env = gymnasium.make(NAME, engine=engine, **options)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@needs_mujoco
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*infinity:UserWarning")
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized:UserWarning")
def test_gymnasium_s_checker_passes_with_pictures():
    env = gymnasium.make(NAME, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


@pytest.fixture
def env():
    made = []

    def make(**options):
        made.append(KukaStack(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@needs_mujoco
def test_a_demonstration_earns_the_full_reward(env):
    states = demonstration(Recipe(diversity=0.5), 0).states.astype(float)
    for reward in ("original", "strict"):
        one = env(reward=reward)
        seen, info = one.reset(options={"state": states[0]})
        assert np.allclose(seen, states[0], atol=1e-6)
        earned = 0.0
        for state in states[1:]:
            q, blocks = layouts.split(state)
            seen, gain, terminated, _, info = one.step(np.concatenate([q, blocks.held]))
            earned += gain
            assert not terminated
        assert earned == pytest.approx(100)
        assert info["score"] == pytest.approx(100)
        assert rewards.strict(info["state"]) == 100
        assert np.abs(seen - info["state"]).max() < 1e-5


@needs_mujoco
def test_deltas_add_to_where_the_arm_is(env):
    one = env(action="delta")
    _, info = one.reset(seed=0)
    before = info["state"][:7]
    for flag, held in ((0.4, 0), (0.4, 1), (0.4, 1), (-1.0, 0)):
        action = np.zeros(11)
        action[0], action[7] = 0.02, flag
        _, _, _, _, info = one.step(action)
        assert info["state"][14] == held  # flags add up and count above a half
    assert info["state"][0] - before[0] == pytest.approx(0.08, abs=0.01)


@needs_mujoco
def test_observations_name_the_block_to_stack_on(env):
    one = env(mode="conditional")
    seen, info = one.reset(seed=1)
    assert seen.shape == (43,)
    assert seen[39:].tolist() == [float(k == info["goal"][0][1]) for k in range(4)]
    assert env(mode="rearrangement", observation="geometric").reset(seed=1)[0].shape == (53,)
    assert env(observation="geometric").reset(seed=1)[0].shape == (49,)


@needs_mujoco
def test_episodes_end_after_three_phases_and_hold_counts_at_their_ends(env):
    one = env()
    state = one.reset(seed=0)[1]["state"].copy()
    x, y = state[7:9]
    state[15:18], state[22] = (x, y, 0.4), 1  # block 1 hangs above block 0
    one.reset(options={"state": state})
    action = np.concatenate([state[:7], [0, 1, 0, 0]])
    gains, ends = zip(*((s[1], s[3]) for s in (one.step(action) for _ in range(384))), strict=True)
    assert np.flatnonzero(gains).tolist() == [127]
    assert np.flatnonzero(ends).tolist() == [383]


@needs_mujoco
def test_it_draws_itself(env):
    one = env(render_mode="rgb_array")
    one.reset(seed=0)
    assert one.render().shape == (360, 480, 3)
    assert env().render() is None


@needs_mujoco
def test_wrong_requests_are_refused_with_a_sentence(env):
    for options, text in (
        (dict(engine="havok"), "unknown engine 'havok'"),
        (dict(observation="pixels"), "unknown observation 'pixels'; expected one of joint, geo"),
        (dict(mode="jenga"), "unknown mode 'jenga'"),
        (dict(render_mode="human"), "unknown render_mode 'human'"),
    ):
        with pytest.raises(ValueError, match=text):
            env(**options)
    one = env()
    state = one.reset(seed=0)[1]["state"]
    with pytest.raises(ValueError, match="an action has 11 finite numbers"):
        one.step(np.full(11, np.nan))
    with pytest.raises(ValueError, match="an action has 11 finite numbers"):
        one.step(np.zeros(7))
    state[7] = 3
    with pytest.raises(ValueError, match="outside the table"):
        one.reset(options={"state": state})
    with pytest.raises(ValueError, match=r"unknown options \['scene'\]; expected 'state'"):
        one.reset(options={"scene": 1})
    with pytest.raises(ValueError, match=r"options must be a dictionary .*, got \['state'\]"):
        one.reset(options=["state"])
    with pytest.raises(ValueError, match="a state is an array of numbers, got 'above'"):
        one.reset(options={"state": "above"})
    with pytest.raises(ValueError, match="an action is an array of numbers, got 'up'"):
        one.step("up")
    for place, value, text in (
        (9, 1e39, r"block 0 is at a height of 1e\+39 m; place it below 2.0 m"),
        (9, -0.1, "block 0 is below the table"),
        (1, 2.3, r"joint 1 is at 2.3 rad, beyond its limit of 2.09\d*; choose"),
        (13, 1e300, "a block's quaternion is too large; expected a rotation"),
    ):
        wrong = one.reset(seed=0)[1]["state"]
        wrong[place] = value
        with pytest.raises(ValueError, match=text):
            one.reset(options={"state": wrong})


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_need_a_scene_and_an_open_environment(engine):
    one = KukaStack(engine=engine, render_mode="rgb_array")
    for act in (lambda: one.step(np.zeros(11)), one.render):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"no scene yet; call reset\(\)"):
            act()
    one.reset(seed=0)
    one.close()
    for act in (one.reset, lambda: one.step(np.zeros(11)), one.render):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed; make another"):
            act()
    one.close()
