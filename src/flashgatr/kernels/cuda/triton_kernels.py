"""Triton kernels on rows: norm, features, small attention, bilinear layer, gate, weights.

Every kernel computes a formula of `functional`, forward or backward, in float32, and writes in
the dtype of its outputs. Sums run in a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import linecache
import types
from typing import Any

import triton
import triton.language as tl

from ...algebra import BLADES, E123, EUCLIDEAN, NULL, POINT, POINT_SIGN
from ...versors import SHIFT
from ..codegen import INTEGERS, REALS, sums
from ..rows import ALIGN, ENTRY, PLACE, ZERO

_FREE = ["T"]  # the number of items is not specialised: all numbers share one compiled kernel

# Triton functions can read globals only if they are constexpr.
_BLADES = tl.constexpr(INTEGERS["BLADES"])
_EUCLIDEAN = tl.constexpr(INTEGERS["EUCLIDEAN"])
_DISTANCES = tl.constexpr(INTEGERS["DISTANCES"])
_TRIVECTOR = tl.constexpr(1 + len(POINT))  # e123 and the point part
_GELU = tl.constexpr(INTEGERS["GELU"])
_RELU = tl.constexpr(INTEGERS["RELU"])
_GELU_SLOPE = tl.constexpr(REALS["GELU_SLOPE"])
_GELU_CUBIC = tl.constexpr(REALS["GELU_CUBIC"])
_GELU_CUBIC_TIMES_3 = tl.constexpr(REALS["GELU_CUBIC_TIMES_3"])
_SQRT_HALF = tl.constexpr(REALS["SQRT_HALF"])
_NORMAL_DENSITY = tl.constexpr(REALS["NORMAL_DENSITY"])
_SCALAR_NORM_EPSILON = tl.constexpr(REALS["SCALAR_NORM_EPSILON"])
_DROPPED = 23 - 10  # bits of a float32 mantissa that TF32 does not have
_TF32_HALF = tl.constexpr(1 << (_DROPPED - 1))
_TF32_MASK = tl.constexpr(-1 << _DROPPED)
_ALIGN = tl.constexpr(ALIGN)
_ENTRY = tl.constexpr(ENTRY)
_ZERO = tl.constexpr(ZERO)


@triton.jit
def _tf32(x):
    """Round to the nearest TF32 number. Tensor cores truncate, which makes products too small."""
    rounded = (x.to(tl.int32, bitcast=True) + _TF32_HALF) & _TF32_MASK
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)


@triton.jit
def _put(at, value, ok, ROUND: tl.constexpr):
    """Store in the dtype of the target. ROUND: round to TF32, as `small_product` expects it."""
    if ROUND:
        value = _tf32(value)
    tl.store(at, value.to(at.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=_FREE)
def norm_forward(
    x_ptr, d_ptr, new_ptr, y_ptr, stat_ptr, T, epsilon,
    C: tl.constexpr, S: tl.constexpr, ONES: tl.constexpr, ROUND: tl.constexpr,
    ITEMS: tl.constexpr, MV: tl.constexpr, SC: tl.constexpr,
):  # fmt: skip
    """new = x + d; y = new / sqrt(max(mean_c <new, new>, epsilon)), scalars: layer norm.

    stat: the inverse norm (negative where it is clamped by epsilon) and the inverse deviation. y
    has ONES extra columns: a one, which makes the bias a row of the next matrix, and zeros.
    """
    F: tl.constexpr = S + _BLADES * C
    t = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    ok = t < T
    col = tl.arange(0, MV)
    at = t[:, None] * F + S + col[None, :]
    y_at = t[:, None] * (F + ONES) + S + col[None, :]
    inside = ok[:, None] & (col < _BLADES * C)[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    x += tl.load(d_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(new_ptr + at, x, mask=inside)
    squared = tl.sum(tl.where((col < _EUCLIDEAN * C)[None, :], x * x, 0.0), axis=1) / C
    r = 1.0 / tl.sqrt(tl.maximum(squared, epsilon))
    _put(y_ptr + y_at, x * r[:, None], inside, ROUND)
    one = tl.arange(0, ONES)[None, :]
    one_at = y_ptr + t[:, None] * (F + ONES) + F + one
    tl.store(one_at, tl.where(one == 0, 1.0, 0.0).to(y_ptr.dtype.element_ty), mask=ok[:, None])
    tl.store(stat_ptr + 2 * t, tl.where(squared > epsilon, r, -r), mask=ok)
    if S > 0:
        col_s = tl.arange(0, SC)
        at_s = t[:, None] * F + col_s[None, :]
        inside_s = ok[:, None] & (col_s < S)[None, :]
        s = tl.load(x_ptr + at_s, mask=inside_s, other=0.0)
        s += tl.load(d_ptr + at_s, mask=inside_s, other=0.0).to(tl.float32)
        tl.store(new_ptr + at_s, s, mask=inside_s)
        mean = tl.sum(s, axis=1) / S
        s = tl.where(inside_s, s - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(s * s, axis=1) / S + _SCALAR_NORM_EPSILON)
        y_at_s = t[:, None] * (F + ONES) + col_s[None, :]
        _put(y_ptr + y_at_s, s * rstd[:, None], inside_s, ROUND)
        tl.store(stat_ptr + 2 * t + 1, rstd, mask=ok)


@triton.jit(do_not_specialize=_FREE)
def norm_backward(
    gx_ptr, gy_ptr, y_ptr, stat_ptr, out_ptr, low_ptr, T,
    C: tl.constexpr, S: tl.constexpr, ONES: tl.constexpr, ROUND: tl.constexpr, HAS_GX: tl.constexpr,
    HAS_LOW: tl.constexpr, ITEMS: tl.constexpr, MV: tl.constexpr, SC: tl.constexpr,
):  # fmt: skip
    """Gradient of x from those of new and y; `low` is a copy in the dtype of d, perhaps rounded."""
    F: tl.constexpr = S + _BLADES * C
    t = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    ok = t < T
    col = tl.arange(0, MV)
    at = t[:, None] * F + S + col[None, :]
    inside = ok[:, None] & (col < _BLADES * C)[None, :]
    y_at = t[:, None] * (F + ONES) + S + col[None, :]
    y = tl.load(y_ptr + y_at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gy_ptr + y_at, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(stat_ptr + 2 * t, mask=ok, other=0.0)
    dot = tl.where(r > 0, tl.sum(g * y, axis=1) / C, 0.0)
    g = tl.abs(r)[:, None] * (g - tl.where((col < _EUCLIDEAN * C)[None, :], y * dot[:, None], 0.0))
    if HAS_GX:
        g += tl.load(gx_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, g, mask=inside)
    if HAS_LOW:
        _put(low_ptr + at, g, inside, ROUND)
    if S > 0:
        col_s = tl.arange(0, SC)
        at_s = t[:, None] * F + col_s[None, :]
        inside_s = ok[:, None] & (col_s < S)[None, :]
        y_at_s = t[:, None] * (F + ONES) + col_s[None, :]
        s = tl.load(y_ptr + y_at_s, mask=inside_s, other=0.0).to(tl.float32)
        h = tl.load(gy_ptr + y_at_s, mask=inside_s, other=0.0).to(tl.float32)
        rstd = tl.load(stat_ptr + 2 * t + 1, mask=ok, other=0.0)
        mean = tl.sum(h, axis=1) / S
        along = tl.sum(h * s, axis=1) / S
        h = rstd[:, None] * (h - mean[:, None] - s * along[:, None])
        if HAS_GX:
            h += tl.load(gx_ptr + at_s, mask=inside_s, other=0.0)
        tl.store(out_ptr + at_s, h, mask=inside_s)
        if HAS_LOW:
            _put(low_ptr + at_s, h, inside_s, ROUND)


@triton.jit
def _trivector(base, W0: tl.constexpr, CM: tl.constexpr, c, inside, epsilon):
    """Weight w, point part p0, p1, p2, and the factor omega that brings the weight close to one."""
    w = tl.load(base + W0 + c, mask=inside, other=0.0).to(tl.float32)
    p0 = tl.load(base + W0 + CM + c, mask=inside, other=0.0).to(tl.float32)
    p1 = tl.load(base + W0 + 2 * CM + c, mask=inside, other=0.0).to(tl.float32)
    p2 = tl.load(base + W0 + 3 * CM + c, mask=inside, other=0.0).to(tl.float32)
    omega = w / (w * w + epsilon)
    return w, p0, p1, p2, omega


@triton.jit
def _pairs(base, rotary_ptr, t, c, pair, SH: tl.constexpr):
    """Channels c and c + SH/2 of a head's scalars, and the cosine and sine that rotate them."""
    HALF: tl.constexpr = SH // 2
    x0 = tl.load(base + c, mask=pair, other=0.0).to(tl.float32)
    x1 = tl.load(base + HALF + c, mask=pair, other=0.0).to(tl.float32)
    cosine = tl.load(rotary_ptr + t * SH + c, mask=pair, other=0.0)
    sine = tl.load(rotary_ptr + t * SH + HALF + c, mask=pair, other=0.0)
    return x0, x1, cosine, sine


@triton.jit(do_not_specialize=_FREE)
def features_forward(
    raw_ptr, q_ptr, k_ptr, v_ptr, rotary_ptr, alpha_ptr, beta_ptr, gamma_ptr, T, epsilon,
    R: tl.constexpr, K_AT: tl.constexpr, V_AT: tl.constexpr,
    H: tl.constexpr, HK: tl.constexpr, CM: tl.constexpr, SH: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, AWARE: tl.constexpr,
    HAS_ALPHA: tl.constexpr, HAS_BETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    ITEMS: tl.constexpr, PLAIN: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    PAIRS: tl.constexpr, HAS_ROTARY: tl.constexpr,
):  # fmt: skip
    """Features of one head of q or k, or a copy of one head of v, for some items.

    The scalars are rotated by the cosines and sines in `rotary` (T, SH).
    """
    # The first W0 columns are features already.
    W0: tl.constexpr = WIDTH - _TRIVECTOR * CM if AWARE else WIDTH
    t = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    ok = (t < T)[:, None]
    head = tl.program_id(1)
    if head >= H + HK:
        v_head = head - H - HK
        place = tl.arange(0, VALUES)[None, :]
        valid = ok & (place < DV)
        value = tl.load(
            raw_ptr + t[:, None] * R + V_AT + v_head * DV + place, mask=valid, other=0.0
        )
        tl.store(v_ptr + (t[:, None] * HK + v_head) * DV + place, value, mask=valid)
    else:
        is_query = head < H
        col = tl.arange(0, PLAIN)[None, :]
        if is_query:
            base = raw_ptr + t[:, None] * R + head * WIDTH
            out = q_ptr + (t[:, None] * H + head) * D
        else:
            base = raw_ptr + t[:, None] * R + K_AT + (head - H) * WIDTH
            out = k_ptr + (t[:, None] * HK + head - H) * D
        x = tl.load(base + col, mask=ok & (col < W0), other=0.0).to(tl.float32)
        if is_query:
            if HAS_ALPHA:
                x = tl.where(col >= SH, x * tl.exp(tl.load(alpha_ptr + head)), x)
            if HAS_GAMMA:
                x = tl.where(col < SH, x * tl.exp(tl.load(gamma_ptr + head)), x)
        if HAS_ROTARY:
            tl.store(out + col, x.to(q_ptr.dtype.element_ty), mask=ok & (col >= SH) & (col < W0))
            c = tl.arange(0, PAIRS)[None, :]
            pair = ok & (c < SH // 2)
            x0, x1, cosine, sine = _pairs(base, rotary_ptr, t[:, None], c, pair, SH)
            if is_query:  # noqa: SIM102 (the inner condition is known to the compiler)
                if HAS_GAMMA:
                    gamma = tl.exp(tl.load(gamma_ptr + head))
                    x0, x1 = x0 * gamma, x1 * gamma
            x0, x1 = x0 * cosine - x1 * sine, x1 * cosine + x0 * sine
            tl.store(out + c, x0.to(q_ptr.dtype.element_ty), mask=pair)
            tl.store(out + SH // 2 + c, x1.to(q_ptr.dtype.element_ty), mask=pair)
        else:
            tl.store(out + col, x.to(q_ptr.dtype.element_ty), mask=ok & (col < W0))
        USED: tl.constexpr = W0 + _DISTANCES * CM if AWARE else W0
        if D > USED:
            rest = tl.arange(0, _ALIGN)[None, :]
            zero = tl.zeros([ITEMS, _ALIGN], tl.float32).to(q_ptr.dtype.element_ty)
            tl.store(out + USED + rest, zero, mask=ok & (USED + rest < D))
        if AWARE:
            c = tl.arange(0, CHANNELS)[None, :]
            inside = ok & (c < CM)
            w, p0, p1, p2, omega = _trivector(base, W0, CM, c, inside, epsilon)
            w, p0, p1, p2 = w * omega, p0 * omega, p1 * omega, p2 * omega
            square = p0 * p0 + p1 * p1 + p2 * p2
            if is_query:
                f0, f1, f2, f3, f4 = w * w, square, w * p0, w * p1, w * p2
                if HAS_BETA:
                    beta = tl.exp(tl.load(beta_ptr + head * CM + c, mask=c < CM, other=0.0))
                    f0, f1, f2, f3, f4 = f0 * beta, f1 * beta, f2 * beta, f3 * beta, f4 * beta
            else:
                f0, f1, f2, f3, f4 = -square, -w * w, 2 * w * p0, 2 * w * p1, 2 * w * p2
            out += W0 + c
            tl.store(out, f0.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(out + CM, f1.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(out + 2 * CM, f2.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(out + 3 * CM, f3.to(q_ptr.dtype.element_ty), mask=inside)
            tl.store(out + 4 * CM, f4.to(q_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_FREE)
def features_backward(
    raw_ptr, gq_ptr, gk_ptr, gv_ptr, graw_ptr, rotary_ptr, alpha_ptr, beta_ptr, gamma_ptr, part_ptr,
    T, epsilon,
    R: tl.constexpr, K_AT: tl.constexpr, V_AT: tl.constexpr,
    H: tl.constexpr, HK: tl.constexpr, CM: tl.constexpr, SH: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, AWARE: tl.constexpr,
    HAS_ALPHA: tl.constexpr, HAS_BETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    ITEMS: tl.constexpr, PLAIN: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    PAIRS: tl.constexpr, HAS_ROTARY: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Gradient of raw; `part` (programs, H (CM + 2)): of log beta, alpha, gamma, per program."""
    W0: tl.constexpr = WIDTH - _TRIVECTOR * CM if AWARE else WIDTH
    block = tl.program_id(0)
    t = block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    ok = (t < T)[:, None]
    head = tl.program_id(1)
    if head >= H + HK:
        v_head = head - H - HK
        place = tl.arange(0, VALUES)[None, :]
        valid = ok & (place < DV)
        value = tl.load(gv_ptr + (t[:, None] * HK + v_head) * DV + place, mask=valid, other=0.0)
        row = graw_ptr + t[:, None] * R
        _put(row + V_AT + v_head * DV + place, value, valid, ROUND)
        if v_head == 0:
            rest = tl.arange(0, _ALIGN)[None, :]
            zero = tl.zeros([ITEMS, _ALIGN], tl.float32).to(graw_ptr.dtype.element_ty)
            pad_q, pad_k, pad_v = H * WIDTH + rest, K_AT + HK * WIDTH + rest, V_AT + HK * DV + rest
            tl.store(row + pad_q, zero, mask=ok & (pad_q < K_AT))
            tl.store(row + pad_k, zero, mask=ok & (pad_k < V_AT))
            tl.store(row + pad_v, zero, mask=ok & (pad_v < R))
    else:
        is_query = head < H
        col = tl.arange(0, PLAIN)[None, :]
        if is_query:
            at = t[:, None] * R + head * WIDTH
            grad = gq_ptr + (t[:, None] * H + head) * D
        else:
            at = t[:, None] * R + K_AT + (head - H) * WIDTH
            grad = gk_ptr + (t[:, None] * HK + head - H) * D
        g = tl.load(grad + col, mask=ok & (col < W0), other=0.0).to(tl.float32)
        part = part_ptr + block * H * (CM + 2)
        if is_query:
            if HAS_ALPHA or HAS_GAMMA:
                x = tl.load(raw_ptr + at + col, mask=ok & (col < W0), other=0.0).to(tl.float32)
            if HAS_ALPHA:
                alpha = tl.exp(tl.load(alpha_ptr + head))
                g = tl.where(col >= SH, g * alpha, g)
                tl.store(
                    part + H * CM + head,
                    tl.sum(tl.sum(tl.where(col >= SH, g * x, 0.0), axis=1), axis=0),
                )
            if HAS_GAMMA and not HAS_ROTARY:
                gamma = tl.exp(tl.load(gamma_ptr + head))
                g = tl.where(col < SH, g * gamma, g)
                tl.store(
                    part + H * CM + H + head,
                    tl.sum(tl.sum(tl.where(col < SH, g * x, 0.0), axis=1), axis=0),
                )
        if HAS_ROTARY:
            _put(graw_ptr + at + col, g, ok & (col >= SH) & (col < W0), ROUND)
            c = tl.arange(0, PAIRS)[None, :]
            pair = ok & (c < SH // 2)
            g0, g1, cosine, sine = _pairs(grad, rotary_ptr, t[:, None], c, pair, SH)
            g0, g1 = g0 * cosine + g1 * sine, g1 * cosine - g0 * sine
            if is_query:  # noqa: SIM102 (the inner condition is known to the compiler)
                if HAS_GAMMA:
                    gamma = tl.exp(tl.load(gamma_ptr + head))
                    g0, g1 = g0 * gamma, g1 * gamma
                    x0, x1, _, _ = _pairs(raw_ptr + at, rotary_ptr, t[:, None], c, pair, SH)
                    total = tl.sum(tl.sum(g0 * x0 + g1 * x1, axis=1), axis=0)
                    tl.store(part + H * CM + H + head, total)
            _put(graw_ptr + at + c, g0, pair, ROUND)
            _put(graw_ptr + at + SH // 2 + c, g1, pair, ROUND)
        else:
            _put(graw_ptr + at + col, g, ok & (col < W0), ROUND)
        if AWARE:
            c = tl.arange(0, CHANNELS)[None, :]
            inside = ok & (c < CM)
            w, p0, p1, p2, omega = _trivector(raw_ptr + at, W0, CM, c, inside, epsilon)
            grad += W0 + c
            g0 = tl.load(grad, mask=inside, other=0.0).to(tl.float32)
            g1 = tl.load(grad + CM, mask=inside, other=0.0).to(tl.float32)
            g2 = tl.load(grad + 2 * CM, mask=inside, other=0.0).to(tl.float32)
            g3 = tl.load(grad + 3 * CM, mask=inside, other=0.0).to(tl.float32)
            g4 = tl.load(grad + 4 * CM, mask=inside, other=0.0).to(tl.float32)
            W, P0, P1, P2 = w * omega, p0 * omega, p1 * omega, p2 * omega
            if is_query:
                if HAS_BETA:
                    beta = tl.exp(tl.load(beta_ptr + head * CM + c, mask=c < CM, other=0.0))
                    g0, g1, g2, g3, g4 = g0 * beta, g1 * beta, g2 * beta, g3 * beta, g4 * beta
                    square = P0 * P0 + P1 * P1 + P2 * P2
                    total = g0 * W * W + g1 * square + W * (g2 * P0 + g3 * P1 + g4 * P2)
                    channel = tl.arange(0, CHANNELS)
                    tl.store(part + head * CM + channel, tl.sum(total, axis=0), mask=channel < CM)
                gW = 2 * W * g0 + g2 * P0 + g3 * P1 + g4 * P2
                gP0, gP1, gP2 = 2 * P0 * g1 + W * g2, 2 * P1 * g1 + W * g3, 2 * P2 * g1 + W * g4
            else:
                gW = -2 * W * g1 + 2 * (g2 * P0 + g3 * P1 + g4 * P2)
                gP0 = -2 * P0 * g0 + 2 * W * g2
                gP1 = -2 * P1 * g0 + 2 * W * g3
                gP2 = -2 * P2 * g0 + 2 * W * g4
            gomega = gW * w + gP0 * p0 + gP1 * p1 + gP2 * p2
            bottom = w * w + epsilon
            gw = gW * omega + gomega * (epsilon - w * w) / (bottom * bottom)
            out = graw_ptr + at + W0 + c
            _put(out, gw, inside, ROUND)
            _put(out + CM, gP0 * omega, inside, ROUND)
            _put(out + 2 * CM, gP1 * omega, inside, ROUND)
            _put(out + 3 * CM, gP2 * omega, inside, ROUND)


@triton.jit
def _logits(q, k, n, N, scale):
    """Softmax of q k^T * scale over the first N keys; rows past N are not stored by callers."""
    logit = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale
    logit = tl.where((n < N)[None, :], logit, float("-inf"))
    logit = tl.exp(logit - tl.max(logit, axis=1)[:, None])
    return logit / tl.sum(logit, axis=1)[:, None]


@triton.jit(do_not_specialize=["N"])
def small_attention_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, N, step, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ITEMS: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """One head of one set of at most ITEMS items, `step` rows apart."""
    sample, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n, d, e = tl.arange(0, ITEMS), tl.arange(0, DP), tl.arange(0, VP)
    t = ((sample // step * N + n) * step + sample % step)[:, None]
    row = (n < N)[:, None]
    shared = head % HK
    q = tl.load(q_ptr + (t * H + head) * D + d[None, :], mask=row & (d < D)[None, :], other=0.0)
    k = tl.load(k_ptr + (t * HK + shared) * D + d[None, :], mask=row & (d < D)[None, :], other=0.0)
    v = tl.load(
        v_ptr + (t * HK + shared) * DV + e[None, :], mask=row & (e < DV)[None, :], other=0.0
    )
    p = _logits(q.to(tl.float32), k.to(tl.float32), n, N, scale)
    o = tl.sum(p[:, :, None] * v.to(tl.float32)[None, :, :], axis=1)
    at = o_ptr + (t * H + head) * DV + e[None, :]
    _put(at, o, row & (e < DV)[None, :], ROUND)


@triton.jit(do_not_specialize=["N"])
def small_attention_backward(
    q_ptr, k_ptr, v_ptr, go_ptr, gq_ptr, gk_ptr, gv_ptr, N, step, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ITEMS: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr,
):  # fmt: skip
    """Gradients of one key head of one set, and of all query heads that share it."""
    sample, shared = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n, d, e = tl.arange(0, ITEMS), tl.arange(0, DP), tl.arange(0, VP)
    t = ((sample // step * N + n) * step + sample % step)[:, None]
    row_d = (n < N)[:, None] & (d < D)[None, :]
    row_e = (n < N)[:, None] & (e < DV)[None, :]
    k = tl.load(k_ptr + (t * HK + shared) * D + d[None, :], mask=row_d, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + (t * HK + shared) * DV + e[None, :], mask=row_e, other=0.0).to(tl.float32)
    gk = tl.zeros([ITEMS, DP], tl.float32)
    gv = tl.zeros([ITEMS, VP], tl.float32)
    for group in range(H // HK):
        head = shared + group * HK
        at = (t * H + head) * D + d[None, :]
        q = tl.load(q_ptr + at, mask=row_d, other=0.0).to(tl.float32)
        go = tl.load(go_ptr + (t * H + head) * DV + e[None, :], mask=row_e, other=0.0).to(
            tl.float32
        )
        p = _logits(q, k, n, N, scale)
        gp = tl.sum(go[:, None, :] * v[None, :, :], axis=2)
        gs = p * (gp - tl.sum(p * gp, axis=1)[:, None]) * scale
        gq = tl.sum(gs[:, :, None] * k[None, :, :], axis=1)
        tl.store(gq_ptr + at, gq.to(gq_ptr.dtype.element_ty), mask=row_d)
        gk += tl.sum(gs[:, :, None] * q[:, None, :], axis=0)
        gv += tl.sum(p[:, :, None] * go[:, None, :], axis=0)
    at = (t * HK + shared) * D + d[None, :]
    tl.store(gk_ptr + at, gk.to(gk_ptr.dtype.element_ty), mask=row_d)
    at = (t * HK + shared) * DV + e[None, :]
    tl.store(gv_ptr + at, gv.to(gv_ptr.dtype.element_ty), mask=row_e)


@triton.jit
def _gate(x, ACT: tl.constexpr):
    """Value and slope of a multivector's gate."""
    if ACT == _GELU:  # tanh form: x * sigmoid(2 u)
        u = _GELU_SLOPE * (x + _GELU_CUBIC * x * x * x)
        p = 1.0 / (1.0 + tl.exp(-2.0 * u))
        du = _GELU_SLOPE * (1.0 + _GELU_CUBIC_TIMES_3 * x * x)
        return x * p, p + x * 2.0 * p * (1.0 - p) * du
    elif ACT == _RELU:
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    else:
        p = 1.0 / (1.0 + tl.exp(-x))
        return p, p * (1.0 - p)


@triton.jit
def _activate(x, ACT: tl.constexpr):
    """Value and slope of the scalars' activation."""
    if ACT == _GELU:
        p = 0.5 * (1.0 + tl.erf(x * _SQRT_HALF))
        return x * p, p + x * _NORMAL_DENSITY * tl.exp(-0.5 * x * x)
    else:
        return _gate(x, ACT)


@triton.jit
def _write_ones(y_ptr, e, T, F: tl.constexpr, ONES: tl.constexpr):
    """Write a one and zeros after the F columns of row e."""
    for i in tl.static_range(ONES):
        tl.store(y_ptr + e * (F + ONES) + F + i, (0.0 if i else 1.0), mask=e < T)


@triton.jit
def adam(
    p_ptr, g_ptr, m_ptr, v_ptr, lr_ptr, divisor_ptr, skip_ptr, correction_ptr,
    size, beta1, beta2, epsilon, decay, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam's update of flat tensors by gradient / divisor; nothing changes if skip is 1.

    correction: 1 - beta^steps for both betas.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < tl.where(tl.load(skip_ptr) == 0.0, size, 0)
    p = tl.load(p_ptr + i, mask=ok, other=0.0)
    g = tl.load(g_ptr + i, mask=ok, other=0.0) / tl.load(divisor_ptr) + decay * p
    m = tl.load(m_ptr + i, mask=ok, other=0.0)
    v = tl.load(v_ptr + i, mask=ok, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    first = tl.load(correction_ptr).to(tl.float32)
    second = tl.load(correction_ptr + 1).to(tl.float32)
    p -= tl.load(lr_ptr) / first * m / (tl.sqrt(v) / tl.sqrt(second) + epsilon)
    tl.store(p_ptr + i, p, mask=ok)
    tl.store(m_ptr + i, m, mask=ok)
    tl.store(v_ptr + i, v, mask=ok)


@triton.jit(do_not_specialize=["M"])
def small_product(
    a_ptr, b_ptr, bias_ptr, out_ptr, M,
    N: tl.constexpr, K: tl.constexpr, b_row: tl.constexpr, b_column: tl.constexpr,
    HAS_BIAS: tl.constexpr, READY: tl.constexpr, ROUND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = a b (+ bias) for few rows, in TF32: small tiles, which use the whole GPU.

    READY: a and b are already rounded to TF32. Otherwise they are rounded here, which is slower,
    because data can then not go directly from memory to the tensor cores.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a_mask = (m < M)[:, None] & (k < K)[None, :]
        b_mask = (k < K)[:, None] & (n < N)[None, :]
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + k[:, None] * b_row + n[None, :] * b_column, mask=b_mask, other=0.0)
        if not READY:
            a, b = _tf32(a), _tf32(b)
        total = tl.dot(a, b, total, input_precision="tf32")
    if HAS_BIAS:
        total += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    _put(out_ptr + m[:, None] * N + n[None, :], total, (m < M)[:, None] & (n < N)[None, :], ROUND)


@triton.jit
def prepare(
    theta_ptr, table_ptr, factor_ptr, out_ptr, size, ROUND: tl.constexpr, BLOCK: tl.constexpr
):
    """out[e] = factor · parameter, both from the table's entry e. ROUND: round to TF32."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    entry = tl.load(table_ptr + e, mask=ok, other=_ZERO)
    factor = tl.load(factor_ptr + entry % _ENTRY, mask=ok)
    value = tl.load(theta_ptr + entry // _ENTRY, mask=ok & (factor != 0.0), other=0.0)
    _put(out_ptr + e, factor * value, ok, ROUND)


@triton.jit(do_not_specialize=_FREE)
def column_sums(
    g_ptr,
    part_ptr,
    T,
    F: tl.constexpr,
    COLUMNS: tl.constexpr,
    ITEMS: tl.constexpr,
    LOOPS: tl.constexpr,
):
    """part[program, :] = sum over the program's LOOPS x ITEMS items, for COLUMNS columns of g."""
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ITEMS, COLUMNS], tl.float32)
    start = tl.program_id(0).to(tl.int64) * LOOPS * ITEMS
    for i in range(LOOPS):
        t = start + i * ITEMS + tl.arange(0, ITEMS)
        ok = (t < T)[:, None] & (col < F)[None, :]
        total += tl.load(g_ptr + t[:, None] * F + col[None, :], mask=ok, other=0.0).to(tl.float32)
    total = tl.sum(total, axis=0).to(part_ptr.dtype.element_ty)
    tl.store(part_ptr + tl.program_id(0) * F + col, total, mask=col < F)


@triton.jit
def collapse(
    dense_ptr, table_ptr, factor_ptr, out_ptr, size, MOST: tl.constexpr, BLOCK: tl.constexpr
):
    """Gradient of every parameter: the sum of those of the matrix entries that it was copied to."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(MOST):
        at = tl.load(table_ptr + e * MOST + i, mask=ok, other=-1)
        total += tl.load(dense_ptr + at, mask=at >= 0, other=0.0).to(tl.float32)
    factor = tl.load(factor_ptr + e, mask=ok, other=0.0)
    tl.store(out_ptr + e, total * factor, mask=ok)


def _gate_source() -> str:
    """Source of the gate's kernels. All loads come first: a load after a store would wait.

    G channels have gates of their own; if that is half of them, each of the others takes the gate
    of its partner in the first half. The backward kernel processes both together, because the
    gradient of the gate is a sum over both.
    """

    def load(name: str, pointer: str, offset: str = "") -> list[str]:
        return [
            f"{name}{k} = tl.load({pointer} + at{offset} + {k} * C, mask=ok, other=0.0)"
            ".to(tl.float32)"
            for k in range(BLADES)
        ]

    def store(pointer: str, at: str, values: list[str]) -> list[str]:
        return [
            f"_put({pointer} + {at} + {k} * C, {value}, ok, ROUND)"
            for k, value in enumerate(values)
        ]

    def if_odd(lines: list[str]) -> list[str]:
        return ["        if G < C:", *(f"            {line}" for line in lines)]

    def always(lines: list[str]) -> list[str]:
        return [f"        {line}" for line in lines]

    def head(per_item: str) -> list[str]:
        """The beginning of a kernel whose programs process `per_item` elements of each item."""
        return [
            "        C: tl.constexpr, G: tl.constexpr, S: tl.constexpr, ONES: tl.constexpr,",
            "        ACT: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr):",
            f"    F: tl.constexpr = S + {BLADES} * C",
            "    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "    if tl.program_id(1) == 0:",
            f"        ok = e < T * {per_item}",
            f"        at = e // {per_item} * F + S + e % {per_item}",
            f"        y_at = at + e // {per_item} * ONES",
        ]

    def scalars(per_item: str) -> list[str]:
        return [
            "    else:",
            f"        for part in tl.static_range((S + {per_item} - 1) // {per_item}):",
            "            i = e + part * tl.num_programs(0) * BLOCK",
            "            ok = i < T * S",
            "            at = i // S * F + i % S",
            "            x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)",
            "            value, slope = _activate(x, ACT)",
            "            y_at = i // S * (F + ONES) + i % S",
            "            _put(y_ptr + y_at, value, ok, ROUND)",
        ]

    def times_gate(name: str, first: int = 0) -> list[str]:
        return [f"gate * {name}{k}" for k in range(first, BLADES)]

    def dot(x: str, g: str) -> str:
        return " + ".join(f"{x}{k} * {g}{k}" for k in range(BLADES))

    partner = "x_ptr + at - e % C + e % C % G"
    lines = [
        "@triton.jit(do_not_specialize=['T'])",
        "def gate_forward(x_ptr, y_ptr, T,",
        *head("C"),
        *always([*load("x", "x_ptr"), "part = x0"]),
        *if_odd([f"part = tl.load({partner}, mask=ok, other=0.0).to(tl.float32)"]),
        *always(["gate, _ = _gate(part, ACT)", *store("y_ptr", "y_at", times_gate("x"))]),
        "        _write_ones(y_ptr, e, T, F, ONES)",
        *scalars("C"),
        "",
        "@triton.jit(do_not_specialize=['T'])",
        "def gate_backward(x_ptr, gy_ptr, gx_ptr, y_ptr, T,",
        *head("G"),
        *always([*load("x", "x_ptr"), *load("g", "gy_ptr")]),
        *if_odd([*load("u", "x_ptr", " + G"), *load("h", "gy_ptr", " + G")]),
        *always(["gate, slope = _gate(x0, ACT)", f"dot = {dot('x', 'g')}"]),
        *if_odd([f"dot += {dot('u', 'h')}"]),
        *always(store("gx_ptr", "at", ["gate * g0 + slope * dot", *times_gate("g", 1)])),
        *always(store("y_ptr", "y_at", times_gate("x"))),
        *if_odd(store("gx_ptr", "at + G", times_gate("h"))),
        *if_odd(store("y_ptr", "y_at + G", times_gate("u"))),
        "        _write_ones(y_ptr, e, T, F, ONES)",
        *scalars("G"),
        "            g = tl.load(gy_ptr + at, mask=ok, other=0.0).to(tl.float32)",
        "            _put(gx_ptr + at, g * slope, ok, ROUND)",
    ]
    return "\n".join(lines) + "\n"


def _bilinear_source() -> str:
    """Source of the bilinear layer's kernels; their sums come from the algebra's tables."""
    lines = [
        "@triton.jit(do_not_specialize=['T'])",
        "def bilinear_forward(p_ptr, y_ptr, ref_ptr, out_ptr, T,",
        "        C: tl.constexpr, S: tl.constexpr, FY: tl.constexpr, ONES: tl.constexpr,",
        "        ROUND: tl.constexpr, BLOCK: tl.constexpr):",
        "    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        f"    F: tl.constexpr = S + {2 * BLADES} * C + ONES",
        "    if tl.program_id(1) == 1:",
        "        for part in tl.static_range((S + C - 1) // C):",
        "            i = e + part * tl.num_programs(0) * BLOCK",
        "            ok = i < T * S",
        "            s = tl.load(y_ptr + i // S * FY + i % S, mask=ok, other=0.0)",
        "            tl.store(out_ptr + i // S * F + i % S, s, mask=ok)",
        "    else:",
        "        ok = e < T * C",
        "        t = e // C",
        f"        p = p_ptr + t * {4 * BLADES} * C + e % C",
        "        out = out_ptr + t * F + S + e % C",
        "        _write_ones(out_ptr, e, T, F - ONES, ONES)",
    ]

    def load(name: str, pointer: str, offset: int, step: int = 1) -> list[str]:
        return [
            f"        {name}{k} = tl.load({pointer} + {offset} * C + {k * step} * C,"
            " mask=ok, other=0.0).to(tl.float32)"
            for k in range(BLADES)
        ]

    def store(pointer: str, values: list[str], offset: int, step: int = 1) -> list[str]:
        return [
            f"        _put({pointer} + {offset} * C + {k * step} * C, {value}, ok, ROUND)"
            for k, value in enumerate(values)
        ]

    def named(name: str, values: list[str]) -> list[str]:
        return [f"        {name}{k} = {value}" for k, value in enumerate(values)]

    zero = "tl.zeros([BLOCK], tl.float32)"
    for form, part in (("product", 0), ("join", 2)):
        lines += load("x", "p", BLADES * part) + load("y", "p", BLADES * (part + 1))
        values = sums(form, 2, "x", "y")
        if form == "join":
            lines.append("        ref = tl.load(ref_ptr + t, mask=ok, other=0.0)")
            values = [f"ref*({v})" for v in values]
        lines += store("out", values, 0 if form == "product" else 1, 2)
    lines += [
        "",
        "@triton.jit(do_not_specialize=['T'])",
        "def bilinear_backward(p_ptr, y_ptr, ref_ptr, ga_ptr, gp_ptr, out_ptr, gref_ptr, T,",
        "        C: tl.constexpr, S: tl.constexpr, FY: tl.constexpr, ONES: tl.constexpr,",
        "        HAS_GREF: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr):",
        "    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        f"    F: tl.constexpr = S + {2 * BLADES} * C + ONES",
        "    if tl.program_id(1) == 2:",
        "        for part in tl.static_range((S + C - 1) // C):",
        "            i = e + part * tl.num_programs(0) * BLOCK",
        "            ok = i < T * S",
        "            s = tl.load(y_ptr + i // S * FY + i % S, mask=ok, other=0.0)",
        "            tl.store(out_ptr + i // S * F + i % S, s, mask=ok)",
    ]
    for form, part in (("product", 0), ("join", 2)):
        lines += [
            f"    elif tl.program_id(1) == {part // 2}:",
            "        ok = e < T * C",
            "        t = e // C",
            f"        p = p_ptr + t * {4 * BLADES} * C + e % C",
            f"        gp = gp_ptr + t * {4 * BLADES} * C + e % C",
            "        ga = ga_ptr + t * (F - ONES) + S + e % C",
            "        out = out_ptr + t * F + S + e % C",
        ]
        if form == "product":
            lines.append("        _write_ones(out_ptr, e, T, F - ONES, ONES)")
        at = 0 if form == "product" else 1
        lines += load("x", "p", BLADES * part) + load("y", "p", BLADES * (part + 1))
        lines += load("g", "ga", at, 2)
        values = sums(form, 2, "x", "y")
        if form == "join":
            lines.append("        ref = tl.load(ref_ptr + t, mask=ok, other=0.0)")
            lines += named("z", values)
            lines += ["        if HAS_GREF:"]
            dot = "+".join(f"g{k}*z{k}" for k in range(BLADES))
            lines += [f"            tl.store(gref_ptr + e, {dot}, mask=ok)"]
            lines += named("g", [f"ref*g{k}" for k in range(BLADES)])
            values = [f"ref*z{k}" for k in range(BLADES)]
        lines += store("out", values, at, 2)
        for slot, names in ((0, ("y", "g")), (1, ("x", "g"))):
            found = [v if v != "0.0" else zero for v in sums(form, slot, *names)]
            lines += store("gp", found, BLADES * (part + slot))
    return "\n".join(lines) + "\n"


def _frame_source() -> str:
    """Source of the kernels for frames of small sets: find the centres, move there, move back."""
    everything, axes = range(BLADES), range(len(POINT))

    def load(pointer: str, at: str) -> list[str]:
        return [
            f"        x{k} = tl.load({pointer} + {at.format(k=k, p=PLACE[k])}, mask=ok, other=0.0)"
            for k in everything
        ]

    def store(pointer: str, at: str, values: list[str]) -> list[str]:
        return [
            f"        tl.store({pointer} + {at.format(k=k, p=PLACE[k])}, {v}, mask=ok)"
            for k, v in enumerate(values)
        ]

    def moved(by: str, transposed: bool = False) -> list[str]:
        """x translated by a vector, or the transpose of this map applied to x."""
        found = [f"x{k}" for k in everything]
        for axis, (source, sign) in enumerate(SHIFT):
            for k in everything:
                if sign[k]:
                    to, of = (source[k], k) if transposed else (k, source[k])
                    found[to] += f"{'+' if sign[k] > 0 else '-'}{abs(sign[k])}*{by}{axis}*x{of}"
        return found

    def squares(names: list[str], blades: tuple[int, ...]) -> str:
        return "+".join(f"({names[k]})*({names[k]})" for k in blades)

    plain = [f"x{k}" for k in everything]
    signed = [f"{sign}*x{blade}" for blade, sign in zip(POINT, POINT_SIGN, strict=True)]
    element = [
        "    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        f"    F: tl.constexpr = S + {BLADES} * C",
        "    if tl.program_id(1) == 0:",
        "        ok = e < T * C",
        f"        b = center_ptr + e // C // items * {len(axes)}",
        *(f"        c{a} = tl.load(b + {a}, mask=ok, other=0.0)" for a in axes),
        "        row = e // C * F + S + e % C",
    ]

    def scalars(source: str, target: str) -> list[str]:
        return [
            "    else:",
            "        for part in tl.static_range((S + C - 1) // C):",
            "            i = e + part * tl.num_programs(0) * BLOCK",
            "            valid = i < T * S",
            f"            tl.store({target}, tl.load({source}, mask=valid, other=0.0), mask=valid)",
            "",
        ]

    sizes = "C: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr"
    row = "row + {p} * C"
    lines = [
        "@triton.jit(do_not_specialize=['rows'])",
        "def survey(mv_ptr, center_ptr, mean_ptr, rows, noise, ROWS: tl.constexpr):",
        "    sample = tl.program_id(0).to(tl.int64)",
        "    r = tl.arange(0, ROWS)",
        "    ok = r < rows",
        "    if True:",  # for the indentation of `load`
        *load("mv_ptr", f"(sample * rows + r) * {BLADES} + {{k}}"),
        f"    w = x{E123}",
        f"    everything = tl.sum({squares(plain, EUCLIDEAN)}, axis=0)",
        "    mass = tl.sum(w * w, axis=0)",
        "    centred = mass > everything * noise",
        "    safe = tl.where(centred, mass, 1.0)",
        *(
            f"    c{a} = tl.where(centred, tl.sum(w * ({v}), axis=0) / safe, 0.0)"
            for a, v in enumerate(signed)
        ),
        f"    before = tl.sum({squares(plain, NULL)}, axis=0)",
        *(f"    d{a} = -c{a}" for a in axes),
        f"    after = tl.sum({squares(moved('d'), NULL)}, axis=0)",
        *(
            f"    tl.store(center_ptr + sample * {len(axes)} + {a},"
            f" tl.where(after <= before, c{a}, 0.0))"
            for a in axes
        ),
        "    tl.store(mean_ptr + sample, tl.sum(w, axis=0) / rows)",
        "",
        "@triton.jit(do_not_specialize=['T', 'items'])",
        f"def enter(mv_ptr, s_ptr, center_ptr, out_ptr, T, items, {sizes}):",
        *element,
        *(f"        d{a} = -c{a}" for a in axes),
        *load("mv_ptr", f"e * {BLADES} + {{k}}"),
        *store("out_ptr", row, moved("d")),
        *scalars("s_ptr + i", "out_ptr + i // S * F + i % S"),
        "@triton.jit(do_not_specialize=['T', 'items'])",
        f"def leave(x_ptr, center_ptr, mv_ptr, s_ptr, T, items, {sizes}):",
        *element,
        *load("x_ptr", row),
        *store("mv_ptr", f"e * {BLADES} + {{k}}", moved("c")),
        *scalars("x_ptr + i // S * F + i % S", "s_ptr + i"),
        "@triton.jit(do_not_specialize=['T', 'items'])",
        f"def leave_backward(g_ptr, gs_ptr, center_ptr, out_ptr, T, items, {sizes}):",
        *element,
        *load("g_ptr", f"e * {BLADES} + {{k}}"),
        *store("out_ptr", row, moved("c", transposed=True)),
        *scalars("gs_ptr + i", "out_ptr + i // S * F + i % S"),
    ]
    return "\n".join(lines) + "\n"


def _compile(title: str, source: str) -> Any:
    """Make a module from source text, which Triton can read again."""
    name = f"<{__name__} {title}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType(f"{__name__}_{title}")
    module.__dict__.update(
        triton=triton, tl=tl, _put=_put, _write_ones=_write_ones, _gate=_gate, _activate=_activate
    )
    exec(compile(source, name, "exec"), module.__dict__)  # our own text, from our own tables
    return module


_gates, _bilinear, _frames = (
    _compile(title, source())
    for title, source in (
        ("gate", _gate_source), ("bilinear", _bilinear_source), ("frame", _frame_source),
    )
)  # fmt: skip
gate_forward, gate_backward = _gates.gate_forward, _gates.gate_backward
bilinear_forward, bilinear_backward = _bilinear.bilinear_forward, _bilinear.bilinear_backward
survey, enter = _frames.survey, _frames.enter
leave, leave_backward = _frames.leave, _frames.leave_backward
