"""Small networks with types, and inputs for them."""

import torch

from flashgatr import AnchoredGATr, AxialGATr, GATr, embed_plane, embed_point, embed_translation

SMALL = dict(
    in_mv_channels=3, in_s_channels=2, out_mv_channels=3, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=2, num_heads=2, in_mv_parity="oee", out_mv_parity="oeo",
)  # fmt: skip
VARIANTS = {
    "multi_query": (GATr, {}),
    "multi_head": (GATr, dict(multi_query=False)),
    "three_channels_per_head": (GATr, dict(hidden_mv_channels=6, attention_width=1)),
    "reinserted": (GATr, dict(reinsert_mv_channels=(0, 1), reinsert_s_channels=(1,))),
    "reinserted_heads": (GATr, dict(reinsert_mv_channels=(0,), multi_query=False)),
    "no_distances": (GATr, dict(distance_aware=False)),
    "no_scalars": (GATr, dict(hidden_s_channels=0)),
    "geometric": (GATr, dict(initialization="geometric")),
    "rotary": (GATr, dict(rotary=True)),
    "axial": (AxialGATr, dict(rotary=(True, False))),
    "scaled": (GATr, dict(length_scale=3.0)),
    "anchored": (AnchoredGATr, dict(multi_query=False)),
}

MOTIONS = [
    *((kind, 1.0) for kind in ("reflection", "E(3)", "SE(3)", "inversion", "rotoreflection")),
    *((kind, 0.0) for kind in ("reflection", "inversion", "rotoreflection")),
]
"""Kinds of motions, and the distance of their planes and centres from the origin."""


def network(name="multi_query", dtype=torch.float64, **changes):
    kind, options = VARIANTS[name]
    torch.manual_seed(0)
    return kind(**{**SMALL, **options, **changes}).to(dtype)


def scene(name="multi_query", dtype=torch.float64, items=6):
    """Points, planes and velocities, with scalars."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, 3, items // 2) if name == "axial" else (2, items)

    def random(*size):
        return torch.randn(*shape, *size, generator=generator, dtype=torch.float64)

    position, normal, velocity = random(3), random(3), random(3)
    channels = (
        embed_point(position), embed_plane(normal, position), embed_translation(velocity),
    )  # fmt: skip
    return torch.stack(channels, dim=-2).to(dtype), random(2).to(dtype)


def changed(net):
    """The network with large random parameters where there are some, as after training."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return net


def masked_entries(layer):
    """Parameters with the places that connect unlike types."""
    odd_in, odd_out = (torch.tensor([x == "o" for x in types]) for types in layer.types)
    places = [
        (layer.weight, odd_out[:, None] != odd_in),
        (layer.s2mv, odd_out),
        (layer.bias_mv, odd_out),
    ]
    if layer.mv2s is not None:
        places.append((layer.mv2s, odd_in.expand_as(layer.mv2s)))
    return [(parameter, where) for parameter, where in places if parameter is not None]
