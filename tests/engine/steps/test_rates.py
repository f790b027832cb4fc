"""Parts of a model may learn at rates of their own, and targets may follow it after every step."""

import signal

import pytest
import torch

from flashgatr.train import Trainer
from flashgatr.train.answers import TaskError
from flashgatr.train.distributed import World
from flashgatr.train.flat_adam import FlatAdam
from flashgatr.train.order import batch_indices
from flashgatr.train.stepper import make_optimizer, set_learning_rate

from ..toy import CPU, Network, Toy, outcome, settings, train

FACTORS = {"blocks": 0.25, "last.bias": 3.0}


class Follower(Toy):
    """The toy with two learning rates, and an average of a weight that follows after each step."""

    rate_factors = FACTORS

    def __init__(self, **options):
        super().__init__(**options)
        self.model.register_buffer("target", self.model.last.weight.detach().clone())

    def after_step(self):
        self.model.target.lerp_(self.model.last.weight.detach(), 0.3)


def run(folder, task=Follower, signals=None, **changes):
    task = task(signals=signals)
    config = settings(folder, clip=0.0, restore_best=False, **changes)
    task.trainer = trainer = Trainer(task, config, World(0, 1, CPU))
    trainer.summary = trainer.run()
    return trainer


def test_updates_are_those_of_adam_with_these_groups_and_the_target_follows(tmp_path):
    found = run(tmp_path, decay_every=1000, lr_final=1e-2).weights()
    task = Follower()
    task.trainer = type("Step", (), {"step": 0})
    net = task.model
    few = [p for name, p in net.named_parameters() if name[:6] != "blocks" and name != "last.bias"]
    groups = [(few, 1e-2), (list(net.blocks.parameters()), 2.5e-3), ([net.last.bias], 3e-2)]
    adam = torch.optim.Adam([dict(params=some, lr=rate) for some, rate in groups])
    for k in range(20):
        adam.zero_grad()
        task.loss(net, task.batch(batch_indices(0, k, 8, 64)))[0].backward()
        adam.step()
        task.after_step()
    torch.testing.assert_close(found, net.state_dict(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(found["target"], found["last.weight"])


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    expected = outcome(run(tmp_path / "whole"))
    with pytest.raises(SystemExit):
        run(tmp_path / "parts", signals={8: signal.SIGTERM})
    assert outcome(run(tmp_path / "parts")) == expected


def test_without_factors_there_is_one_group_and_nothing_changes(tmp_path):
    plain, none = train(tmp_path / "a"), run(tmp_path / "b", Toy)
    assert len(plain.optimizer.param_groups) == 1
    factors = run(tmp_path / "c", type("Ones", (Toy,), {"rate_factors": {"first": 1.0}}))
    assert len(factors.optimizer.param_groups) == 1
    assert outcome(none)[0] == outcome(factors)[0]


def test_the_schedule_keeps_the_ratio_of_the_rates(tmp_path):
    made = make_optimizer(Network(0.0), settings(tmp_path).train, CPU, FACTORS)
    set_learning_rate(made, 0.5)
    rates = {group["factor"]: float(group["lr"]) for group in made.param_groups}
    assert rates == {1.0: 0.5, 0.25: 0.125, 3.0: 1.5}


def test_the_flat_adam_updates_groups_as_torchs_adam(tmp_path):
    config = settings(tmp_path, weight_decay=0.1, betas=(0.8, 0.95)).train
    nets, steps = [], []
    for kind in ("flat", "plain"):
        torch.manual_seed(0)
        net = Network(0.0)
        made = make_optimizer(net, config, CPU, FACTORS)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        made.found_inf, made.grad_scale = torch.ones(()), None
        made.step()
        del made.found_inf, made.grad_scale
        nets.append(net)
        steps.append(FlatAdam(made) if kind == "flat" else made)
    flat, plain = steps
    for k in range(4):
        for p, q in zip(*(net.parameters() for net in nets), strict=True):
            p.grad = torch.randn(p.shape) * 10**k
            q.grad = p.grad.clone()
        torch.nn.utils.clip_grad_norm_(nets[1].parameters(), 0.5)
        flat.step(0.5, torch.zeros(()), torch.ones(()), flat.gradient())
        plain.step()
    for p, q in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factors", [{"lost": 1.0}, {"first": 0.0}, {"fir": 2.0}])
def test_factors_that_make_no_sense_are_refused(tmp_path, factors):
    with pytest.raises(TaskError, match=r"rate_factors must map .* first, blocks, dropout, last"):
        make_optimizer(Network(0.0), settings(tmp_path).train, CPU, factors)
