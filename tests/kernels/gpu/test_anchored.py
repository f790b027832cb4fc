"""Anchored networks on a GPU: the kernels that compute queries alone, and the choice of anchors."""

import copy

import pytest
import torch

from flashgatr import AnchoredGATr, GATr, cell_weights, choose_anchors
from flashgatr.anchors import METHODS
from flashgatr.kernels.paths import plain_kernels
from tests.anchored.networks import VARIANTS, gap, make_data, make_net

from . import networks
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


def test_a_sample_without_anchors_is_named_also_if_only_one_side_has_a_mask():
    """Which samples of plain sets are empty is known on the host, that of a mask on the GPU."""
    net, mask = make_net().cuda(), torch.tensor([[True] * 5, [False] * 5]).cuda()
    mv, s = (x.cuda() for x in make_data(2, 5))
    with pytest.raises(ValueError, match="sample 1 has items, but no anchors"):
        net.decode(net.encode(mv, s, mask=mask), mv, s)
    with pytest.raises(ValueError, match="sample 0 has items, but no anchors"):
        net(mv, s, mask=mask, anchors=torch.zeros(2, 0, dtype=torch.int64, device="cuda"))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("multi_query", [False, True])
def test_one_call_rounds_at_most_twice_as_much_as_the_modules(dtype, multi_query):
    index = torch.stack([torch.randperm(300)[:70] for _ in range(2)]).cuda()
    weights = (torch.rand(2, 70) + 0.5).cuda()

    def make():
        net = networks.make_net(AnchoredGATr, num_blocks=4, multi_query=multi_query)
        return net, networks.make_inputs(net, 2, 300)

    networks.assert_no_worse(make, dtype=dtype, anchors=index, weights=weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_all_items_as_anchors_the_network_is_gatr(dtype):
    """The differences are rounding, in which the two calls may differ: at most its usual size."""
    net = networks.make_net(AnchoredGATr, num_blocks=4).eval()
    given = networks.make_inputs(net, 300, grows=False)
    exact = copy.deepcopy(net).double()
    wide = [x.double() for x in given]
    with torch.no_grad():
        expected = GATr.forward(exact, *wide)
        same = exact(*wide, anchors=torch.arange(300, device="cuda"))
        assert gap(same, expected) < 1e-12
        with networks.cast(dtype):
            usual = gap([x.double() for x in GATr.forward(net, *given)], expected)
            one = net(*given, anchors=torch.arange(300, device="cuda"))
            two = net.decode(net.encode(*given), *given, tile=128)
    for found in (one, two):
        assert gap([x.double() for x in found], expected) <= 2 * usual


def test_gradients_are_those_of_gatr_with_masked_attention():
    net, index = make_net().cuda(), torch.tensor([3, 8, 0, 5]).cuda()
    mv, s = (x.cuda().requires_grad_() for x in make_data(10))
    bias = torch.full((10, 10), -torch.inf, device="cuda", dtype=torch.float64)
    bias[:, index] = 0
    out = GATr.forward(net, mv, s, attention_mask=bias, frame=net.frame(mv[index]))
    leaves = [mv, s, *net.parameters()]

    def gradients(out):
        return torch.autograd.grad(out, leaves, [torch.cos(x.detach()) for x in out])

    expected, found = gradients(out), gradients(net(mv, s, anchors=index))
    assert gap(found, expected) < 1e-10


def test_single_queries_have_the_same_bits_as_in_full_tiles_of_many():
    """With many anchors, a kernel could divide the keys by the number of queries."""
    net = networks.make_net(AnchoredGATr, num_blocks=2, reinsert_mv_channels=())
    anchors, queries = (networks.make_data(n) for n in (16384, 2 * 65536 + 3))
    weights = torch.rand(16384, device="cuda") + 0.5
    with torch.no_grad(), networks.cast(torch.bfloat16):
        state = net.encode(*anchors, weights=weights)
        expected = net.decode(state, *queries)
        for part in (slice(0, 1), slice(65535, 65540), slice(70_000, None)):
            found = net.decode(state, *(x[part] for x in queries))
            assert all(torch.equal(x, y[part]) for x, y in zip(found, expected, strict=True))


def test_memory_beside_input_and_output_does_not_grow_with_the_queries():
    net = networks.make_net(AnchoredGATr, num_blocks=2)
    peaks = []
    with torch.no_grad(), networks.cast(torch.bfloat16):
        state = net.encode(*networks.make_data(512))
        for tiles in (2, 2, 8):  # the first one makes what is kept
            given = networks.make_data(tiles * 16384)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = net.decode(state, *given, tile=16384)
            outputs = sum(x.nbytes for x in found)
            peaks.append(torch.cuda.max_memory_allocated() - before - outputs)
            del given, found
    assert peaks[2] <= peaks[1] + 2**20


def test_a_captured_call_has_the_gradients_of_an_eager_one():
    net = networks.make_net(AnchoredGATr, num_blocks=2)
    mv, s = networks.make_data(2, 256)
    index = torch.stack([torch.randperm(256)[:64] for _ in range(2)]).cuda()

    def step():
        net.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out, out_s = net(mv, s, anchors=index, weights=torch.full((2, 64), 4.0, device="cuda"))
            loss = out.square().mean() + out_s.square().mean()
        loss.backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    captured = [p.grad for p in net.parameters() if p.grad is not None]
    index.copy_(torch.stack([torch.randperm(256)[:64] for _ in range(2)]))
    graph.replay()
    found = [x.clone() for x in captured]
    step()
    expected = [p.grad for p in net.parameters() if p.grad is not None]
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-4 * float(y.abs().max()) + 1e-8)
