"""`flashgatr parameters`: the paper's networks with their numbers of parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ... import AxialGATr, GATr, GATrConfig
from ...config import PRESETS, preset
from ..console import show_table


@dataclass(frozen=True)
class Row:
    """One preset: its network's class, its configuration, its number of parameters."""

    preset: str
    network: type[GATr]
    config: GATrConfig
    parameters: int


def rows() -> list[Row]:
    """All presets. The networks are built on the meta device, without memory for weights."""
    found = []
    for name in PRESETS:
        config = preset(name)
        network = AxialGATr if isinstance(config.rotary, tuple) else GATr  # for two item axes
        with torch.device("meta"):
            number = sum(p.numel() for p in network(config).parameters())
        found.append(Row(name, network, config, number))
    return found


def show() -> None:
    """Print the presets with their numbers of parameters."""
    columns = ["preset", "network", "blocks", "mv", "scalars", "heads", "attention", "parameters"]
    lines = []
    for row in rows():
        c = row.config
        kind = "multi-query" if c.multi_query else "multi-head"
        lines.append(
            [
                row.preset,
                row.network.__name__,
                str(c.num_blocks),
                str(c.hidden_mv_channels),
                str(c.hidden_s_channels),
                str(c.num_heads),
                f"{kind} x{c.attention_width}",
                f"{row.parameters:,} ({row.parameters / 1e6:.3f} M)",
            ]
        )
    show_table("Presets: GATr.from_preset(name), AxialGATr.from_preset(name)", columns, lines)
