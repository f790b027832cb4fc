"""Adam over one flat tensor gives what torch's Adam gives, and nothing where a step is skipped."""

import pytest
import torch

from flashgatr.train.flat_adam import FlatAdam

OPTIONS = dict(betas=(0.8, 0.95), weight_decay=0.1, eps=1e-7)


def make():
    """Two parameters and their optimiser, whose state exists."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
    optimizer = torch.optim.Adam(parameters, lr=torch.tensor(0.01), fused=True, **OPTIONS)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.found_inf = torch.ones(())
    optimizer.grad_scale = None
    optimizer.step()
    del optimizer.found_inf, optimizer.grad_scale
    return parameters, optimizer


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_it_updates_as_torchs_adam(clip):
    (ours, optimizer), (theirs, reference) = make(), make()
    flat = FlatAdam(optimizer)
    for step in range(5):
        gradients = [torch.randn(p.shape) * 10 ** (step - 2) for p in ours]
        for p, q, g in zip(ours, theirs, gradients, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        reference.step()
        flat.step(clip, torch.zeros(()), torch.ones(()), flat.gradient())
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    parameters, optimizer = make()
    flat = FlatAdam(optimizer)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.full_like(p, bad)
    _, was_bad = flat.step(1.0, torch.zeros(()), torch.ones(()), flat.gradient())
    assert was_bad == 1
    assert all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True))
    assert not flat.first.any()
    assert flat.steps == 0
