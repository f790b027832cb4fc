"""Small networks with random parameters, data for them, and comparisons of their two paths.

The biases and logarithms of a new network are zero, which would hide mistakes. Every comparison
first asserts that the fused path runs.
"""

import contextlib

import torch

from flashgatr import GATr
from flashgatr.algebra import BLADES, E123
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear

OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=6, num_blocks=2, num_heads=2,
)  # fmt: skip
NO_SCALARS = dict(in_s_channels=0, out_s_channels=0, hidden_s_channels=0)
ODD = dict(in_mv_channels=3, hidden_mv_channels=3, hidden_s_channels=5, num_heads=3)
REINSERT = dict(reinsert_mv_channels=(1,), reinsert_s_channels=(0,))
TYPED = dict(in_mv_parity="oe", out_mv_parity="o")
VARIANTS = {
    "default": {},
    "multi-head": dict(multi_query=False),
    "narrow": dict(attention_width=1),
    "narrow multi-head": dict(attention_width=1, multi_query=False),
    "blind to distance": dict(distance_aware=False),
    "blind multi-head": dict(distance_aware=False, multi_query=False),
    "no learned weights": dict(learned_weights="none"),
    "all learned weights": dict(learned_weights="all"),
    "all learned weights multi-head": dict(learned_weights="all", multi_query=False),
    "all learned weights blind": dict(learned_weights="all", distance_aware=False),
    "all learned weights no scalars": dict(learned_weights="all", **NO_SCALARS),
    "reinsert mv": dict(reinsert_mv_channels=(1,)),
    "reinsert mv both": dict(reinsert_mv_channels=(1, 0)),
    "reinsert mv multi-head": dict(reinsert_mv_channels=(1,), multi_query=False),
    "reinsert s": dict(reinsert_s_channels=(0,)),
    "reinsert s multi-head": dict(reinsert_s_channels=(0,), multi_query=False),
    "reinsert mv and s": REINSERT,
    "reinsert mv and s multi-head": dict(REINSERT, multi_query=False, learned_weights="all"),
    "reinsert blind": dict(REINSERT, distance_aware=False),
    "reinsert without scalars": dict(NO_SCALARS, reinsert_mv_channels=(1,)),
    "reinsert s into no scalars": dict(hidden_s_channels=0, reinsert_s_channels=(0,)),
    "relu": dict(activation="relu"),
    "sigmoid": dict(activation="sigmoid"),
    "no scalars": NO_SCALARS,
    "no scalars blind": dict(NO_SCALARS, distance_aware=False),
    "scalars at the ends only": dict(hidden_s_channels=0),
    "scalars inside only": dict(in_s_channels=0, out_s_channels=0),
    "scalars in alone": dict(in_mv_channels=0, in_s_channels=3),
    "scalars out alone": dict(out_mv_channels=0),
    "odd channels": ODD,
    "odd channels multi-head": dict(ODD, multi_query=False, learned_weights="all", num_heads=2),
    "one head": dict(num_heads=1),
    "one head of its own": dict(num_heads=1, multi_query=False),
    "more heads than channels": dict(num_heads=7),
    "one channel": dict(hidden_mv_channels=1, hidden_s_channels=1, num_heads=1),
    "checkpoint": dict(checkpoint=True),
    "checkpoint reinsert": dict(REINSERT, checkpoint=True),
    "checkpoint attention": dict(REINSERT, checkpoint="attention"),
    "checkpoint mlp": dict(checkpoint="mlp"),
    "no recentring": dict(recenter=False),
    "length scale": dict(length_scale=3.0),
    "other epsilons": dict(norm_epsilon=2.0, distance_epsilon=0.5),
    "always clamped": dict(norm_epsilon=1e3),
    "eval with dropout": dict(dropout=0.5),
    "rotary": dict(rotary=True),
    "rotary multi-head": dict(rotary=True, multi_query=False, learned_weights="all"),
    "rotary reinsert": dict(REINSERT, rotary=True, distance_aware=False, rotary_base=50.0),
    "rotary odd channels": dict(ODD, rotary=True, num_heads=1, learned_weights="all"),
    "rotary checkpoint": dict(rotary=True, checkpoint=True),
    "types": TYPED,
    "types multi-head": dict(TYPED, **REINSERT, multi_query=False, learned_weights="all"),
    "types, three channels per head": dict(TYPED, hidden_mv_channels=6, attention_width=1),
    "types, many channels": dict(TYPED, hidden_mv_channels=36, num_blocks=1),
    "types, reinsert s": dict(TYPED, reinsert_s_channels=(0,), activation="sigmoid"),
    "types blind": dict(TYPED, **REINSERT, distance_aware=False, activation="relu"),
    "types no scalars": dict(TYPED, **NO_SCALARS, length_scale=3.0),
    "types, scalars in alone": dict(
        in_mv_channels=0, in_s_channels=3, in_mv_parity="", out_mv_parity="o"
    ),
    "types, scalars out alone": dict(out_mv_channels=0, in_mv_parity="oe", out_mv_parity=""),
    "types rotary checkpoint": dict(TYPED, rotary=True, checkpoint="mlp"),
}
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()


def make_net(cls=GATr, dtype=torch.float64, **options):
    net = cls(**{**OPTIONS, **options}).to(dtype).eval()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn_like(p)
    return net


def make_data(net, *items, dtype=torch.float64):
    c = net.config
    mv = torch.randn(*items, c.in_mv_channels, BLADES, dtype=dtype)
    for channel, letter in enumerate(c.in_mv_parity or ""):
        if letter == "e":  # a network warns of even channels that seem to hold points
            mv[..., channel, E123] = 0
    return mv.requires_grad_(), torch.randn(*items, c.in_s_channels, dtype=dtype).requires_grad_()


def make_layer(in_mv, out_mv, in_s, out_s, bias):
    layer = EquiLinear(in_mv, out_mv, in_s, out_s, bias=bias).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    return layer


def boolean(*shape):
    return torch.rand(shape) < 0.7


def additive(*shape):
    return torch.randn(shape, dtype=torch.float64)


def results_of(net, mv, s, plain=False, seed=1, **given):
    """Outputs, and all gradients of a random projection of them, by name."""
    with plain_kernels() if plain else contextlib.nullcontext():
        assert (net.obstacle(mv) is None) != plain
        out_mv, out_s = net(mv, s, **given)
    generator = torch.Generator().manual_seed(seed)
    outputs = [x for x in (out_mv, out_s) if x.requires_grad]  # no channels, no gradient
    outer = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]
    leaves = dict(mv=mv, s=s, **dict(net.named_parameters()))
    leaves |= {k: x for k, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    found = torch.autograd.grad(
        outputs, list(leaves.values()), outer, allow_unused=True, materialize_grads=True
    )
    results = dict(out_mv=out_mv.detach(), out_s=out_s.detach())
    return results | {f"gradient of {k}": g for k, g in zip(leaves, found, strict=True)}


def largest(x):
    return x.abs().max().item() if x.numel() else 0.0


def assert_equal(found, expected, tolerance=1e-12):
    """Compare tensor by tensor; errors of zero tensors are relative to the largest of all."""
    assert found.keys() == expected.keys()
    everything = max(map(largest, expected.values()))
    for name, x in expected.items():
        assert found[name].shape == x.shape
        assert found[name].dtype == x.dtype
        limit = tolerance * max(largest(x), 0.1 * everything)
        assert largest(found[name] - x) <= limit, name


def assert_fused_is_plain(net, mv, s, **given):
    assert_equal(results_of(net, mv, s, **given), results_of(net, mv, s, plain=True, **given))
