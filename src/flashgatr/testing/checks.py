"""Check the symmetries of a network.

    error = max |f(ρ_u x) - ρ_u f(x)| / max |f(x)|      over random motions u

`f` takes multivectors (..., N, C, 16), and scalars if it uses any, and returns multivectors or a
pair (mv, s). A module is copied, switched to evaluation mode and converted to `dtype`; the default,
float64, measures the architecture rather than rounding. Every `assert_` takes the arguments of the
corresponding error function and a `tolerance`; it returns the error, or raises an AssertionError
that states it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import versors as group_elements
from ..algebra import BLADES
from ..config import GATrConfig
from ..precision import check_tensor
from ..versors import Kind, to_matrix

Network = Callable[..., Any]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}
"""Default tolerance of every `assert_`; other dtypes need an explicit `tolerance`."""


def equivariance_error(
    f: Network,
    mv: Tensor,
    s: Tensor | None = None,
    *,
    group: Kind = "E(3)",
    draws: int = 8,
    distance: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    parity: tuple[str, str] | None = None,
    **options: Any,
) -> float:
    """Largest relative violation of f(u x) = u f(x) over random motions of the given kind.

    parity: types of the channels in and out, such as ("oe", "o"). None: those of the network; even
        channels if it has none.
    distance: standard deviation of the shifts. Further keyword arguments are passed to `f`; a
    multivector `join_reference` is moved with the input. Motions are applied in float64, and the
    result is rounded to `dtype`.
    """
    types_in, types_out = _types(f, parity)
    f, (mv, s) = _prepare(f, mv, s, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        plain = _call(f, mv, s, **_cast(options, dtype))
        if plain[0].shape[-1:] != (BLADES,):
            raise ValueError(
                f"expected multivectors (..., {BLADES}) from the network, got "
                f"{tuple(plain[0].shape)}; check functions of coordinates with "
                "point_equivariance_error"
            )
        return max(
            _distance(
                _call(f, _move(u, mv, types_in), s, **_cast(_moved(u, options), dtype)),
                (_move(u, plain[0], types_out), plain[1]),
            )
            for u in group_elements.sample(
                draws, kind=group, distance=distance, generator=generator
            )
        )


def point_equivariance_error(
    f: Callable[[Tensor], Tensor],
    points: Tensor,
    *,
    group: Kind = "SE(3)",
    draws: int = 8,
    distance: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> float:
    """As `equivariance_error`, for a function f that maps points (..., 3) to points (..., 3)."""
    check_tensor("points", points)
    _check_points(points, "points")
    f, (points, _) = _prepare(f, points, None, dtype)
    generator = torch.Generator().manual_seed(seed)

    def move(matrix: Tensor, x: Tensor) -> Tensor:
        moved = x.double() @ matrix[:3, :3].mT + matrix[:3, 3]
        return moved.to(x.dtype)

    with torch.no_grad():
        plain = f(points)
        check_tensor("the output", plain)
        _check_points(plain, "the output")
        motions = group_elements.sample(draws, kind=group, distance=distance, generator=generator)
        return max(_distance((f(move(m, points)),), (move(m, plain),)) for m in to_matrix(motions))


def permutation_error(
    f: Network,
    mv: Tensor,
    s: Tensor | None = None,
    *,
    draws: int = 4,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **options: Any,
) -> float:
    """Largest relative violation of f(P x) = P f(x) over random orders of the items.

    A `mask` is permuted with the items; other keyword arguments are passed to `f` unchanged.
    """
    _refuse_attention_mask(options)
    f, (mv, s) = _prepare(f, mv, s, dtype)
    if mv.shape[-3] < 2:
        raise ValueError(
            f"the order of items needs at least two of them, got mv of shape {tuple(mv.shape)}"
        )
    generator = torch.Generator().manual_seed(seed)

    def shuffle(x: tuple[Tensor, Tensor], order: Tensor) -> tuple[Tensor, Tensor]:
        return x[0].index_select(-3, order), x[1].index_select(-2, order)

    scalars = _no_scalars(mv) if s is None else s

    def error(order: Tensor) -> float:
        moved_mv, moved_s = shuffle((mv, scalars), order)
        given = _masked(options, lambda mask: mask.index_select(-1, order))
        out = _call(f, moved_mv, None if s is None else moved_s, **_cast(given, dtype))
        return _distance(out, shuffle(plain, order))

    with torch.no_grad():
        plain = _call(f, mv, s, **_cast(options, dtype))
        orders = (torch.randperm(mv.shape[-3], generator=generator) for _ in range(draws))
        return max(error(order.to(mv.device)) for order in orders)


def batch_error(
    f: Network,
    mv: Tensor,
    s: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> float:
    """Largest relative difference between a sample in its batch (B, N, C, 16) and the sample alone.

    Each sample takes its row of a `mask`; other keyword arguments are passed to `f` unchanged.
    """
    _refuse_attention_mask(options)
    f, (mv, s) = _prepare(f, mv, s, dtype)
    if mv.dim() < 4 or mv.shape[0] < 2:
        raise ValueError(
            "expected a batch of at least two samples, mv of shape (B, N, C, 16), got "
            f"{tuple(mv.shape)}"
        )

    def alone(b: int) -> tuple[Tensor, Tensor]:
        given = _masked(options, lambda mask: mask[b])
        return _call(f, mv[b], None if s is None else s[b], **_cast(given, dtype))

    with torch.no_grad():
        together = _call(f, mv, s, **_cast(options, dtype))
        return max(
            _distance(alone(b), (together[0][b], together[1][b])) for b in range(mv.shape[0])
        )


def padding_error(
    f: Network,
    mv: Tensor,
    s: Tensor | None = None,
    *,
    padding: int = 3,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> float:
    """Largest relative change of the output when `padding` masked-out items of NaN are appended.

    A `mask` of the items themselves is kept and extended.
    """
    _refuse_attention_mask(options)
    f, (mv, s) = _prepare(f, mv, s, dtype)
    items = mv.shape[-3]
    valid = options.get("mask")
    if valid is None:
        valid = torch.ones(mv.shape[:-2], dtype=torch.bool, device=mv.device)
    longer = {**options, "mask": nn.functional.pad(valid, (0, padding))}

    def pad(x: Tensor, dim: int) -> Tensor:
        shape = list(x.shape)
        shape[dim] = padding
        return torch.cat([x, x.new_full(shape, torch.nan)], dim=dim)

    with torch.no_grad():
        plain = _call(f, mv, s, **_cast(options, dtype))
        padded_s = None if s is None else pad(s, -2)
        out = _call(f, pad(mv, -3), padded_s, **_cast(longer, dtype))
        return _distance((out[0][..., :items, :, :], out[1][..., :items, :]), plain)


def assert_equivariant(f: Network, mv: Tensor, s: Tensor | None = None, **options: Any) -> float:
    """Fail unless `equivariance_error(f, mv, s, ...)` is within `tolerance`; returns the error.

    >>> from flashgatr import GATr, embed_point
    >>> net = GATr(in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=4, hidden_s_channels=4,
    ...            num_blocks=1, num_heads=2)
    >>> assert_equivariant(net, embed_point(torch.randn(6, 1, 3))) < 1e-10
    True
    """
    what = f"{options.get('group', 'E(3)')}-equivariant"
    return _require(equivariance_error, what, f, mv, s, **options)


def assert_permutation_equivariant(
    f: Network, mv: Tensor, s: Tensor | None = None, **options: Any
) -> float:
    """Fail unless `permutation_error(f, mv, s, ...)` is within `tolerance`; returns the error."""
    return _require(permutation_error, "permutation-equivariant", f, mv, s, **options)


def assert_batch_independent(
    f: Network, mv: Tensor, s: Tensor | None = None, **options: Any
) -> float:
    """Fail unless `batch_error(f, mv, s, ...)` is within `tolerance`; returns the error."""
    return _require(batch_error, "independent of its batch", f, mv, s, **options)


def assert_padding_invariant(
    f: Network, mv: Tensor, s: Tensor | None = None, **options: Any
) -> float:
    """Fail unless `padding_error(f, mv, s, ...)` is within `tolerance`; returns the error."""
    return _require(padding_error, "invariant to padding", f, mv, s, **options)


def _prepare(
    f: Any, mv: Tensor, s: Tensor | None, dtype: torch.dtype
) -> tuple[Any, tuple[Tensor, Tensor | None]]:
    check_tensor("mv", mv)
    if s is not None:
        check_tensor("s", s)
    if isinstance(f, nn.Module):
        f = copy.deepcopy(f).eval().to(dtype)
    return f, (mv.detach().to(dtype), None if s is None else s.detach().to(dtype))


def _types(f: Any, parity: Any) -> tuple[str | None, str | None]:
    """Types of the channels in and out: the given ones, or those of the network."""
    if parity is None:
        config = getattr(f, "config", None)
        if not isinstance(config, GATrConfig):
            return None, None
        return config.in_mv_parity, config.out_mv_parity
    if not isinstance(parity, (tuple, list)) or len(parity) != 2:
        raise ValueError(
            'parity must be a pair, the types of the channels in and out, such as ("oe", "o"), got '
            f"{parity!r}"
        )
    return parity[0], parity[1]


def _check_points(x: Tensor, name: str) -> None:
    if x.shape[-1:] != (3,):
        raise ValueError(
            f"{name} must have shape (..., 3), got {tuple(x.shape)}; for multivectors use "
            "equivariance_error"
        )


def _call(f: Network, mv: Tensor, s: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    out = f(mv, **options) if s is None else f(mv, s, **options)
    if isinstance(out, Tensor):
        return out, _no_scalars(out)
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[0], Tensor):
        return out[0], _no_scalars(out[0]) if out[1] is None else out[1]
    raise TypeError(
        "expected multivectors or a pair (mv, s) from the network, got "
        f"{type(out).__name__}; wrap it in a function that returns one of these"
    )


def _no_scalars(mv: Tensor) -> Tensor:
    return mv.new_zeros(*mv.shape[:-2], 0)


def _move(versor: Tensor, mv: Tensor, parity: str | None = None) -> Tensor:
    return group_elements.apply(versor.to(mv.device), mv.double(), parity).to(mv.dtype)


def _moved(versor: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    reference = options.get("join_reference")
    if isinstance(reference, Tensor):
        return {**options, "join_reference": _move(versor, reference)}
    return options


def _masked(options: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The options with `change` applied to their mask, if they have one."""
    mask = options.get("mask")
    return options if mask is None else {**options, "mask": change(mask)}


def _refuse_attention_mask(options: dict[str, Any]) -> None:
    if options.get("attention_mask") is not None:
        raise ValueError(
            "attention_mask belongs to one order and number of items, which this check changes; "
            "check a function of mv and s that makes its own"
        )


def _cast(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }


def _distance(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """Largest difference divided by the largest value, over the parts of the output (multivectors
    and scalars); NaN counts as infinite.
    """
    return max(_relative(a, b) for a, b in zip(found, expected, strict=True))


def _relative(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise AssertionError(
            f"the output has shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
        )
    if not found.numel():
        return 0.0
    error = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return float(error) if bool(error.isfinite()) else float("inf")


def _require(
    measure: Callable[..., float],
    what: str,
    *inputs: Any,
    tolerance: float | None = None,
    **options: Any,
) -> float:
    dtype = options.get("dtype", torch.float64)
    limit = TOLERANCE.get(dtype) if tolerance is None else tolerance
    if limit is None:
        raise ValueError(f"there is no default tolerance for {dtype}; pass one with tolerance=...")
    error = measure(*inputs, **options)
    if not error <= limit:
        raise AssertionError(
            f"the network is not {what}: relative error {error:.2e}, allowed {limit:.0e}"
        )
    return error
