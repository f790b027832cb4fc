"""C kernels on rows, compiled when first needed.

The source is below (its bilinear sums come from the algebra's tables), free of torch's headers, so that a C compiler
builds it in about a second; it is built anew for every process, into a folder that is gone at once, and
called through ctypes, which lets go of Python's lock. Without a compiler, `library` is None and the plain layers serve.

Memory: x[f * T + t], items innermost; every function works on items t0 to t1, so that threads can share one call.
Arrays named q, k, v, o, and what belongs to them, are rows: items outermost.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ..algebra import BLADES
from .terms import sums

_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_TIMEOUT = 120
_SERIAL = 1 << 17
"""Below so many numbers a call is not worth sharing between threads."""

_SOURCE = r"""
#include <math.h>
#include <stddef.h>
#define BLOCK 32
typedef ptrdiff_t n;
#define EACH for (n b = t0; b < t1; b += BLOCK) { const n w = t1 - b < BLOCK ? t1 - b : BLOCK;
#define LANES for (n i = 0; i < w; i++)

void NAME(norm_forward)(n t0, n t1, n T, n C, n S, double epsilon, const real *restrict x, const real *restrict d,
                        real *restrict z, real *restrict y, real *restrict stat) {
  EACH
    real sum[BLOCK] = {0}, dev[BLOCK] = {0}, mean[BLOCK] = {0};
    for (n f = 0; f < S + 16 * C; f++) {
      const n at = f * T + b;
      LANES z[at + i] = x[at + i] + d[at + i];
      if (f < S) LANES mean[i] += z[at + i];
      else if (f < S + 8 * C) LANES sum[i] += z[at + i] * z[at + i];
    }
    LANES mean[i] /= S ? S : 1;
    for (n f = 0; f < S; f++) LANES { const real v = z[f * T + b + i] - mean[i]; dev[i] += v * v; }
    LANES {
      const real m = sum[i] / C;
      sum[i] = 1 / SQRT(m > epsilon ? m : (real)epsilon);
      if (m != m) sum[i] = m;
      stat[2 * (b + i)] = m > epsilon ? sum[i] : -sum[i];
      dev[i] = 1 / SQRT(dev[i] / (S ? S : 1) + (real)1e-5);
      stat[2 * (b + i) + 1] = dev[i];
    }
    for (n f = 0; f < S; f++) LANES y[f * T + b + i] = (z[f * T + b + i] - mean[i]) * dev[i];
    for (n f = S; f < S + 16 * C; f++) LANES y[f * T + b + i] = z[f * T + b + i] * sum[i];
  }
}

void NAME(norm_backward)(n t0, n t1, n T, n C, n S, const real *restrict gz, const real *restrict gy,
                         const real *restrict y, const real *restrict stat, real *restrict out) {
  EACH
    real dot[BLOCK] = {0}, mean[BLOCK] = {0}, along[BLOCK] = {0}, r[BLOCK], q[BLOCK];
    for (n f = 0; f < S; f++) LANES {
      const n at = f * T + b + i;
      mean[i] += gy[at]; along[i] += gy[at] * y[at];
    }
    for (n f = S; f < S + 16 * C; f++) LANES { const n at = f * T + b + i; dot[i] += gy[at] * y[at]; }
    LANES {
      r[i] = stat[2 * (b + i)]; q[i] = stat[2 * (b + i) + 1];
      dot[i] = r[i] < 0 ? 0 : dot[i] / C;
      r[i] = r[i] < 0 ? -r[i] : r[i];
      mean[i] /= S ? S : 1; along[i] /= S ? S : 1;
    }
    for (n f = 0; f < S + 16 * C; f++) {
      const n at = f * T + b;
      if (f < S) LANES out[at + i] = q[i] * (gy[at + i] - mean[i] - y[at + i] * along[i]);
      else if (f < S + 8 * C) LANES out[at + i] = r[i] * (gy[at + i] - y[at + i] * dot[i]);
      else LANES out[at + i] = r[i] * gy[at + i];
      if (gz) LANES out[at + i] += gz[at + i];
    }
  }
}

/* One head of queries or keys: rows of D features from columns s (SH of them) and mv (blades 16, CALL channels). */
static void NAME(head)(n b, n w, n T, n CALL, n CM, n SH, n D, n AWARE, double epsilon, int query,
                       real alpha, const real *beta, real gamma, const real *s, const real *mv, real *out, n stride) {
  real f[256 * BLOCK];
  n at = 0;
  for (n j = 0; j < SH; j++, at++) LANES f[at * BLOCK + i] = gamma * s[j * T + b + i];
  for (n p = 0; p < (AWARE ? 7 : 8); p++) for (n c = 0; c < CM; c++, at++)
    LANES f[at * BLOCK + i] = alpha * mv[(p * CALL + c) * T + b + i];
  if (AWARE) {
    for (n c = 0; c < CM; c++, at++) LANES {
      const n o = c * T + b + i;
      const real w0 = mv[7 * CALL * T + o], om = w0 / (w0 * w0 + (real)epsilon), W = w0 * om;
      const real x = mv[PX * CALL * T + o] * om, y = mv[PY * CALL * T + o] * om, z = mv[PZ * CALL * T + o] * om;
      const real k = beta ? beta[c] : 1, sq = x * x + y * y + z * z;
      real *g = f + at * BLOCK + i;
      const n step = CM * BLOCK;
      if (query) { g[0] = k * W * W; g[step] = k * sq; g[2 * step] = k * W * x; g[3 * step] = k * W * y; g[4 * step] = k * W * z; }
      else { g[0] = -sq; g[step] = -W * W; g[2 * step] = 2 * W * x; g[3 * step] = 2 * W * y; g[4 * step] = 2 * W * z; }
    }
    at += 4 * CM;
  }
  LANES {
    real *row = out + (b + i) * stride;
    for (n j = 0; j < at; j++) row[j] = f[j * BLOCK + i];
    for (n j = at; j < D; j++) row[j] = 0;
  }
}

void NAME(features_forward)(n t0, n t1, n T, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon,
                            const real *alpha, const real *beta, const real *gamma, const real *restrict raw,
                            real *restrict q, real *restrict k, real *restrict v) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, V = SH + 16 * CM;
  const real *mv = raw + SALL * T;
  EACH
    for (n h = 0; h < H; h++)
      NAME(head)(b, w, T, CALL, CM, SH, D, AWARE, epsilon, 1, alpha ? alpha[h] : 1, beta ? beta + h * CM : 0,
                 gamma ? gamma[h] : 1, raw + h * SH * T, mv + h * CM * T, q + h * D, H * D);
    for (n h = 0; h < HK; h++) {
      NAME(head)(b, w, T, CALL, CM, SH, D, AWARE, epsilon, 0, 1, 0, 1, raw + (H + h) * SH * T,
                 mv + (H + h) * CM * T, k + h * D, HK * D);
      const real *s = raw + (H + HK + h) * SH * T, *m = mv + (H + HK + h) * CM * T;
      LANES {
        real *row = v + ((b + i) * HK + h) * V;
        for (n j = 0; j < SH; j++) row[j] = s[j * T + b + i];
        for (n p = 0; p < 16; p++) for (n c = 0; c < CM; c++) row[SH + p * CM + c] = m[(p * CALL + c) * T + b + i];
      }
    }
  }
}

/* `part` (blocks of BLOCK items, H, CM + 2): gradients of log beta, log alpha, log gamma. */
void NAME(features_backward)(n t0, n t1, n T, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon,
                             const real *alpha, const real *beta, const real *gamma, const real *restrict raw,
                             const real *restrict gq, const real *restrict gk, const real *restrict gv,
                             real *restrict out, real *restrict part) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, V = SH + 16 * CM, PLAIN = AWARE ? 7 : 8;
  EACH
    for (n h = 0; h < H + HK; h++) {
      const int query = h < H;
      const real *grad = query ? gq + h * D : gk + (h - H) * D, *m = raw + (SALL + h * CM) * T, *s = raw + h * SH * T;
      const n stride = (query ? H : HK) * D;
      real *om = out + (SALL + h * CM) * T, *os = out + h * SH * T;
      const real a = query && alpha ? alpha[h] : 1, ga = query && gamma ? gamma[h] : 1;
      real *sums = part + ((b / BLOCK) * H + h) * (CM + 2);
      real total = 0;
      for (n j = 0; j < SH; j++) LANES {
        const real g = ga * grad[(b + i) * stride + j];
        os[j * T + b + i] = g; total += g * s[j * T + b + i];
      }
      if (query) sums[CM + 1] = total;
      total = 0;
      for (n p = 0; p < PLAIN; p++) for (n c = 0; c < CM; c++) LANES {
        const real g = a * grad[(b + i) * stride + SH + p * CM + c];
        const n at = (p * CALL + c) * T + b + i;
        om[at] = g; total += g * m[at];
      }
      if (query) sums[CM] = total;
      for (n p = PLAIN; p < 16; p++) if (p > 7 || !AWARE) for (n c = 0; c < CM; c++)
        LANES om[(p * CALL + c) * T + b + i] = 0;
      if (AWARE) for (n c = 0; c < CM; c++) {
        const real kb = query && beta ? beta[h * CM + c] : 1;
        total = 0;
        LANES {
          const n o = c * T + b + i, step = CALL * T;
          const real *g = grad + (b + i) * stride + SH + 7 * CM + c;
          const real g0 = kb * g[0], g1 = kb * g[CM], g2 = kb * g[2 * CM], g3 = kb * g[3 * CM], g4 = kb * g[4 * CM];
          const real w0 = m[7 * step + o], x0 = m[PX * step + o], y0 = m[PY * step + o], z0 = m[PZ * step + o];
          const real bottom = w0 * w0 + (real)epsilon, omega = w0 / bottom;
          const real W = w0 * omega, x = x0 * omega, y = y0 * omega, z = z0 * omega, dot = g2 * x + g3 * y + g4 * z;
          real gW, gx, gy, gz;
          if (query) {
            total += g0 * W * W + g1 * (x * x + y * y + z * z) + W * dot;
            gW = 2 * W * g0 + dot; gx = 2 * x * g1 + W * g2; gy = 2 * y * g1 + W * g3; gz = 2 * z * g1 + W * g4;
          } else {
            gW = 2 * dot - 2 * W * g1;
            gx = 2 * (W * g2 - x * g0); gy = 2 * (W * g3 - y * g0); gz = 2 * (W * g4 - z * g0);
          }
          const real go = gW * w0 + gx * x0 + gy * y0 + gz * z0;
          om[7 * step + o] = gW * omega + go * ((real)epsilon - w0 * w0) / (bottom * bottom);
          om[PX * step + o] = gx * omega; om[PY * step + o] = gy * omega; om[PZ * step + o] = gz * omega;
        }
        if (query) sums[c] = total;
      }
    }
    for (n h = 0; h < HK; h++) {
      real *os = out + (H + HK + h) * SH * T, *om = out + (SALL + (H + HK + h) * CM) * T;
      LANES {
        const real *row = gv + ((b + i) * HK + h) * V;
        for (n j = 0; j < SH; j++) os[j * T + b + i] = row[j];
        for (n p = 0; p < 16; p++) for (n c = 0; c < CM; c++) om[(p * CALL + c) * T + b + i] = row[SH + p * CM + c];
      }
    }
  }
}

/* Sets t0 to t1 of N items each; at most MOST items. */
#define MOST 64
static void NAME(softmax)(n N, n D, n qs, n ks, real scale, const real *q, const real *k, real *p) {
  for (n i = 0; i < N; i++) {
    real top = -INFINITY, sum = 0;
    for (n j = 0; j < N; j++) {
      real dot[16] = {0}, all = 0;
      n d = 0;
      for (; d + 16 <= D; d += 16) for (n l = 0; l < 16; l++) dot[l] += q[i * qs + d + l] * k[j * ks + d + l];
      for (; d < D; d++) all += q[i * qs + d] * k[j * ks + d];
      for (n l = 0; l < 16; l++) all += dot[l];
      p[i * MOST + j] = all * scale;
      if (!(all * scale <= top)) top = all * scale;
    }
    for (n j = 0; j < N; j++) sum += p[i * MOST + j] = EXP(p[i * MOST + j] - top);
    for (n j = 0; j < N; j++) p[i * MOST + j] /= sum;
  }
}

void NAME(small_attention_forward)(n t0, n t1, n N, n H, n HK, n D, n V, double scale, const real *restrict q,
                                   const real *restrict k, const real *restrict v, real *restrict o) {
  real p[MOST * MOST];
  for (n b = t0; b < t1; b++) for (n h = 0; h < H; h++) {
    const n s = h % HK;
    NAME(softmax)(N, D, H * D, HK * D, scale, q + (b * N * H + h) * D, k + (b * N * HK + s) * D, p);
    for (n i = 0; i < N; i++) {
      real *row = o + ((b * N + i) * H + h) * V;
      for (n e = 0; e < V; e++) row[e] = 0;
      for (n j = 0; j < N; j++) {
        const real *from = v + ((b * N + j) * HK + s) * V, weight = p[i * MOST + j];
        for (n e = 0; e < V; e++) row[e] += weight * from[e];
      }
    }
  }
}

void NAME(small_attention_backward)(n t0, n t1, n N, n H, n HK, n D, n V, double scale, const real *restrict q,
                                    const real *restrict k, const real *restrict v, const real *restrict g,
                                    real *restrict gq, real *restrict gk, real *restrict gv) {
  real p[MOST * MOST], gs[MOST];
  for (n b = t0; b < t1; b++) {
    for (n e = 0; e < N * HK * D; e++) gk[b * N * HK * D + e] = 0;
    for (n e = 0; e < N * HK * V; e++) gv[b * N * HK * V + e] = 0;
    for (n h = 0; h < H; h++) {
      const n s = h % HK;
      NAME(softmax)(N, D, H * D, HK * D, scale, q + (b * N * H + h) * D, k + (b * N * HK + s) * D, p);
      for (n i = 0; i < N; i++) {
        const real *gi = g + ((b * N + i) * H + h) * V, *qi = q + ((b * N + i) * H + h) * D;
        real *out = gq + ((b * N + i) * H + h) * D, mean = 0;
        for (n j = 0; j < N; j++) {
          const real *vj = v + ((b * N + j) * HK + s) * V, weight = p[i * MOST + j];
          real *to = gv + ((b * N + j) * HK + s) * V;
          real dot[16] = {0}, all = 0;
          n e = 0;
          for (; e + 16 <= V; e += 16) for (n l = 0; l < 16; l++) dot[l] += gi[e + l] * vj[e + l];
          for (; e < V; e++) all += gi[e] * vj[e];
          for (n l = 0; l < 16; l++) all += dot[l];
          for (n l = 0; l < V; l++) to[l] += weight * gi[l];
          gs[j] = all; mean += weight * all;
        }
        for (n d = 0; d < D; d++) out[d] = 0;
        for (n j = 0; j < N; j++) {
          const real a = p[i * MOST + j] * (gs[j] - mean) * (real)scale;
          const real *kj = k + ((b * N + j) * HK + s) * D;
          real *to = gk + ((b * N + j) * HK + s) * D;
          for (n d = 0; d < D; d++) { out[d] += a * kj[d]; to[d] += a * qi[d]; }
        }
      }
    }
  }
}

/* Rows of F numbers to columns in the order of `from`, and back. */
void NAME(rows_to_columns)(n t0, n t1, n T, n F, const int *restrict from, const real *restrict x, real *restrict y) {
  EACH for (n f = 0; f < F; f++) LANES y[f * T + b + i] = x[(b + i) * F + from[f]]; }
}
void NAME(columns_to_rows)(n t0, n t1, n T, n F, const int *restrict to, const real *restrict x, real *restrict y) {
  EACH for (n f = 0; f < F; f++) LANES y[(b + i) * F + to[f]] = x[f * T + b + i]; }
}

void NAME(bilinear_forward)(n t0, n t1, n T, n C, n S, const real *restrict p, const real *restrict y,
                            const real *restrict ref, real *restrict out) {
  const n step = 4 * C * T, wide = 2 * C * T;
  for (n f = 0; f < S; f++) for (n t = t0; t < t1; t++) out[f * T + t] = y[f * T + t];
  out += S * T;
  for (n c = 0; c < C; c++) for (n t = t0; t < t1; t++) {
    { const real *restrict a = p + c * T + t, *restrict e = a + C * T; real *restrict o = out + c * T + t;
      LOAD_X(a) LOAD_Y(e)
PRODUCT
    }
    { const real *restrict a = p + (2 * C + c) * T + t, *restrict e = a + C * T, r = ref[t];
      real *restrict o = out + (C + c) * T + t;
      LOAD_X(a) LOAD_Y(e)
JOIN
    }
  }
}

/* The four inputs' gradient, and the layer's output again; gref (C, T) may be null. */
void NAME(bilinear_backward)(n t0, n t1, n T, n C, n S, const real *restrict p, const real *restrict y,
                             const real *restrict ref, const real *restrict ga, real *restrict gp,
                             real *restrict out, real *restrict gref) {
  const n step = 4 * C * T, wide = 2 * C * T;
  for (n f = 0; f < S; f++) for (n t = t0; t < t1; t++) out[f * T + t] = y[f * T + t];
  out += S * T; ga += S * T;
  for (n c = 0; c < C; c++) {
    for (n t = t0; t < t1; t++) {
      const real *restrict a = p + c * T + t, *restrict e = a + C * T, *restrict h = ga + c * T + t;
      real *restrict o = out + c * T + t, *restrict gx = gp + c * T + t, *restrict gy = gx + C * T;
      LOAD_X(a) LOAD_Y(e) LOAD_G(h, 1)
PRODUCT
GRAD_PRODUCT
    }
    for (n t = t0; t < t1; t++) {
      const real *restrict a = p + (2 * C + c) * T + t, *restrict e = a + C * T, *restrict h = ga + (C + c) * T + t;
      const real r = ref[t];
      real *restrict o = out + (C + c) * T + t, *restrict gx = gp + (2 * C + c) * T + t, *restrict gy = gx + C * T;
      LOAD_X(a) LOAD_Y(e)
JOIN
      if (gref) gref[c * T + t] = DOT;
      LOAD_G(h, r)
GRAD_JOIN
    }
  }
}

/* x = gate * x for 16 blades of C channels. */
void NAME(gate_forward)(n t0, n t1, n T, n C, const real *restrict gate, const real *restrict x, real *restrict y) {
  for (n f = 0; f < 16 * C; f++) for (n t = t0; t < t1; t++) y[f * T + t] = gate[f % C * T + t] * x[f * T + t];
}
/* dot (C, T) must be zero in the beginning; it becomes the gradient of the gate. */
void NAME(gate_backward)(n t0, n t1, n T, n C, const real *restrict gate, const real *restrict x,
                         const real *restrict g, real *restrict gx, real *restrict y, real *restrict dot) {
  for (n f = 0; f < 16 * C; f++) for (n t = t0; t < t1; t++) {
    const n at = f * T + t, c = f % C * T + t;
    y[at] = gate[c] * x[at]; gx[at] = gate[c] * g[at]; dot[c] += x[at] * g[at];
  }
}

void NAME(prepare)(n t0, n t1, const int *restrict table, const double *restrict factor, const real *restrict theta,
                   real *restrict out) {
  for (n e = t0; e < t1; e++) out[e] = (real)factor[table[e] & 15] * theta[table[e] >> 4];
}
void NAME(collapse)(n t0, n t1, const int *restrict table, const double *restrict factor, const real *restrict g,
                    real *restrict out) {
  for (n e = t0; e < t1; e++) out[table[e] >> 4] += (real)factor[table[e] & 15] * g[e];
}
"""


def _source(real: str) -> str:
    def lines(values: list[str], target: str, step: str) -> str:
        return "\n".join(f"      {target}[{k} * {step}] = {v};" for k, v in enumerate(values))

    def load(name: str, step: str, scale: str = "") -> str:
        return " ".join(f"const real {name}{k} = {scale}P[{k} * {step}];" for k in range(BLADES))

    join = sums("join", 2, "x", "y")
    parts = {
        "GRAD_PRODUCT": lines(sums("product", 0, "y", "g"), "gx", "step")
        + "\n" + lines(sums("product", 1, "x", "g"), "gy", "step"),
        "GRAD_JOIN": lines(sums("join", 0, "y", "g"), "gx", "step")
        + "\n" + lines(sums("join", 1, "x", "g"), "gy", "step"),
        "PRODUCT": lines(sums("product", 2, "x", "y"), "o", "wide"),
        "JOIN": lines([f"r * ({v})" for v in join], "o", "wide"),
        "DOT": " + ".join(f"h[{k} * wide] * ({v})" for k, v in enumerate(join)),
    }  # fmt: skip
    text = _SOURCE
    for name, value in parts.items():
        marker = f"\n{name}\n" if name != "DOT" else "= DOT;"
        text = text.replace(marker, f"\n{value}\n" if name != "DOT" else f"= {value};")
    suffix, functions = ("f", "f") if real == "float" else ("d", "")
    head = [
        f"#define real {real}",
        f"#define NAME(x) x##_{suffix}",
        f"#define SQRT sqrt{functions}",
        f"#define EXP exp{functions}",
        *(f"#define P{axis} {place}" for axis, place in zip("XYZ", _point_places(), strict=True)),
        f"#define LOAD_X(P) {load('x', 'step')}",
        f"#define LOAD_Y(P) {load('y', 'step')}",
        f"#define LOAD_G(P, r) {load('g', 'wide', 'r * ')}",
    ]
    return "\n".join(head) + text


def _point_places() -> list[int]:
    from ..algebra import POINT
    from .rows import ORDER

    return [ORDER.index(i) for i in POINT]


@functools.cache
def library() -> dict[torch.dtype, ctypes.CDLL] | None:
    """The compiled kernels by dtype, or None where nothing can be compiled."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    found = {}
    with tempfile.TemporaryDirectory(prefix="flashgatr-") as folder:
        for dtype, real in ((torch.float32, "float"), (torch.float64, "double")):
            source, target = Path(folder, f"{real}.c"), Path(folder, f"{real}.so")
            source.write_text(_source(real))
            command = [*compiler.split(), *_FLAGS, "-shared", "-fPIC", str(source), "-o", str(target), "-lm"]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
                found[dtype] = ctypes.CDLL(str(target))
            except (OSError, subprocess.SubprocessError):
                return None
    return found


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="flashgatr")


def call(name: str, items: int, *arguments: object, cost: int = 0) -> None:
    """Run a kernel on items 0 to `items`, in several threads if `cost` numbers per item make it worth while."""
    libraries = library()
    assert libraries is not None
    dtype = [x.dtype for x in arguments if isinstance(x, Tensor)][-1]  # outputs come last
    suffix = "f" if dtype == torch.float32 else "d"
    function = getattr(libraries[dtype], f"{name}_{suffix}")
    given = [_argument(x) for x in arguments]
    threads = torch.get_num_threads() if items * cost > _SERIAL else 1
    if threads == 1:
        function(_size(0), _size(items), *given)
        return
    step = -(-items // threads)
    step += -step % 32  # whole blocks
    starts = range(0, items, step)
    jobs = [
        _pool(threads).submit(function, _size(i), _size(min(i + step, items)), *given) for i in starts
    ]
    for job in jobs:
        job.result()


_size = ctypes.c_ssize_t


def _argument(x: object) -> object:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    if isinstance(x, float):
        return ctypes.c_double(x)
    return ctypes.c_void_p(None) if x is None else _size(x)  # type: ignore[arg-type]
