"""Anchored networks on a GPU: the kernels that compute queries alone, and the choice of anchors."""

import copy

import pytest
import torch

from flashgatr import cell_weights, choose_anchors
from flashgatr.anchors import METHODS
from flashgatr.kernels.paths import plain_kernels
from tests.anchored.networks import VARIANTS, gap, make_data, make_net

from .networks import ON_GPU

pytestmark = ON_GPU


def _results(net, given, dtype):
    """Outputs, and the gradients of queries and parameters."""
    anchors, anchors_s, mv, s, weights = (x.to("cuda", dtype) for x in given)
    mv.requires_grad_()
    state = net.encode(anchors, anchors_s, weights=weights)
    out = net.decode(state, mv, s, tile=128)
    outer = [torch.cos(torch.arange(x.numel()).to(x)).reshape(x.shape) for x in out]
    return [x.double() for x in (*out, *torch.autograd.grad(out, [mv, *net.parameters()], outer))]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_kernels_round_at_most_twice_as_much_as_the_modules(name):
    exact = make_net(**VARIANTS[name]).cuda()
    net = copy.deepcopy(exact).float()
    given = *make_data(60), *make_data(300), torch.rand(60).double() + 0.5
    expected = _results(exact, given, torch.float64)
    assert net.obstacle(given[0].float().cuda()) is None
    fused = gap(_results(net, given, torch.float32), expected)
    with plain_kernels():
        plain = gap(_results(net, given, torch.float32), expected)
    assert 0 < fused <= 2 * plain


@pytest.mark.parametrize("autocast", [False, True])
def test_queries_in_any_order_and_number_have_the_same_bits(autocast):
    net = make_net(hidden_mv_channels=8, hidden_s_channels=16, num_heads=4).float().cuda()
    (mv, s), (query, query_s) = ([x.float().cuda() for x in make_data(n)] for n in (100, 1000))
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        state = net.encode(mv, s)
        expected = net.decode(state, query, query_s, tile=512)
        for part in torch.randperm(1000, device="cuda").split([1, 700, 299]):
            found = net.decode(state, query[part], query_s[part], tile=512)
            assert all(torch.equal(x, y[part]) for x, y in zip(found, expected, strict=True))


def test_the_choice_is_that_of_the_cpu_and_can_be_captured():
    points = torch.randn(2, 500, 3)
    for method in METHODS:
        expected = choose_anchors(points, 40, method=method)
        assert torch.equal(choose_anchors(points.cuda(), 40, method=method).cpu(), expected)
    given = points.cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = choose_anchors(given, 40)
    graph.replay()
    assert torch.equal(found.cpu(), choose_anchors(points, 40))


@pytest.mark.parametrize("method", METHODS)
def test_captured_choices_follow_the_seed_and_are_those_of_the_cpu(method):
    points, mask = torch.randn(2, 500, 3), torch.arange(500) < torch.tensor([[500], [420]])
    given, valid = points.cuda(), mask.cuda()
    seed = torch.tensor([7], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = choose_anchors(given, 40, method=method, mask=valid, seed=seed)
        weights = cell_weights(given, found, mask=valid)
    for number in (7, 8):
        seed.fill_(number)
        graph.replay()
        expected = choose_anchors(points, 40, method=method, mask=mask, seed=number)
        assert torch.equal(found.cpu(), expected)
        assert torch.equal(weights.cpu(), cell_weights(points, expected, mask=mask))
