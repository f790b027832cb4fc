"""The geometric MLP: bilinear layer, gate, linear map.

    Geometric(x; z) = Linear( x₁ x₂ , z · join(x₃, x₄) ),     x₁..x₄ = four linear maps of x

z is the e123 component of a reference multivector: one number, or a tensor with as many axes as the
items that broadcasts to them. It changes sign under reflections, which makes z · join equivariant.
"""

from __future__ import annotations

from torch import Tensor, nn

from .. import functional
from ..functional.linear import halves
from ..functional.products import PRODUCTS, factor_types
from .linear import EquiLinear
from .norm import GradeDropout, ScalarGate


class GeometricBilinear(nn.Module):
    """Geometric product and equivariant join of learned projections of the input.

    `in_parity`, `out_parity`: types of the channels in and out. With types, joins need no
    reference: pass one.
    """

    def __init__(
        self,
        in_mv_channels: int,
        out_mv_channels: int,
        in_s_channels: int = 0,
        out_s_channels: int = 0,
        *,
        in_parity: str | None = None,
        out_parity: str | None = None,
    ) -> None:
        super().__init__()
        hidden = max(out_mv_channels // 2, 1)
        factors = results = None
        near_one = [slice(hidden, 2 * hidden)]
        if in_parity is not None:
            factors, results = factor_types(hidden)
            turn = len(PRODUCTS)  # only an even factor can be close to 1; (o, o) has none
            near_one = [slice(hidden + i, 2 * hidden, turn) for i in (0, 1)]
            near_one.append(slice(3, hidden, turn))
        self.inputs = EquiLinear(
            in_mv_channels, 4 * hidden, in_s_channels, in_parity=in_parity, out_parity=factors
        )
        # The product is close to x · 1 at the start, so that the layer is close to linear.
        for rows in near_one:
            self.inputs.reset_parameters("almost_unit_scalar", rows=rows)
        self.output = EquiLinear(
            2 * hidden,
            out_mv_channels,
            in_s_channels,
            out_s_channels,
            in_parity=results,
            out_parity=out_parity,
        )

    def forward(self, mv: Tensor, s: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        _check_reference(reference, mv)
        projected, _ = self.inputs(mv, s)
        return self.output(functional.bilinear(projected, reference), s)  # type: ignore[no-any-return]


def _check_reference(reference: Tensor, mv: Tensor) -> None:
    items = mv.dim() - 2
    if reference.dim() != items and not (reference.dim() < items and reference.numel() == 1):
        raise ValueError(
            f"reference must be one number, or have as many axes as the items "
            f"{tuple(mv.shape[:-2])}, got {tuple(reference.shape)}; one per sample is (..., 1)"
        )


class GeoMLP(nn.Module):
    """Bilinear layer to the hidden width, scalar gate, linear map to the output's width.

    By default the hidden layer is twice as wide as the input and the output as wide as the input.
    The product and the join each have half of the hidden multivector channels. `parity`: types of
    the channels in; `out_parity`: of those out (default: as in). Of the hidden channels the first
    half is even and the second odd.
    """

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        *,
        hidden_mv_channels: int | None = None,
        hidden_s_channels: int | None = None,
        out_mv_channels: int | None = None,
        out_s_channels: int | None = None,
        activation: str = "gelu",
        dropout: float = 0.0,
        parity: str | None = None,
        out_parity: str | None = None,
    ) -> None:
        super().__init__()
        wide_mv = 2 * mv_channels if hidden_mv_channels is None else hidden_mv_channels
        wide_s = 2 * s_channels if hidden_s_channels is None else hidden_s_channels
        out_mv = mv_channels if out_mv_channels is None else out_mv_channels
        out_s = s_channels if out_s_channels is None else out_s_channels
        is_typed = parity is not None
        if is_typed and wide_mv % 2:
            raise ValueError(
                f"hidden_mv_channels must be a multiple of 2 in a layer with types, got {wide_mv}"
            )
        wide = halves(wide_mv) if is_typed else None
        self.bilinear = GeometricBilinear(
            mv_channels, wide_mv, s_channels, wide_s, in_parity=parity, out_parity=wide
        )
        self.gate = ScalarGate(activation, is_typed=is_typed)
        out_parity = parity if out_parity is None else out_parity
        self.linear = EquiLinear(
            wide_mv, out_mv, wide_s, out_s, in_parity=wide, out_parity=out_parity
        )
        self.dropout = GradeDropout(dropout)

    def forward(self, mv: Tensor, s: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        mv, s = self.dropout(*self.bilinear(mv, s, reference))
        mv, s = self.dropout(*self.linear(*self.gate(mv, s)))
        return mv, s
