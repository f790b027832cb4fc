"""Laws of the baselines: sizes of the paper, symmetries, and the same meaning of sets as GATr's."""

import copy

import pytest
import torch
from torch.autograd import gradcheck

from flashgatr.batch import Sets, pack, pad
from flashgatr.experiments.baselines import MLP, AxialTransformer, Transformer
from flashgatr.experiments.baselines.transformer import LayerNorm, SelfAttention
from flashgatr.functional import rotate

SMALL = dict(hidden_channels=24, num_blocks=3, num_heads=4)
VARIANTS = [
    {},
    dict(multi_query=True),
    dict(rotary=True),
    dict(legacy_norm=True),
    dict(checkpoint=True, rotary=True, multi_query=True, mlp_ratio=1),
]


def _net(kind=Transformer, **options):
    return kind(5, 2, **{**SMALL, **options}).double()


def _data(*shape):
    return torch.randn(*shape, 5, dtype=torch.float64)


def _assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def _parameters(build):
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: Transformer(7, 3), 11_827_587),
        (lambda: Transformer(7, 3, 160, 10, 4, multi_query=True), 1_674_563),
        (lambda: MLP(4 * 7, 4 * 3), 163_596),
        (lambda: MLP(4 * 7, 4 * 3, layers=5), 607_116),
        (lambda: MLP(4 * 7, 4 * 3, layers=10), 1_346_316),
    ],
    ids=["nbody", "arteries", "mlp", "mlp of 5", "mlp of 10"],
)
def test_sizes_are_the_papers(build, expected):
    assert _parameters(build) == expected


def test_rotary_heads_are_even_and_at_least_sixteen_wide_where_they_turn():
    axial = _net(AxialTransformer, rotary=(True, False))
    assert [block.attention.width for block in axial.blocks] == [6, 16, 6]
    assert [block.attention.rotary_base for block in axial.blocks] == [None, 4096, None]
    assert _net(hidden_channels=4 * 19, rotary=True).blocks[0].attention.width == 20
    kuka = _parameters(lambda: AxialTransformer(9, 9, 144, 20, 8, rotary=(True, False)))
    assert kuka == pytest.approx(3.34e6, rel=0.002)


def test_the_block_is_the_formula():
    net = _net(num_blocks=1)
    x = _data(3, 6)
    block = net.blocks[0]

    def norm(h):
        h = h - h.mean(-1, keepdim=True)
        return h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    h = net.linear_in(x)
    q, k, v = (y.unflatten(-1, (4, 6)) for y in block.attention.qkv(norm(h)).chunk(3, -1))
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 6**0.5).softmax(-1)
    h = h + block.attention.output(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2))
    widen, narrow = block.mlp[0], block.mlp[2]
    h = h + narrow(torch.nn.functional.gelu(widen(norm(h))))
    _assert_same(net(x), net.linear_out(h))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_without_positions_items_have_no_order(options):
    net, x, order = _net(**options), _data(2, 7), torch.randperm(7)
    moved = (net(x[:, order]) - net(x)[:, order]).abs().max()
    assert (moved > 1e-3) if options.get("rotary") else (moved < 1e-12)


def test_rotary_logits_see_only_relative_positions():
    q, k = torch.randn(2, 6, 4, 16, dtype=torch.float64)
    places = torch.arange(6)

    def logits(shift):
        turned = (rotate(x, places + shift, 4096.0) for x in (q, k))
        return torch.einsum("ihd,jhd->hij", *turned)

    _assert_same(logits(1000), logits(0))
    assert (logits(0) - torch.einsum("ihd,jhd->hij", q, k)).abs().max() > 0.1


def test_a_rotary_network_sees_only_relative_positions():
    net, x = _net(AxialTransformer, num_blocks=1, rotary=True), _data(1, 5)
    places = torch.arange(9)[None]
    early, late = torch.zeros(2, 1, 9, 5, dtype=torch.float64)
    early[:, :5], late[:, 4:] = x, x
    first, last = net(early, mask=places < 5)[:, :5], net(late, mask=places >= 4)[:, 4:]
    _assert_same(first, last)
    _assert_same(first, net(x))


def test_multi_query_with_one_head_is_multi_head():
    options = dict(num_heads=1, rotary=True)
    several, shared = _net(**options), _net(**options, multi_query=True)
    shared.load_state_dict(several.state_dict())
    x = _data(2, 6)
    assert torch.equal(several(x), shared(x))


def test_multi_query_is_multi_head_with_repeated_keys_and_values():
    shared = SelfAttention(24, 4, multi_query=True, rotary_base=None, dropout=0.0)
    several = SelfAttention(24, 4, multi_query=False, rotary_base=None, dropout=0.0)
    repeated = {}
    for name, x in shared.qkv.state_dict().items():
        q, k, v = x.split([24, 6, 6])
        repeated[name] = torch.cat([q, *[k] * 4, *[v] * 4])
    several.qkv.load_state_dict(repeated)
    several.output.load_state_dict(shared.output.state_dict())
    x = torch.randn(2, 5, 24)
    sets = Sets((2, 5))
    torch.testing.assert_close(several(x, sets), shared(x, sets))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_sample_alone_padded_packed_or_in_a_batch_is_the_same(options):
    net = _net(**options)
    samples = [_data(n) for n in (4, 1, 0, 6)]
    padded, mask = pad(samples)
    packed, offsets = pack(samples)
    junk = torch.where(mask.unsqueeze(-1), padded, torch.nan)
    from_padded, from_packed = net(junk, mask=mask), net(packed, offsets=offsets)
    assert not from_padded[~mask].any()
    _assert_same(from_padded[mask], from_packed)
    _assert_same(from_packed, net(packed, offsets=offsets, max_items=9))
    _assert_same(from_packed, torch.cat([net(x) for x in samples]))
    _assert_same(
        net(padded.reshape(2, 2, 6, 5), mask=mask.reshape(2, 2, 6)).flatten(0, 1), from_padded
    )


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_not_a_number_in_padding_reaches_no_gradient(options):
    net = _net(**options)
    x = _data(2, 4)
    mask = torch.tensor([[True, True, True, False], [False] * 4])
    x[~mask] = torch.nan
    x.requires_grad_()
    net(x, mask=mask).square().sum().backward()
    assert not x.grad[~mask].any()
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_one_sample_does_not_see_another():
    for net in (_net(), _net(legacy_norm=True)):
        x, offsets = _data(9), torch.tensor([0, 4, 9])
        changed = x.clone()
        changed[4:] += 1
        assert torch.equal(net(changed, offsets=offsets)[:4], net(x, offsets=offsets)[:4])


def test_attention_masks_are_boolean_or_added_to_the_logits():
    net, x = _net(), _data(2, 5)
    causal = torch.ones(5, 5).bool().tril()
    out = net(x, attention_mask=causal)
    later = x.clone()
    later[:, 3:] += 1
    _assert_same(net(later, attention_mask=causal)[:, :3], out[:, :3])
    bias = torch.zeros(5, 5).double().masked_fill(~causal, -torch.inf)
    _assert_same(net(x, attention_mask=bias), out)
    _assert_same(net(x, attention_mask=causal.expand(2, 4, 5, 5)), out)


def test_the_legacy_norm_is_over_items_and_channels():
    x = _data(3, 4)
    found = LayerNorm(legacy=True)(x, Sets((3, 4)))
    _assert_same(found, torch.nn.functional.layer_norm(x, (4, 5)))
    assert (found - LayerNorm()(x, Sets((3, 4)))).abs().max() > 0.1


def test_even_axial_blocks_are_plain_blocks_along_the_second_axis():
    axial, plain = (
        _net(AxialTransformer, num_blocks=1, rotary=True),
        _net(num_blocks=1, rotary=True),
    )
    plain.load_state_dict(axial.state_dict())
    x = _data(2, 3, 5)
    _assert_same(axial(x), plain(x))
    mask = torch.arange(5) < torch.tensor([[5, 2, 0], [1, 3, 4]]).unsqueeze(-1)
    _assert_same(axial(x, mask=mask), plain(x, mask=mask))


def test_axial_blocks_alternate_between_the_axes():
    axial = _net(AxialTransformer, num_blocks=2, rotary=(True, False), legacy_norm=False)
    x = _data(2, 3, 4)
    first, second = axial.blocks
    h = axial.linear_in(x)
    h = first(h, Sets((2, 3, 4)))
    h = second(h.transpose(1, 2), Sets((2, 4, 3))).transpose(1, 2)
    _assert_same(axial(x), axial.linear_out(h))


@pytest.mark.parametrize("options", [{}, dict(rotary=True)], ids=str)
def test_an_axial_network_on_one_line_is_plain_but_for_blocks_of_single_items(options):
    axial, plain = _net(AxialTransformer, num_blocks=3, **options), _net(num_blocks=3, **options)
    plain.load_state_dict(axial.state_dict())
    alone = torch.eye(6).bool()  # odd blocks see an axis of length one: each item attends to itself
    x = _data(6)
    h, sets = plain.linear_in(x), Sets((6,))
    for block, attention_mask in zip(plain.blocks, (None, alone, None), strict=True):
        h = block(h, sets, attention_mask)
    _assert_same(axial(x[None])[0], plain.linear_out(h))


def test_axial_networks_are_equivariant_along_the_axis_without_positions():
    net, x, order = _net(AxialTransformer, rotary=(True, False)), _data(2, 4, 6), torch.randperm(6)
    _assert_same(net(x[:, :, order]), net(x)[:, :, order])
    assert (net(x.flip(1)) - net(x).flip(1)).abs().max() > 1e-3


def test_axial_padding_is_ignored():
    net, x = _net(AxialTransformer, rotary=True, legacy_norm=True), _data(2, 3, 4)
    wide = torch.full((2, 5, 6, 5), torch.nan).double()
    wide[:, :3, :4] = x
    mask = torch.zeros(2, 5, 6).bool()
    mask[:, :3, :4] = True
    out = net(wide, mask=mask)
    _assert_same(out[:, :3, :4], net(x))
    assert not out[~mask].any()


def test_axial_attention_masks_come_in_pairs():
    net, x = _net(AxialTransformer), _data(2, 3, 4)
    causal = torch.ones(3, 3).bool().tril()
    later = x.clone()
    later[:, 2] += 1
    masks = (causal, None)
    _assert_same(net(later, attention_mask=masks)[:, :2], net(x, attention_mask=masks)[:, :2])
    assert (net(later) - net(x))[:, :2].abs().max() > 1e-3


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_gradients_are_the_derivatives(options):
    net = Transformer(2, 1, 4, 2, 2, **options).double()
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert gradcheck(lambda x: net(x, mask=mask), x)


def test_checkpointing_changes_no_gradient():
    net = _net(dropout=0.3)
    again = copy.deepcopy(net)
    again.checkpoint = True
    gradients = []
    for f in (net, again):
        torch.manual_seed(1)
        f(_data(2, 5)).square().sum().backward()
        gradients.append([p.grad for p in f.parameters()])
    _assert_same(*gradients)


def test_dropout_acts_in_training_only():
    net, x = _net(dropout=0.5), _data(2, 5)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("build", [lambda: Transformer(28, 12, **SMALL), lambda: MLP(28, 12)])
def test_autocast_rounds_neither_the_first_nor_the_last_map(build):
    net, x = build(), torch.randn(4, 28)
    linears = {name: m for name, m in net.named_modules() if isinstance(m, torch.nn.Linear)}
    found = {}
    for name, module in linears.items():
        module.register_forward_hook(lambda _m, _x, y, name=name: found.update({name: y.dtype}))
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.float32
    ends = {"linear_in": torch.float32, "linear_out": torch.float32}
    assert found == {**dict.fromkeys(linears, torch.bfloat16), **ends}
    assert net.bfloat16()(x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,), (1, 1)], ids=str)
def test_empty_and_single_sets(shape):
    for options in VARIANTS:
        out = _net(**options)(_data(*shape).requires_grad_())
        assert out.shape == (*shape, 2)
        assert out.isfinite().all()
        out.sum().backward()
    assert _net()(_data(0), offsets=torch.tensor([0])).shape == (0, 2)


def test_compilers_see_one_graph():
    torch._dynamo.reset()
    net = _net(num_blocks=1, rotary=True)
    axial = _net(AxialTransformer, num_blocks=2, rotary=(True, False))
    x, mask = _data(2, 5), torch.rand(2, 5) < 0.7
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    _assert_same(compiled(x, mask=mask), net(x, mask=mask))
    compiled = torch.compile(axial, fullgraph=True, backend="aot_eager")
    _assert_same(compiled(x[None]), axial(x[None]))
    torch._dynamo.reset()


def test_the_mlp_is_the_formula():
    net, x = MLP(6, 3, hidden=8, layers=2).double(), torch.randn(5, 6, dtype=torch.float64)
    gelu = torch.nn.functional.gelu
    _assert_same(net(x), net.linear_out(gelu(net.hidden[0](gelu(net.linear_in(x))))))
    assert gradcheck(net, x[:2].requires_grad_())


def test_representations_say_what_it_is():
    assert repr(Transformer(7, 3, 32, 2, 4, multi_query=True)) == (
        "Transformer(7 -> 3; 2 blocks of 32 channels, 4 multi-query heads, 14,019 parameters)"
    )
    assert repr(LayerNorm(legacy=True)) == "LayerNorm(over items and channels)"


CONFIGS = {
    "no input": (dict(in_channels=0), ValueError, "in_channels .* at least 1, got 0"),
    "half a block": (dict(num_blocks=0.5), ValueError, "num_blocks .* 0.5"),
    "a flag as a number": (dict(num_heads=True), ValueError, "num_heads .* True"),
    "more heads than channels": (dict(num_heads=32), ValueError, "32 heads need .* got 24"),
    "text as a flag": (dict(multi_query="yes"), TypeError, "multi_query .* 'yes'"),
    "a number as a flag": (dict(checkpoint=1), TypeError, "checkpoint"),
    "legacy of what": (dict(legacy_norm=None), TypeError, "legacy_norm"),
    "two axes": (dict(rotary=(True, False)), ValueError, "AxialTransformer"),
    "rotary by number": (dict(rotary=2), TypeError, "rotary must be True or False"),
    "certain dropout": (dict(dropout=1.0), ValueError, r"\[0, 1\)"),
    "dropout of nothing": (dict(dropout=None), ValueError, "dropout"),
    "negative base": (dict(rotary_base=-1.0), ValueError, "rotary_base"),
    "infinite base": (dict(rotary_base=float("inf")), ValueError, "rotary_base"),
    "no mlp": (dict(mlp_ratio=0), ValueError, "mlp_ratio"),
    "unknown option": (dict(num_block=2), TypeError, "num_block"),
}


@pytest.mark.parametrize("case", CONFIGS, ids=str)
def test_a_wrong_option_is_refused_in_one_sentence(case):
    options, error, text = CONFIGS[case]
    with pytest.raises(error, match=text) as caught:
        Transformer(**{**dict(in_channels=5, out_channels=2), **SMALL, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rotary", [(True,), (True, 1), "yes"], ids=str)
def test_a_wrong_pair_of_axes_is_refused(rotary):
    with pytest.raises(TypeError, match="a pair"):
        AxialTransformer(5, 2, **SMALL, rotary=rotary)


X = torch.randn(2, 5, 5)
CALLS = {
    "wrong channels": (X[..., :4], {}, ValueError, r"\(..., N, 5\), got \(2, 5, 4\)"),
    "no item axis": (X[0, 0], {}, ValueError, r"\(..., N, 5\)"),
    "not a tensor": (X.tolist(), {}, TypeError, "got list"),
    "integers": (X.int(), {}, TypeError, "int32"),
    "double input": (X.double(), {}, TypeError, r"x\.to\(torch\.float32\)"),
    "another device": (X.to("meta"), {}, ValueError, "is on meta"),
    "mask of wrong shape": (X, dict(mask=torch.ones(2, 4).bool()), ValueError, r"\(2, 5\)"),
    "mask of numbers": (X, dict(mask=torch.ones(2, 5)), TypeError, "boolean"),
    "both forms": (
        X[0],
        dict(mask=torch.ones(5).bool(), offsets=torch.tensor([0, 5])),
        ValueError,
        "both",
    ),
    "offsets that do not end": (X[0], dict(offsets=torch.tensor([0, 4])), ValueError, "rise"),
    "offsets with a batch": (X, dict(offsets=torch.tensor([0, 5])), ValueError, "one axis"),
    "max_items alone": (X, dict(max_items=5), ValueError, "goes with offsets"),
    "attention mask of wrong shape": (
        X,
        dict(attention_mask=torch.ones(4, 5).bool()),
        ValueError,
        "5 x 5",
    ),
    "attention mask of packed sets": (
        X[0],
        dict(offsets=torch.tensor([0, 5]), attention_mask=torch.ones(5, 5).bool()),
        ValueError,
        "padded",
    ),
    "unknown keyword": (X, dict(msk=None), TypeError, "msk"),
}


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_a_wrong_call_is_refused_in_one_sentence(case):
    x, options, error, text = CALLS[case]
    with pytest.raises(error, match=text) as caught:
        Transformer(5, 2, **SMALL)(x, **options)
    assert "\n" not in str(caught.value)


def test_wrong_calls_of_the_others_are_refused():
    axial = AxialTransformer(5, 2, **SMALL)
    with pytest.raises(ValueError, match="N1, N2, 5"):
        axial(X[0])
    with pytest.raises(ValueError, match="packed"):
        axial(X, offsets=torch.tensor([0, 5]))
    with pytest.raises(TypeError, match="a pair"):
        axial(X, attention_mask=torch.ones(5, 5).bool())
    with pytest.raises(TypeError, match="msk"):
        axial(X, msk=None)
    with pytest.raises(ValueError, match=r"\(..., 28\), got \(2, 27\)"):
        MLP(28, 12)(torch.zeros(2, 27))
    with pytest.raises(ValueError, match="layers must be an integer of at least 1, got 0"):
        MLP(28, 12, layers=0)
    with pytest.raises(TypeError, match="width"):
        MLP(28, 12, width=3)
