"""CQL and BCQ: their losses are those of d3rlpy, and no part's loss reaches another part."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flashgatr.experiments.robotics.offline_rl.bcq import BatchConstrainedQLearning, BCQNoise
from flashgatr.experiments.robotics.offline_rl.cql import ConservativeQLearning, CQLNoise
from flashgatr.experiments.robotics.offline_rl.learners import LEARNERS
from flashgatr.experiments.robotics.offline_rl.networks import GaussianPolicy, Perceptrons
from flashgatr.experiments.robotics.offline_rl.transitions import (
    ACTION,
    OBSERVATION,
    TransitionBatch,
)

GOLDEN = load_file(Path(__file__).parents[2] / "goldens" / "offline_rl.safetensors")
"""Weights, a batch, noise, and what d3rlpy 2.8.1 computes from them (its decoder with a tanh)."""
OWNERS = {
    "critic": "critics",
    "conservative": "critics",
    "actor": "actor",
    "temperature": "log_temperature",
    "alpha": "log_alpha",
    "vae": ("encoder", "decoder"),
}
"""Which part each loss trains."""


def golden(beginning):
    """The recorded tensors whose names begin so."""
    return {k.removeprefix(beginning): x for k, x in GOLDEN.items() if k.startswith(beginning)}


def batch(size=4, device="cpu"):
    torch.manual_seed(5)
    observations = [torch.randn(size, OBSERVATION, device=device) for _ in range(2)]
    action = torch.randn(size, ACTION, device=device).tanh()
    reward = (torch.rand(size, device=device) > 0.5).float()
    return TransitionBatch(observations[0], action, reward, observations[1])


def small(name, **options):
    torch.manual_seed(1)
    few = dict(candidates=6) if name == "bcq" else {}
    return LEARNERS[name](hidden=8, samples=3, **few, **options)


@pytest.mark.parametrize("soft", [False, True])
def test_cql_has_the_losses_of_d3rlpy(soft):
    name = "cql_soft" if soft else "cql"
    learner = ConservativeQLearning(hidden=6, samples=3, soft_backup=soft)
    learner.load_state_dict(golden(f"{name}.weights."))
    noise, given = CQLNoise(**golden(f"{name}.noise.")), TransitionBatch(**golden("batch."))
    found = learner.losses(given, noise)
    torch.testing.assert_close(found, golden(f"{name}.losses."), rtol=1e-5, atol=1e-5)
    future = learner.future(given, noise.following)
    torch.testing.assert_close(future, GOLDEN[f"{name}.future"], rtol=1e-5, atol=1e-5)


def test_bcq_has_the_losses_and_actions_of_d3rlpy():
    learner = BatchConstrainedQLearning(hidden=6, samples=3, candidates=3)
    learner.load_state_dict(golden("bcq.weights."))
    noise, given = BCQNoise(**golden("bcq.noise.")), TransitionBatch(**golden("batch."))
    torch.testing.assert_close(learner.losses(given, noise), golden("bcq.losses."))
    torch.testing.assert_close(
        learner.future(given.following, noise.following), GOLDEN["bcq.future"]
    )
    torch.testing.assert_close(
        learner.act(given.observation, GOLDEN["bcq.act_noise"]), GOLDEN["bcq.act"]
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [("cql", {}), ("cql", dict(threshold=0, soft_backup=True)), ("bcq", {})],
    ids=str,
)
def test_no_loss_has_a_gradient_for_another_part(name, options):
    learner = small(name, **options)
    parameters = dict(learner.named_parameters())
    losses = learner(batch())
    reached = set()
    for part, loss in losses.items():
        learner.zero_grad()
        loss.backward(retain_graph=True)
        own = {key for key in parameters if key.startswith(OWNERS[part])}
        assert {key for key, p in parameters.items() if p.grad is not None} == own
        reached |= {key for key in own if parameters[key].grad.any()}
    trained = {key for key, p in parameters.items() if p.requires_grad}
    assert reached == trained
    assert {key for key in parameters if key.startswith("target")} == parameters.keys() - trained


@pytest.mark.parametrize("name", LEARNERS)
def test_targets_begin_as_their_networks_and_follow_slowly(name):
    learner = small(name, tau=0.1)
    pairs = learner.targets()
    assert len(pairs) == sum(key.startswith("target") for key, _ in learner.named_children())
    for target, network in pairs:
        for q, p in zip(target.parameters(), network.parameters(), strict=True):
            assert torch.equal(p, q)
            p.data += 1.0
    learner.follow()
    for target, network in pairs:
        for q, p in zip(target.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(p - q, torch.full_like(p, 0.9))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_step_never_looks_at_a_value(name):
    """On the device "meta" there are none: `if` and `item` raise, as in a captured graph."""
    learner = small(name).to("meta")
    torch.stack(list(learner(batch(device="meta")).values())).sum().backward()
    learner.follow()


@pytest.mark.parametrize("name", LEARNERS)
def test_arithmetic_has_32_bits_also_under_autocast(name):
    learner, given = small(name), batch()
    torch.manual_seed(3)
    expected = learner(given)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = learner(given)
    assert all(torch.equal(x, found[key]) for key, x in expected.items())


def test_frozen_networks_pass_gradients_on_without_taking_them():
    net, x = Perceptrons((3, 5, 2), count=2), torch.randn(4, 3, requires_grad=True)
    net(x, frozen=True).sum().backward()
    frozen = x.grad.clone()
    assert all(p.grad is None for p in net.parameters())
    x.grad = None
    net(x).sum().backward()
    assert torch.equal(x.grad, frozen)
    assert all(p.grad is not None for p in net.parameters())


def test_perceptrons_side_by_side_are_those_alone():
    net, x = Perceptrons((3, 5, 2), count=2), torch.randn(4, 6, 3)
    for k, found in enumerate(net(x)):
        y = x
        for weight, bias in zip(net.weights, net.biases, strict=True):
            y = (y if weight is net.weights[0] else y.relu()) @ weight[k] + bias[k]
        torch.testing.assert_close(found, y)


def test_the_density_of_a_policy_integrates_to_one():
    torch.manual_seed(0)
    policy = GaussianPolicy(2, 1, (4,)).double()
    seen = torch.randn(1, 2, dtype=torch.float64)
    mean, log_std = policy(seen)
    action = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1]
    noise = (action.atanh() - mean[0]) / log_std.exp()[0]
    drawn = policy.draw(seen, noise[None, :, None])
    torch.testing.assert_close(drawn.action[0, :, 0], action)
    assert drawn.log_probability.exp().sum().item() * 1e-4 == pytest.approx(1, abs=1e-3)


def test_bcq_takes_the_candidate_that_its_first_critic_likes_best():
    learner, seen = small("bcq"), torch.randn(5, OBSERVATION)
    noise = torch.randn(5, *learner.noise_shape)
    actions = learner.changed(seen, learner.suggested(seen, noise))
    values = learner.values(seen, actions)[0]
    best = learner.values(seen, learner.act(seen, noise)[:, None])[0, :, 0]
    torch.testing.assert_close(best, values.amax(-1))
    assert (best > values.mean(-1)).all()
    far = learner.suggested(seen, 1e6 * noise)
    torch.testing.assert_close(far, learner.suggested(seen, noise.sign()))


@pytest.mark.parametrize(("given", "used"), [(-10.0, -4.0), (-3.5, -3.5), (2.0, 2.0)])
def test_the_code_of_bcq_has_a_standard_deviation_of_at_least_exp_minus_four(given, used):
    learner, data = small("bcq", divergence=3.0), batch()
    zero = torch.zeros(len(data.reward), 2 * ACTION)
    learner.encoder.forward = lambda pairs: [torch.cat([zero, zero + given], dim=-1)]
    decoded = learner.decoded(torch.cat([data.observation, zero], dim=-1))
    expected = (decoded - data.action).square().mean()
    expected = expected + 3 * (0.5 * (math.exp(2 * used) - 1) - used)
    torch.testing.assert_close(learner.vae_loss(data, zero), expected)


def test_the_weight_of_the_conservative_term_has_a_limit():
    learner, data = small("cql"), batch()
    drawn, found = learner.draw(data), []
    for logarithm in (20.0, 15.0, math.log(1e6), math.log(1e5)):
        learner.log_alpha.data.fill_(logarithm)
        found.append(learner.losses(data, drawn)["conservative"].item())
    assert found[0] == found[1] == pytest.approx(found[2]) == pytest.approx(10 * found[3])


def test_bcq_changes_suggestions_by_its_flexibility_at_most():
    learner, seen = small("bcq", flexibility=0.2), torch.randn(5, OBSERVATION)
    idea = learner.suggested(seen, torch.randn(5, 6, 2 * ACTION))
    for p in learner.actor.parameters():
        p.data *= 100
    change = (learner.changed(seen, idea) - idea).abs()
    assert 0.19 < change.max() <= 0.2 + 1e-6


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("cql", dict(tau=2), "tau must be a number from 0 to 1, got 2"),
        ("cql", dict(weight=-1.0), "weight must be a number of at least 0, got -1.0"),
        ("cql", dict(soft_backup=1), "soft_backup must be True or False, got 1"),
        ("bcq", dict(pessimism="high"), "pessimism must be a number from 0 to 1, got 'high'"),
        ("bcq", dict(layers=0), "layers must be an integer of at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, complaint):
    with pytest.raises((ValueError, TypeError), match=complaint):
        LEARNERS[name](**options)
