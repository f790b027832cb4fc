"""Compilers and exporters see one graph, and it does not depend on the number of items."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from flashgatr import AnchoredGATr, AxialGATr, GATr, constants, embed_point, extract_point

from ..typed import networks as typed

OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=1, hidden_mv_channels=2,
    hidden_s_channels=4, num_blocks=1, num_heads=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _data(*batch, dtype=torch.float32):
    return torch.randn(*batch, 2, 16, dtype=dtype), torch.randn(*batch, 1, dtype=dtype)


def _assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(rotary=True, multi_query=False)], ids=str)
def test_one_graph_serves_all_set_sizes(options):
    net = GATr(**OPTIONS, **options)
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    for items in range(3, 23):
        mv, s = _data(2, items)
        mask = torch.rand(2, items) < 0.8
        out = compiled(mv, s, mask=mask)
        _assert_same(out, net(mv, s, mask=mask))
    assert backend.frame_count <= 3  # one compilation, at most two more


def _recomputing(checkpoint):
    return GATr(**OPTIONS, reinsert_mv_channels=(0,), checkpoint=checkpoint), _data(2, 5)


def _typed(name):
    return typed.network(name, torch.float32), typed.scene(name, torch.float32)


@pytest.mark.parametrize(
    ("make", "kind"),
    [*((_recomputing, part) for part in (True, "attention", "mlp")),
     *((_typed, name) for name in ("reinserted_heads", "axial"))],
)  # fmt: skip
def test_gradients_of_the_compiled_network_agree(make, kind):
    net, (mv, s) = make(kind)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    gradients = []
    for f in (compiled, net):
        net.zero_grad()
        out, t = f(mv, s)
        (out.square().sum() + t.square().sum()).backward()
        gradients.append([p.grad for p in net.parameters()])
    _assert_same(*gradients)


def test_packed_and_autocast_networks_are_one_graph_too():
    net = GATr(**OPTIONS)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    mv, s = _data(9)
    offsets = torch.tensor([0, 4, 9])
    _assert_same(compiled(mv, s, offsets=offsets, max_items=5), net(mv, s, offsets=offsets))
    mv, s = _data(3, 4)
    axial = AxialGATr(**OPTIONS, rotary=(True, False))
    compiled_axial = torch.compile(axial, fullgraph=True, backend="aot_eager")
    _assert_same(compiled_axial(mv, s), axial(mv, s))
    packed = dict(offsets=torch.tensor([0, 1, 3]), max_items=2)
    _assert_same(compiled_axial(mv, s, **packed), axial(mv, s, **packed))
    with torch.autocast("cpu", torch.bfloat16):
        _assert_same(compiled(mv, s), net(mv, s))


def test_packed_sets_with_anchors_are_one_graph_too():
    net, (mv, s) = AnchoredGATr(**OPTIONS), _data(9)
    given = dict(anchors=torch.tensor([1, 5, 6, 8]), offsets=torch.tensor([0, 4, 9]))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    _assert_same(compiled(mv, s, **given, max_items=5), net(mv, s, **given))


def test_packed_queries_are_one_graph_too():
    net, (mv, s), (query, query_s) = AnchoredGATr(**OPTIONS), _data(9), _data(7)
    offsets, begins = torch.tensor([0, 4, 9]), torch.tensor([0, 1, 7])
    with torch.no_grad():  # dynamo warns of inputs that are no leaves
        state = net.encode(mv, s, offsets=offsets, max_items=5)
    decode = torch.compile(net.decode, fullgraph=True, backend="aot_eager")
    found = decode(state, query, query_s, offsets=begins, max_items=6)
    _assert_same(found, net.decode(state, query, query_s, offsets=begins, tile=7))


@pytest.mark.parametrize("multi_query", [True, False])
def test_one_graph_serves_all_sizes_of_two_item_axes(multi_query):
    options = {**OPTIONS, "num_blocks": 2, "multi_query": multi_query}
    axial = AxialGATr(**options, rotary=(True, False))
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(axial, fullgraph=True, backend=backend)
    for shape in ((3, 4), (5, 6), (40, 3), (2, 50), (6, 7)):
        mv, s = _data(*shape)
        _assert_same(compiled(mv, s), axial(mv, s))
    assert backend.frame_count <= 3


def test_one_graph_serves_all_packed_sets():
    net = GATr(**OPTIONS)
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    for _ in range(12):
        sizes = torch.randint(8, (int(torch.randint(2, 6, ())),)) + 1
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        mv, s = _data(int(offsets[-1]))
        out = compiled(mv, s, offsets=offsets, max_items=int(sizes.max()))
        _assert_same(out, net(mv, s, offsets=offsets))
    assert backend.frame_count <= 3


def test_compiling_packed_sets_asks_for_max_items():
    compiled = torch.compile(GATr(**OPTIONS), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="pass max_items=… when compiling packed sets"):
        compiled(*_data(9), offsets=torch.tensor([0, 4, 9]))


def test_torch_func_at_the_first_call_does_not_spoil_constants():
    x = torch.randn(3)
    constants._cache.clear()
    for _ in range(2):
        gradient = torch.func.grad(lambda x: extract_point(embed_point(x)).sum())(x)
        _assert_same(gradient, torch.ones(3))
    assert not any(constants.is_wrapped(x) for x in constants._cache.values())
    x.requires_grad_()
    extract_point(embed_point(x)).sum().backward()
    _assert_same(x.grad, torch.ones(3))


@pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr", "ignore:Node lifted_tensor"
)  # torch 2.6
def test_the_exported_network_takes_any_number_of_items():
    net = GATr(**OPTIONS).eval()
    items, batch = torch.export.Dim("items", min=2, max=4096), torch.export.Dim("batch", max=64)
    shapes = dict(mv={0: batch, 1: items}, s={0: batch, 1: items})
    exported = torch.export.export(net, _data(2, 5), dynamic_shapes=shapes).module()
    for sizes in ((3, 4), (2, 9)):
        mv, s = _data(*sizes)
        _assert_same(exported(mv, s), net(mv, s))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # the compiler's own
def test_inductor_agrees_with_eager():
    net = GATr(**OPTIONS)
    compiled = torch.compile(net, fullgraph=True)
    for items in (5, 8, 11):
        mv, s = _data(2, items)
        outputs, gradients = [], []
        for f in (compiled, net):
            net.zero_grad()
            out, t = f(mv, s)
            (out.square().sum() + t.square().sum()).backward()
            outputs.append((out, t))
            gradients.append([p.grad for p in net.parameters()])
        _assert_same(*outputs)
        _assert_same(*gradients)
