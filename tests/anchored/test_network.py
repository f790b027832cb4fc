"""AnchoredGATr: what its anchors and queries may depend on, on both paths."""

import copy

import pytest
import torch

from flashgatr import AnchoredGATr, AxialGATr, GATr, LoadError, embed_point, versors
from flashgatr.batch import pack, pad
from tests.network.networks import SMALL

from .networks import VARIANTS, gap, largest_gap, make_data, make_net

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("name", VARIANTS)
def test_with_all_items_as_anchors_the_network_is_gatr(name):
    net = make_net(**VARIANTS[name])
    mv, s = make_data(2, 9)
    expected = GATr.forward(net, mv, s)
    state = net.encode(mv, s)
    assert largest_gap(net(mv, s), expected) == 0
    assert largest_gap(net(mv, s, anchors=torch.arange(9).expand(2, -1)), expected) < 1e-12
    assert largest_gap((state.mv, state.s), expected) < 1e-12
    assert largest_gap(net.decode(state, mv, s, tile=4), expected) < 1e-12


@pytest.mark.parametrize("name", VARIANTS)
def test_in_float32_all_items_as_anchors_differ_from_gatr_by_rounding(name):
    net, (mv, s) = make_net(**VARIANTS[name]).float(), (x.float() for x in make_data(2, 9))
    expected = GATr.forward(net, mv, s)
    index = torch.arange(9).expand(2, -1)
    assert gap(net(mv, s, anchors=index), expected) < 1e-5
    assert gap(net.decode(net.encode(mv, s), mv, s, tile=4), expected) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_one_call_is_encode_and_decode(name):
    net, index = make_net(**VARIANTS[name]), torch.tensor([[3, 8, 0, 5], [1, 2, 3, 9]])
    mv, s = make_data(2, 10)
    weights = torch.rand(2, 4).double() + 0.5
    found = net(mv, s, anchors=index, weights=weights)
    at = index[..., None]
    given = mv.take_along_dim(at[..., None], 1), s.take_along_dim(at, 1)
    state = net.encode(*given, weights=weights)
    for tile in (3, 10, 64, None):
        assert largest_gap(net.decode(state, mv, s, tile=tile), found) < 1e-12
    anchors = [x.take_along_dim(i, 1) for x, i in zip(found, (at[..., None], at), strict=True)]
    assert largest_gap(anchors, (state.mv, state.s)) < 1e-12


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_those_of_gatr_with_masked_attention(name):
    net, index = make_net(**VARIANTS[name]), torch.tensor([3, 8, 0, 5])
    mv, s = (x.requires_grad_() for x in make_data(10))
    weights = (torch.rand(4).double() + 0.5).requires_grad_()
    leaves = [mv, s, *net.parameters()]

    def gradients(out):
        outer = [torch.cos(torch.arange(x.numel()).to(x)).reshape(x.shape) for x in out]
        return torch.autograd.grad(out, [weights, *leaves], outer)

    bias = torch.full((10, 10), -torch.inf).double()
    bias = bias.index_copy(1, index, weights.log().expand(10, -1))
    frame = net.frame(mv[index])
    out = GATr.forward(net, mv, s, attention_mask=bias, frame=frame)
    expected = gradients(out)
    found = net(mv, s, anchors=index, weights=weights)
    assert largest_gap(found, out) < 1e-12
    assert largest_gap(gradients(found), expected) < 1e-10
    for tile in (4, None):
        state = net.encode(mv[index], s[index], weights=weights)
        found = net.decode(state, mv, s, tile=tile)
        assert largest_gap(gradients(found), expected) < 1e-10


def test_the_weight_two_is_an_anchor_given_twice():
    net = make_net()
    (mv, s), (query, query_s) = make_data(5), make_data(7)
    twice = [*range(5), 2]
    state = net.encode(mv, s, weights=torch.tensor([1, 1, 2, 1, 1]))
    # the frame is a mean over the anchors, to which a copy would add
    doubled = net.encode(mv[twice], s[twice], frame=state.frame)
    assert largest_gap((doubled.mv[:5], doubled.s[:5]), (state.mv, state.s)) < 1e-13
    expected = net.decode(doubled, query, query_s, tile=8)
    assert largest_gap(net.decode(state, query, query_s, tile=8), expected) < 1e-13


LAYOUTS = {
    "plain": lambda x: (x[0], {}),
    "batched": lambda x: (x, {}),
    "packed": lambda x: (x.flatten(0, 1), dict(offsets=torch.tensor([0, 1, 2]) * x.shape[1])),
}
"""Items (2, N, ...) of two samples as the network takes them; "plain" has the first alone."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VARIANTS)
def test_queries_in_any_order_and_number_have_the_same_bits(name, layout, dtype):
    """With autocast to 16 bits, too."""
    stream, samples = torch.promote_types(dtype, torch.float32), 1 if layout == "plain" else 2
    net, queries = make_net(**VARIANTS[name]).to(stream), make_data(2, 40)

    def given(*tensors):
        pairs = [LAYOUTS[layout](x.to(stream)) for x in tensors]
        return [x for x, _ in pairs], pairs[0][1]

    def outputs(part):
        """Of this part of each sample's queries: (samples, len(part), numbers)."""
        (mv, s), about = given(*(x[:, part] for x in queries))
        out = net.decode(state, mv, s, **about, tile=16)
        return torch.cat([x.reshape(samples, len(part), -1) for x in out], dim=-1)

    with torch.no_grad(), torch.autocast("cpu", enabled=dtype == torch.bfloat16):
        (mv, s, weights), about = given(*make_data(2, 13), torch.rand(2, 13) + 0.5)
        state = net.encode(mv, s, weights=weights, **about)
        expected = outputs(torch.arange(40))
        for part in (*torch.randperm(40).split([1, 20, 16, 3]), torch.randint(40, (1,))):
            assert torch.equal(outputs(part), expected[:, part])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_tiles_of_odd_size_have_the_same_bits(dtype):
    """PyTorch's CPU loops round the last rows of an odd number of rows differently."""
    stream = torch.promote_types(dtype, torch.float32)
    net = make_net(hidden_mv_channels=8, hidden_s_channels=16).to(stream)
    (mv, s), (query, query_s) = ([x.to(stream) for x in make_data(n)] for n in (9, 39))
    with torch.no_grad(), torch.autocast("cpu", enabled=dtype == torch.bfloat16):
        state = net.encode(mv, s)
        for tile in (7, 13):
            expected = net.decode(state, query, query_s, tile=tile)
            for part in (torch.arange(39).flip(0), torch.randperm(39)[:8], torch.tensor([6])):
                found = net.decode(state, query[part], query_s[part], tile=tile)
                assert all(torch.equal(x, y[part]) for x, y in zip(found, expected, strict=True))


def test_many_queries_in_wide_networks_have_the_same_bits():
    for dtype in (torch.float32, torch.float64):
        net = make_net(hidden_mv_channels=8, hidden_s_channels=16, num_heads=4).to(dtype)
        (mv, s), (query, query_s) = make_data(33), make_data(150)
        state = net.encode(mv.to(dtype), s.to(dtype), weights=torch.rand(33) + 0.5)
        query, query_s = query.to(dtype), query_s.to(dtype)
        with torch.no_grad():
            expected = net.decode(state, query, query_s, tile=64)
            parts = torch.randperm(150).split([1, 70, 63, 16])
            for part in (*parts, *torch.randint(150, (5, 1))):
                found = net.decode(state, query[part], query_s[part], tile=64)
                assert all(torch.equal(x, y[part]) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_anchors_and_queries_move_with_any_motion(name):
    net = make_net(**VARIANTS[name])
    types_in, types_out = net.config.in_mv_parity, net.config.out_mv_parity
    (mv, s), (query, query_s) = make_data(6), make_data(9)
    query[..., 0, :] = embed_point(5 * torch.randn(9, 3).double())  # also far from all anchors
    state = net.encode(mv, s)
    expected, expected_s = net.decode(state, query, query_s, tile=9)
    for u in versors.sample(6, generator=torch.Generator().manual_seed(0)):
        moved = net.encode(versors.apply(u, mv, types_in), s)
        found = net.decode(moved, versors.apply(u, query, types_in), query_s, tile=9)
        assert gap(found, (versors.apply(u, expected, types_out), expected_s)) < 1e-11
        assert gap((moved.mv,), (versors.apply(u, state.mv, types_out),)) < 1e-11


def test_far_from_the_origin_nothing_but_the_input_is_rounded():
    exact = make_net()
    net = copy.deepcopy(exact).float()
    points, s = torch.randn(20, 2, 3).double(), torch.randn(20, 1)

    def scalars(net, mv, s):
        return net.decode(net.encode(mv[:6], s[:6]), mv, s, tile=20)[1:]

    for distance in (0.0, 1e4):
        mv = embed_point(points + distance).float()
        expected = scalars(exact, mv.double(), s.double())
        assert largest_gap([x.double() for x in scalars(net, mv, s)], expected) < 1e-5


def test_packed_and_padded_sets_are_their_samples():
    net, sizes, queries = make_net(), (3, 1, 5), (4, 6, 2)
    anchors, asked = [make_data(n) for n in sizes], [make_data(n) for n in queries]
    weights = [torch.rand(n).double() + 0.5 for n in sizes]
    alone = [
        net.decode(net.encode(*a, weights=w), *q, tile=4)
        for a, w, q in zip(anchors, weights, asked, strict=True)
    ]
    (mv, offsets), (s, _), (w, _) = (
        pack([a[0] for a in anchors]),
        pack([a[1] for a in anchors]),
        pack(weights),
    )
    (q, begins), (q_s, _) = pack([q[0] for q in asked]), pack([q[1] for q in asked])
    state = net.encode(mv, s, weights=w, offsets=offsets)
    expected = [torch.cat(x) for x in zip(*alone, strict=True)]
    for tile in (4, None):
        assert largest_gap(net.decode(state, q, q_s, offsets=begins, tile=tile), expected) < 1e-12
    (mv, mask), (s, _), (w, _) = (
        pad([a[0] for a in anchors]),
        pad([a[1] for a in anchors]),
        pad(weights),
    )
    (q, valid), (q_s, _) = pad([q[0] for q in asked]), pad([q[1] for q in asked])
    state = net.encode(mv, s, weights=w, mask=mask)
    for tile in (4, None):
        found = net.decode(state, q, q_s, mask=valid, tile=tile)
        assert largest_gap([x[valid] for x in found], expected) < 1e-12
        assert all(bool((x[~valid] == 0).all()) for x in found)


def test_one_call_on_packed_and_padded_sets_is_that_on_the_samples():
    net, data = make_net(), [make_data(n) for n in (4, 6, 5)]
    numbers = [torch.tensor([0, 2]), torch.tensor([5, 1]), torch.tensor([3, 4])]
    alone = [net(*x, anchors=i) for x, i in zip(data, numbers, strict=True)]
    expected = [torch.cat(x) for x in zip(*alone, strict=True)]
    (mv, offsets), (s, _) = pack([x[0] for x in data]), pack([x[1] for x in data])
    index = torch.cat([i + begin for i, begin in zip(numbers, offsets, strict=False)])
    assert largest_gap(net(mv, s, anchors=index, offsets=offsets), expected) < 1e-12
    (mv, mask), (s, _) = pad([x[0] for x in data]), pad([x[1] for x in data])
    found = net(mv, s, anchors=torch.stack(numbers), mask=mask)
    assert largest_gap([x[mask] for x in found], expected) < 1e-12


def test_one_anchor_equal_points_and_no_queries():
    net, (mv, s) = make_net(), make_data(1)
    state = net.encode(mv, s)
    same = net.decode(state, mv.expand(5, -1, -1), s.expand(5, -1), tile=5)
    assert largest_gap(same, (state.mv.expand(5, -1, -1), state.s.expand(5, -1))) < 1e-13
    for tile in (4, None):
        out, out_s = net.decode(state, mv[:0], s[:0], tile=tile)
        assert out.shape == (0, 2, 16)
        assert out_s.shape == (0, 3)
    equal = net(mv.expand(6, -1, -1), s.expand(6, -1), anchors=torch.tensor([0, 4]))
    assert largest_gap(equal, [x[:1].expand_as(x) for x in equal]) < 1e-13


def test_samples_without_queries_are_not_computed(monkeypatch):
    net, (mv, s), offsets = make_net(), make_data(3), torch.tensor([0, 1, 2, 3])
    state, sizes = net.encode(mv, s, offsets=offsets), []
    read = AnchoredGATr._read
    monkeypatch.setattr(
        AnchoredGATr, "_read", lambda *x: (sizes.append(x[2].shape[0]), read(*x))[1]
    )
    (query, query_s), begins = make_data(2), torch.tensor([0, 0, 2, 2])
    found = net.decode(state, query, query_s, offsets=begins, tile=64)
    assert sizes == [64]
    assert largest_gap(found, net.decode(state.sample(1), query, query_s, tile=64)) == 0
    net.decode(state.sample(1), query[:0], query_s[:0], tile=64)
    assert sizes == [64, 64]


def test_a_field_embeds_tile_by_tile():
    net, seen, done = make_net(), [], []
    points, (mv, s) = torch.randn(20, 3).double(), make_data(6)

    def embed(position):
        seen.append(len(position))
        point = embed_point(position)
        return torch.stack([point, point], dim=-2), position.square().sum(-1, keepdim=True)

    state = net.encode(mv, s)
    field = net.field(state, embed, tile=8, progress=lambda *x: done.append(x))
    found = field(points)
    assert seen == [8, 8, 4]
    assert done == [(8, 20), (16, 20), (20, 20)]
    expected = net.decode(state, *embed(points), tile=8)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    scalars = net.field(state, embed, tile=8, extract=lambda mv, s: s)(points)
    assert torch.equal(scalars, expected[1])
    at_once = net.field(state, embed, tile=None)(points)
    assert seen[-1] == 20
    assert largest_gap(at_once, expected) < 1e-13


def test_files_are_those_of_gatr(tmp_path):
    net, (mv, s) = make_net(), make_data(5)
    net.save_pretrained(tmp_path / "anchored")
    plain = GATr.from_pretrained(tmp_path / "anchored")
    assert largest_gap(plain(mv, s), net(mv, s)) == 0
    plain.save_pretrained(tmp_path / "plain")
    assert largest_gap(AnchoredGATr.from_pretrained(tmp_path / "plain")(mv, s), net(mv, s)) == 0
    AxialGATr(net.config).save_pretrained(tmp_path / "axial")
    with pytest.raises(LoadError, match="holds the network AxialGATr, expected GATr"):
        AnchoredGATr.from_pretrained(tmp_path / "axial")


def test_a_network_in_memory_becomes_an_anchored_one_with_the_same_parameters():
    plain = GATr(**SMALL).double().eval()
    mv, s = make_data(2, 7)
    net = AnchoredGATr.from_gatr(plain)
    assert net.obstacle(mv) == plain.obstacle(mv)
    assert largest_gap(net(mv, s), plain(mv, s)) == 0
    with torch.no_grad():
        plain.linear_out.weight.mul_(2.0)
    assert largest_gap(net(mv, s), plain(mv, s)) == 0
    assert not net.training
    before, plain.check_finite = torch.get_rng_state(), True
    assert AnchoredGATr.from_gatr(plain).check_finite
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(TypeError, match="expected a GATr, got AxialGATr"):
        AnchoredGATr.from_gatr(AxialGATr(**SMALL))


def test_gradients_of_all_inputs_are_those_of_finite_differences():
    net = make_net(num_blocks=1, hidden_mv_channels=2, hidden_s_channels=4)
    (mv, s), (query, query_s) = make_data(3), make_data(2)
    weights = torch.tensor([1.0, 2.0, 0.5]).double()

    def run(mv, s, weights, query, query_s):
        state = net.encode(mv, s, weights=weights)
        return net.decode(state, query, query_s, tile=2)

    given = [x.requires_grad_() for x in (mv, s, weights, query, query_s)]
    assert torch.autograd.gradcheck(run, given, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_anchors_do_not_see_the_queries(name):
    net, (mv, s), index = make_net(**VARIANTS[name]), make_data(12), torch.tensor([2, 7, 5])
    with torch.no_grad():
        out, out_s = net(mv, s, anchors=index)
        other, other_s = make_data(12)
        other[index], other_s[index] = mv[index], s[index]
        changed, changed_s = net(other, other_s, anchors=index)
    found, expected = (changed[index], changed_s[index]), (out[index], out_s[index])
    assert largest_gap(found, expected) < 1e-13
    assert largest_gap((changed, changed_s), (out, out_s)) > 1e-3
