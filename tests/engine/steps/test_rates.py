"""Parts of a model may learn at rates of their own, and targets may follow it after every step."""

import signal

import pytest
import torch

from flashgatr.train.answers import TaskError
from flashgatr.train.flat_adam import FlatAdam
from flashgatr.train.order import batch_indices
from flashgatr.train.stepper import make_optimizer, set_learning_rate

from .. import toy
from ..toy import CPU, Follower, Network, Toy, outcome, settings, train

FACTORS = Follower.rate_factors


def run(folder, monkeypatch, task=Follower, **changes):
    monkeypatch.setattr(toy, "Toy", task)
    return train(folder, **dict(clip=0.0, restore_best=False) | changes)


def test_updates_are_those_of_adam_with_these_groups_and_the_target_follows(tmp_path, monkeypatch):
    trainer = run(tmp_path, monkeypatch, decay_every=1000, lr_final=1e-2)
    found, task = trainer.weights(), Follower()
    task.trainer = trainer
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


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    expected = outcome(run(tmp_path / "whole", monkeypatch))
    with pytest.raises(SystemExit):
        run(tmp_path / "parts", monkeypatch, toy=dict(signals={8: signal.SIGTERM}))
    assert outcome(run(tmp_path / "parts", monkeypatch)) == expected


def test_factors_of_one_change_nothing(tmp_path, monkeypatch):
    plain = run(tmp_path / "plain", monkeypatch, Toy)
    ones = type("Ones", (Toy,), {"rate_factors": {"first": 1.0, "last": 1}})
    same = run(tmp_path / "ones", monkeypatch, ones)
    assert len(plain.optimizer.param_groups) == len(same.optimizer.param_groups) == 1
    assert outcome(plain) == outcome(same)


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
