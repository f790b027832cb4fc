"""C kernels on rows, compiled when first needed.

The source is below (what belongs to the algebra comes from its tables), free of torch's headers, so that a C compiler
builds it in about two seconds; it is built anew for every process, into a folder that is gone at once, and called
through ctypes, which lets go of Python's lock. Without a compiler, `library` is None and the plain layers serve.

Memory: x[f * T + t], items innermost; every kernel works on units t0 to t1 (items, unless it says otherwise) and threads
share a call by taking the next few units. What is computed for a unit does not depend on who computes it.
Arrays named q, k, v, o, and what belongs to them, are rows: items outermost.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES, PGA, POINT
from ..nn.linear import SCALES
from .rows import ORDER
from .terms import sums

BLOCK = 32
"""Items that a kernel holds at once; threads take as many at a time."""
MOST_FEATURES = 256
"""Widest query."""
SMALL_SET = 32
"""Largest set of the attention kernels."""

_FLAGS = (
    "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic",  # as fast as -O3 here, and built in half the time
    "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_X86_FLAGS = ("-mprefer-vector-width=512",)  # else gcc keeps to half of a vector register
_TIMEOUT = 120
_MOST_THREADS = 256
_SERIAL = 1 << 14
"""Below so many numbers a call is not worth sharing between threads: waking them takes some microseconds."""

_SOURCE = r"""
#include <math.h>
#include <stddef.h>
#include <string.h>
typedef ptrdiff_t n;
#define KERNEL static void
#define INLINE static inline __attribute__((always_inline))
#define LANES for (n i = 0; i < w; i++)
/* The body for each block of items, once with a number of lanes w that the compiler knows. */
#define EACH(...) for (n b = t0; b < t1; b += BLOCK) \
  if (t1 - b >= BLOCK) { const n w = BLOCK; __VA_ARGS__ } else { const n w = t1 - b; __VA_ARGS__ }

/* ---- vectors ---- */

#if defined __AVX512F__
#define BYTES 64
#elif defined __AVX__
#define BYTES 32
#else
#define BYTES 16
#endif
#define VL ((n)(BYTES / sizeof(real) < 4 ? 4 : BYTES / sizeof(real)))
#define ROWS (BYTES == 64 ? 8 : 4) /* with two vectors each, half of the registers */
#define MEMORY aligned(sizeof(real)), may_alias
typedef real vec __attribute__((vector_size(VL * sizeof(real))));
typedef real vec_at __attribute__((vector_size(VL * sizeof(real)), MEMORY));
typedef real quad __attribute__((vector_size(4 * sizeof(real))));
typedef real quad_at __attribute__((vector_size(4 * sizeof(real)), MEMORY));
typedef word quad_of_words __attribute__((vector_size(4 * sizeof(real))));
#ifdef __clang__
#define MIX __builtin_shufflevector
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (quad_of_words){__VA_ARGS__})
#endif

INLINE void turn4(quad *r) {
  const quad a = MIX(r[0], r[1], 0, 4, 1, 5), b = MIX(r[2], r[3], 0, 4, 1, 5);
  const quad c = MIX(r[0], r[1], 2, 6, 3, 7), d = MIX(r[2], r[3], 2, 6, 3, 7);
  r[0] = MIX(a, b, 0, 1, 4, 5); r[1] = MIX(a, b, 2, 3, 6, 7);
  r[2] = MIX(c, d, 0, 1, 4, 5); r[3] = MIX(c, d, 2, 3, 6, 7);
}

/* y[c * ys + r] = x[r * xs + c] */
static void turn(n R, n C, const real *restrict x, n xs, real *restrict y, n ys) {
  n r = 0;
  for (; r + 4 <= R; r += 4) {
    n c = 0;
    for (; c + 4 <= C; c += 4) {
      quad part[4];
#pragma GCC unroll 4
      for (n j = 0; j < 4; j++) part[j] = *(const quad_at *)(x + (r + j) * xs + c);
      turn4(part);
#pragma GCC unroll 4
      for (n j = 0; j < 4; j++) *(quad_at *)(y + (c + j) * ys + r) = part[j];
    }
    for (; c < C; c++) for (n j = 0; j < 4; j++) y[c * ys + r + j] = x[(r + j) * xs + c];
  }
  for (; r < R; r++) for (n c = 0; c < C; c++) y[c * ys + r] = x[r * xs + c];
}

/* ---- products ---- */

#define PANEL (2 * VL)
#define DEPTH 256 /* a packed panel fits into the first cache */

/* R rows of y (T apart) = bias + a x + a2 x2 [+ y]; x and x2 are one packed panel. `back`: a and a2 are transposed. */
INLINE void tile(const int R, const int back, const real *a, n stride, n K, const real *a2, n stride2, n K2,
                 const real *x, const real *bias, int add, real *y, n T, n w) {
  vec acc[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = (vec){0};
#pragma GCC unroll 1
  for (int part = 0; part < 2; part++, a = a2, stride = stride2, K = K2) for (n k = 0; k < K; k++, x += PANEL) {
    const vec x0 = *(const vec_at *)x, x1 = *(const vec_at *)(x + VL);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const real c = back ? a[k * stride + r] : a[r * stride + k];
      acc[r][0] += c * x0; acc[r][1] += c * x1;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++, y += T) {
    const real c = bias ? bias[r] : 0;
    acc[r][0] += c; acc[r][1] += c;
    real edge[PANEL], *to = w == PANEL ? y : edge;
    if (add) {
      if (w < PANEL) memcpy(edge, y, w * sizeof(real));
      acc[r][0] += *(vec_at *)to; acc[r][1] += *(vec_at *)(to + VL);
    }
    *(vec_at *)to = acc[r][0]; *(vec_at *)(to + VL) = acc[r][1];
    if (w < PANEL) memcpy(y, edge, w * sizeof(real));
  }
}
#define TILE(name, R, back) static __attribute__((noinline)) void name( \
    const real *a, n stride, n K, const real *a2, n stride2, n K2, const real *x, const real *bias, int add, real *y, \
    n T, n w) { tile(R, back, a, stride, K, a2, stride2, K2, x, bias, add, y, T, w); }
TILE(tile_rows, ROWS, 0) TILE(tile_4, 4, 0) TILE(tile_1, 1, 0)
TILE(back_rows, ROWS, 1) TILE(back_4, 4, 1) TILE(back_1, 1, 1)

static void pack(n K, const real *restrict x, n T, n w, real *restrict panel) {
  for (n k = 0; k < K; k++, x += T, panel += PANEL) {
    if (w == PANEL) { memcpy(panel, x, PANEL * sizeof(real)); continue; }
    for (n i = 0; i < PANEL; i++) panel[i] = i < w ? x[i] : 0;
  }
}

/* y (O, w) = bias + a x + a2 x2 for w <= PANEL items; `back`: with a and a2 transposed. */
static void product(int back, n O, const real *a, n stride, n K, const real *x, const real *a2, n stride2, n K2,
                    const real *x2, const real *bias, real *y, n T, n w) {
  real panel[DEPTH * PANEL] __attribute__((aligned(64)));
  n k = 0;
  do {
    const n end = k + DEPTH < K + K2 ? k + DEPTH : K + K2;
    const n from = k < K ? k : K, some = (end < K ? end : K) - from;
    const n from2 = k < K ? 0 : k - K, some2 = end - k - some;
    pack(some, x + from * T, T, w, panel);
    pack(some2, x2 + from2 * T, T, w, panel + some * PANEL);
    const real *p = a + from * (back ? stride : 1), *p2 = a2 + from2 * (back ? stride2 : 1);
    const n next = back ? 1 : stride, next2 = back ? 1 : stride2;
    for (n r = 0, rows; r < O; r += rows) {
      rows = O - r >= ROWS ? ROWS : O - r >= 4 ? 4 : 1;
      (rows == ROWS ? back ? back_rows : tile_rows : rows == 4 ? back ? back_4 : tile_4 : back ? back_1 : tile_1)(
        p + r * next, stride, some, p2 + r * next2, stride2, some2, panel, bias && !k ? bias + r : 0, k > 0,
        y + r * T, T, w);
    }
    k = end;
  } while (k < K + K2);
}

/* out[r][c]: sums over k, and over `count` pairs of arrays, of a[r * as + k] b[c * bs + k]; rows from R and C on repeat
   the first. */
static __attribute__((noinline)) void dots(n R, n C, n K, n count, const real *const *as_, n as, const real *const *bs_,
                                           n bs, real out[4][4]) {
  vec part[4][4];
  real rest[4][4] = {{0}}, lanes[4][4][VL];
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) part[r][c] = (vec){0};
  for (n j = 0; j < count; j++) {
    const real *a[4], *b[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) { a[r] = as_[j] + (r < R ? r : 0) * as; b[r] = bs_[j] + (r < C ? r : 0) * bs; }
    n k = 0;
    for (; k + VL <= K; k += VL) {
      vec y[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) y[c] = *(const vec_at *)(b[c] + k);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        const vec x = *(const vec_at *)(a[r] + k);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) part[r][c] += x * y[c];
      }
    }
    for (; k < K; k++) for (int r = 0; r < 4; r++) for (int c = 0; c < 4; c++) rest[r][c] += a[r][k] * b[c][k];
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) *(vec_at *)lanes[r][c] = part[r][c];
  for (int r = 0; r < 4; r++) {
    quad four[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      four[c] = *(const quad_at *)lanes[r][c];
      for (n l = 4; l < VL; l += 4) four[c] += *(const quad_at *)(lanes[r][c] + l);
    }
    turn4(four);
    *(quad_at *)out[r] = (four[0] + four[1]) + (four[2] + four[3]) + *(const quad_at *)rest[r];
  }
}

/* ---- linear maps ----

Weights are prepared as: scalars and scalar parts (SO + CO, SI + CI), their bias, then maps 1 to 8 (CO, CI) each:
keeping grades 1 to 4, and e0 times grades 0 to 3. */

#define MAP(m) (w + (SO + CO) * (SI + CI + 1) + ((m) - 1) * CO * CI)

KERNEL linear_forward(n t0, n t1, n T, n CI, n CO, n SI, n SO, const real *restrict w, const real *restrict x,
                          real *restrict y) {
  for (n b = t0; b < t1; b += PANEL) {
    const n width = t1 - b < PANEL ? t1 - b : PANEL;
    product(0, SO + CO, w, SI + CI, SI + CI, x + b, 0, 0, 0, 0, w + (SO + CO) * (SI + CI), y + b, T, width);
    for (n p = 1; p < 16; p++) {
      const real *from = x + (SI + p * CI) * T + b;
      const int more = p >= 8;
      product(0, CO, MAP(GRADE[p]), CI, CI, from, more ? MAP(5 + GRADE[p - 8]) : 0, CI, more ? CI : 0,
              more ? from - 8 * CI * T : 0, 0, y + (SO + p * CO) * T + b, T, width);
    }
  }
}

KERNEL linear_backward(n t0, n t1, n T, n CI, n CO, n SI, n SO, const real *restrict w, const real *restrict g,
                           real *restrict gx) {
  for (n b = t0; b < t1; b += PANEL) {
    const n width = t1 - b < PANEL ? t1 - b : PANEL;
    const real *shifted = g + (SO + 8 * CO) * T + b;
    product(1, SI, w, SI + CI, SO + CO, g + b, 0, 0, 0, 0, 0, gx + b, T, width);
    product(1, CI, w + SI, SI + CI, SO + CO, g + b, MAP(5), CI, CO, shifted, 0, gx + SI * T + b, T, width);
    for (n p = 1; p < 16; p++) {
      const int more = p < 8;
      product(1, CI, MAP(GRADE[p]), CI, CO, g + (SO + p * CO) * T + b, more ? MAP(5 + GRADE[p]) : 0, CI, more ? CO : 0,
              more ? shifted + p * CO * T : 0, 0, gx + (SI + p * CI) * T + b, T, width);
    }
  }
}

/* Parameters: weight (CO, CI, 9), s2mv (CO, SI), mv2s (SO, CI), s2s (SO, SI), biases of CO and SO if BIAS. */
#define PARAMETERS(kind, p) \
  kind *weight = p, *s2mv = weight + 9 * CO * CI, *mv2s = s2mv + CO * SI, *s2s = mv2s + SO * CI, \
       *bias_mv = s2s + SO * SI, *bias_s = bias_mv + CO;

/* Units: outputs, scalars first. */
KERNEL prepare(n t0, n t1, n CI, n CO, n SI, n SO, n BIAS, const real *restrict theta, real *restrict w) {
  PARAMETERS(const real, theta)
  real *bias = w + (SO + CO) * (SI + CI);
  for (n u = t0; u < t1; u++) {
    real *row = w + u * (SI + CI);
    const n o = u - SO;
    memcpy(row, u < SO ? s2s + u * SI : s2mv + o * SI, SI * sizeof(real));
    bias[u] = !BIAS ? 0 : u < SO ? bias_s[u] : bias_mv[o];
    if (u < SO) { memcpy(row + SI, mv2s + u * CI, CI * sizeof(real)); continue; }
    for (n i = 0; i < CI; i++) {
      const real *from = weight + (o * CI + i) * 9;
      row[SI + i] = SCALE[0] * from[0];
      for (n m = 1; m < 9; m++) MAP(m)[o * CI + i] = SCALE[m] * from[m];
    }
  }
}

/* Gradient of the parameters; `first` is that of scalars and scalar parts. Units: four outputs each. */
KERNEL linear_weights(n t0, n t1, n T, n CI, n CO, n SI, n SO, n BIAS, const real *restrict x,
                          const real *restrict g, const real *restrict first, real *restrict theta) {
  PARAMETERS(real, theta)
  for (n u = 4 * t0; u < 4 * t1 && u < SO + CO; u++) {
    const real *row = first + u * (SI + CI), *from = g + u * T;
    const n o = u - SO;
    memcpy(u < SO ? s2s + u * SI : s2mv + o * SI, row, SI * sizeof(real));
    if (u < SO) memcpy(mv2s + u * CI, row + SI, CI * sizeof(real));
    else for (n i = 0; i < CI; i++) weight[(o * CI + i) * 9] = SCALE[0] * row[SI + i];
    if (!BIAS) continue;
    real lanes[32] = {0};
    for (n t = 0; t < T / 32 * 32; t += 32) for (n i = 0; i < 32; i++) lanes[i] += from[t + i];
    for (n t = T / 32 * 32; t < T; t++) lanes[t % 32] += from[t];
    for (n i = 1; i < 32; i++) lanes[0] += lanes[i];
    *(u < SO ? bias_s + u : bias_mv + o) = lanes[0];
  }
  for (n o = 4 * t0; o < 4 * t1 && o < CO; o += 4) for (n m = 1; m < 9; m++) for (n i = 0; i < CI; i += 4) {
    const n R = CO - o < 4 ? CO - o : 4, C = CI - i < 4 ? CI - i : 4;
    const int shift = m > 4;
    const real *outer[16], *inner[16];
    n count = 0;
    for (n p = 0; p < (shift ? 8 : 16); p++) if (m == GRADE[p] + 5 * shift) {
      outer[count] = g + (SO + (p + 8 * shift) * CO + o) * T;
      inner[count++] = x + (SI + p * CI + i) * T;
    }
    real out[4][4];
    dots(R, C, T, count, outer, T, inner, T, out);
    for (n r = 0; r < R; r++) for (n c = 0; c < C; c++) weight[((o + r) * CI + i + c) * 9 + m] = SCALE[m] * out[r][c];
  }
}

/* Rows of F numbers to columns, and back: `runs` (COUNT, 3) holds the first column in a row, where it goes, how many. */
KERNEL rows_to_columns(n t0, n t1, n T, n F, n COUNT, const int *restrict runs, const real *restrict x,
                           real *restrict y) {
  for (n b = t0; b < t1; b += BLOCK) for (n j = 0; j < 3 * COUNT; j += 3)
    turn(t1 - b < BLOCK ? t1 - b : BLOCK, runs[j + 2], x + b * F + runs[j], F, y + runs[j + 1] * T + b, T);
}
KERNEL columns_to_rows(n t0, n t1, n T, n F, n COUNT, const int *restrict runs, const real *restrict x,
                           real *restrict y) {
  for (n b = t0; b < t1; b += BLOCK) for (n j = 0; j < 3 * COUNT; j += 3)
    turn(runs[j + 2], t1 - b < BLOCK ? t1 - b : BLOCK, x + runs[j + 1] * T + b, T, y + b * F + runs[j], F);
}

/* ---- norm ---- */

KERNEL norm_forward(n t0, n t1, n T, n C, n S, double epsilon, const real *restrict x, const real *restrict d,
                        real *restrict z, real *restrict y, real *restrict stat) {
  EACH(
    real sum[BLOCK] = {0}, dev[BLOCK] = {0}, mean[BLOCK] = {0};
    for (n f = 0; f < S; f++) { const n at = f * T + b; LANES mean[i] += z[at + i] = x[at + i] + d[at + i]; }
    for (n f = S; f < S + 8 * C; f++) {
      const n at = f * T + b;
      LANES { const real v = x[at + i] + d[at + i]; z[at + i] = v; sum[i] += v * v; }
    }
    LANES mean[i] /= S ? S : 1;
    for (n f = 0; f < S; f++) { const n at = f * T + b; LANES { const real v = z[at + i] - mean[i]; dev[i] += v * v; } }
    LANES {
      const real m = sum[i] / C;
      sum[i] = 1 / SQRT(m > epsilon ? m : (real)epsilon);
      if (m != m) sum[i] = m;
      stat[2 * (b + i)] = m > epsilon ? sum[i] : -sum[i];
      dev[i] = 1 / SQRT(dev[i] / (S ? S : 1) + (real)1e-5);
      stat[2 * (b + i) + 1] = dev[i];
    }
    for (n f = 0; f < S; f++) { const n at = f * T + b; LANES y[at + i] = (z[at + i] - mean[i]) * dev[i]; }
    for (n f = S; f < S + 8 * C; f++) { const n at = f * T + b; LANES y[at + i] = z[at + i] * sum[i]; }
    for (n f = S + 8 * C; f < S + 16 * C; f++) {
      const n at = f * T + b;
      LANES { const real v = x[at + i] + d[at + i]; z[at + i] = v; y[at + i] = v * sum[i]; }
    }
  )
}

KERNEL norm_backward(n t0, n t1, n T, n C, n S, const real *restrict gz, const real *restrict gy,
                         const real *restrict y, const real *restrict stat, real *restrict out) {
  EACH(
    real dot[BLOCK] = {0}, mean[BLOCK] = {0}, along[BLOCK] = {0}, r[BLOCK], q[BLOCK];
    for (n f = 0; f < S; f++) {
      const n at = f * T + b;
      LANES { mean[i] += gy[at + i]; along[i] += gy[at + i] * y[at + i]; }
    }
    for (n f = S; f < S + 16 * C; f++) { const n at = f * T + b; LANES dot[i] += gy[at + i] * y[at + i]; }
    LANES {
      r[i] = stat[2 * (b + i)]; q[i] = stat[2 * (b + i) + 1];
      dot[i] = r[i] < 0 ? 0 : dot[i] / C;
      r[i] = r[i] < 0 ? -r[i] : r[i];
      mean[i] /= S ? S : 1; along[i] /= S ? S : 1;
    }
    for (n f = 0; f < S; f++) {
      const n at = f * T + b;
      LANES out[at + i] = q[i] * (gy[at + i] - mean[i] - y[at + i] * along[i]);
    }
    for (n f = S; f < S + 8 * C; f++) { const n at = f * T + b; LANES out[at + i] = r[i] * (gy[at + i] - y[at + i] * dot[i]); }
    for (n f = S + 8 * C; f < S + 16 * C; f++) { const n at = f * T + b; LANES out[at + i] = r[i] * gy[at + i]; }
    if (gz) for (n f = 0; f < S + 16 * C; f++) { const n at = f * T + b; LANES out[at + i] += gz[at + i]; }
  )
}

/* ---- queries, keys and values ---- */

/* One head of queries or keys: rows of D features from columns s (SH of them) and mv (blades 16, CALL channels). */
INLINE void head(n b, const n w, n T, n CALL, n CM, n SH, n D, n AWARE, double epsilon, const int query, real alpha,
                 const real *beta, real gamma, const real *restrict s, const real *restrict mv, real *restrict out,
                 n stride) {
  real f[MOST_FEATURES * BLOCK];
  real *g = f;
  for (n j = 0; j < SH; j++, g += BLOCK) LANES g[i] = gamma * s[j * T + b + i];
  for (n p = 0; p < (AWARE ? 7 : 8); p++) for (n c = 0; c < CM; c++, g += BLOCK)
    LANES g[i] = alpha * mv[(p * CALL + c) * T + b + i];
  if (AWARE) {
    const n step = CM * BLOCK;
    for (n c = 0; c < CM; c++, g += BLOCK) {
      const real k = beta ? beta[c] : 1, *at = mv + c * T + b;
      const real *bottom = at + 7 * CALL * T, *px = at + PX * CALL * T, *py = at + PY * CALL * T, *pz = at + PZ * CALL * T;
      real found[5][BLOCK];
      LANES {
        const real w0 = bottom[i], om = w0 / (w0 * w0 + (real)epsilon), W = w0 * om;
        const real x = px[i] * om, y = py[i] * om, z = pz[i] * om, sq = x * x + y * y + z * z;
        const real twice = (query ? k : 2) * W;
        found[0][i] = query ? k * W * W : -sq;
        found[1][i] = query ? k * sq : -W * W;
        found[2][i] = twice * x; found[3][i] = twice * y; found[4][i] = twice * z;
      }
      for (n j = 0; j < 5; j++) memcpy(g + j * step, found[j], sizeof found[j]);
    }
    g += 4 * step;
  }
  const n used = (g - f) / BLOCK;
  turn(used, w, f, BLOCK, out + b * stride, stride);
  for (n j = used; j < D; j++) LANES out[(b + i) * stride + j] = 0;
}

KERNEL features_forward(n t0, n t1, n T, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon,
                            const real *alpha, const real *beta, const real *gamma, const real *restrict raw,
                            real *restrict q, real *restrict k, real *restrict v) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, V = SH + 16 * CM;
  const real *mv = raw + SALL * T;
  EACH(
    for (n h = 0; h < H; h++)
      head(b, w, T, CALL, CM, SH, D, AWARE, epsilon, 1, alpha ? alpha[h] : 1, beta ? beta + h * CM : 0,
           gamma ? gamma[h] : 1, raw + h * SH * T, mv + h * CM * T, q + h * D, H * D);
    for (n h = 0; h < HK; h++) {
      head(b, w, T, CALL, CM, SH, D, AWARE, epsilon, 0, 1, 0, 1, raw + (H + h) * SH * T,
           mv + (H + h) * CM * T, k + h * D, HK * D);
      real *rows = v + (b * HK + h) * V;
      turn(SH, w, raw + (H + HK + h) * SH * T + b, T, rows, HK * V);
      for (n p = 0; p < 16; p++)
        turn(CM, w, mv + (p * CALL + (H + HK + h) * CM) * T + b, T, rows + SH + p * CM, HK * V);
    }
  )
}

/* `part`: for every block of items the gradients of log beta (H, CM), log alpha (H), log gamma (H). */
KERNEL features_backward(n t0, n t1, n T, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon,
                             const real *alpha, const real *beta, const real *gamma, const real *restrict raw,
                             const real *restrict gq, const real *restrict gk, const real *restrict gv,
                             real *restrict out, real *restrict part) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, V = SH + 16 * CM, PLAIN = AWARE ? 7 : 8;
  EACH(
    for (n h = 0; h < H + HK; h++) {
      const int query = h < H;
      const n stride = (query ? H : HK) * D;
      const real *m = raw + (SALL + h * CM) * T + b, *s = raw + h * SH * T + b;
      real *om = out + (SALL + h * CM) * T + b, *os = out + h * SH * T + b;
      const real a = query && alpha ? alpha[h] : 1, ga = query && gamma ? gamma[h] : 1;
      real f[MOST_FEATURES * BLOCK], along[BLOCK] = {0};
      const real *restrict g = f;
      turn(w, D, (query ? gq + h * D : gk + (h - H) * D) + b * stride, stride, f, BLOCK);
      for (n j = 0; j < SH; j++, g += BLOCK) {
        real *restrict o = os + j * T;
        LANES { o[i] = ga * g[i]; along[i] += o[i] * s[j * T + i]; }
      }
      real *sums = part + b / BLOCK * H * (CM + 2), all = 0;
      LANES { all += along[i]; along[i] = 0; }
      if (query) sums[H * CM + H + h] = all;
      for (n p = 0; p < PLAIN; p++) for (n c = 0; c < CM; c++, g += BLOCK) {
        const n at = (p * CALL + c) * T;
        real *restrict o = om + at;
        LANES { o[i] = a * g[i]; along[i] += o[i] * m[at + i]; }
      }
      all = 0;
      LANES { all += along[i]; along[i] = 0; }
      if (query) sums[H * CM + h] = all;
      for (n p = 8; p < 16; p++) for (n c = 0; c < CM; c++) memset(om + (p * CALL + c) * T, 0, w * sizeof(real));
      for (n c = 0; c < CM; c++, g += BLOCK) {
        if (!AWARE) { if (query) sums[h * CM + c] = 0; continue; }
        const real kb = query && beta ? beta[h * CM + c] : 1;
        const n o = c * T, step = CALL * T, next = CM * BLOCK;
        const real *mw = m + 7 * step + o, *mx = m + PX * step + o, *my = m + PY * step + o, *mz = m + PZ * step + o;
        real found[4][BLOCK];
        LANES {
          const real g0 = kb * g[i], g1 = kb * g[i + next], g2 = kb * g[i + 2 * next], g3 = kb * g[i + 3 * next];
          const real g4 = kb * g[i + 4 * next], w0 = mw[i], x0 = mx[i], y0 = my[i], z0 = mz[i];
          const real bottom = w0 * w0 + (real)epsilon, omega = w0 / bottom;
          const real W = w0 * omega, x = x0 * omega, y = y0 * omega, z = z0 * omega, dot = g2 * x + g3 * y + g4 * z;
          along[i] = g0 * W * W + g1 * (x * x + y * y + z * z) + W * dot;
          const real gW = query ? 2 * W * g0 + dot : 2 * dot - 2 * W * g1;
          const real square = query ? g1 : -g0, factor = query ? 1 : 2;
          const real gx = 2 * x * square + factor * W * g2, gy = 2 * y * square + factor * W * g3;
          const real gz = 2 * z * square + factor * W * g4, go = gW * w0 + gx * x0 + gy * y0 + gz * z0;
          found[0][i] = gW * omega + go * ((real)epsilon - w0 * w0) / (bottom * bottom);
          found[1][i] = gx * omega; found[2][i] = gy * omega; found[3][i] = gz * omega;
        }
        const n place[4] = {7, PX, PY, PZ};
        for (n j = 0; j < 4; j++) memcpy(om + place[j] * step + o, found[j], w * sizeof(real));
        all = 0;
        LANES all += along[i];
        if (query) sums[h * CM + c] = all;
      }
    }
    for (n h = 0; h < HK; h++) {
      const real *rows = gv + (b * HK + h) * V;
      turn(w, SH, rows, HK * V, out + (H + HK + h) * SH * T + b, T);
      for (n p = 0; p < 16; p++)
        turn(w, CM, rows + SH + p * CM, HK * V, out + (SALL + p * CALL + (H + HK + h) * CM) * T + b, T);
    }
  )
}

/* ---- attention within sets of N items, at most MOST; units: sets ---- */

static void all_dots(n N, n K, const real *a, n as, const real *b, n bs, real *out) {
  for (n i = 0; i < N; i += 4) for (n j = 0; j < N; j += 4) {
    const n R = N - i < 4 ? N - i : 4, C = N - j < 4 ? N - j : 4;
    const real *rows = a + i * as, *columns = b + j * bs;
    real found[4][4];
    dots(R, C, K, 1, &rows, as, &columns, bs, found);
    for (n r = 0; r < R; r++) for (n c = 0; c < C; c++) out[(i + r) * MOST + j + c] = found[r][c];
  }
}

/* Rows of y: sums over j of p[r * pr + j * pj] x[j]; on top of what is there if `add`. */
static void combine(n N, n K, const real *p, n pr, n pj, const real *restrict x, n xs, real *restrict y, n ys, int add) {
  for (n r = 0; r < N; r++, p += pr, y += ys) {
    if (!add) memset(y, 0, K * sizeof(real));
    n j = 0;
    for (; j + 4 <= N; j += 4) {
      const real c0 = p[j * pj], c1 = p[(j + 1) * pj], c2 = p[(j + 2) * pj], c3 = p[(j + 3) * pj];
      const real *x0 = x + j * xs, *x1 = x0 + xs, *x2 = x1 + xs, *x3 = x2 + xs;
      for (n e = 0; e < K; e++) y[e] += c0 * x0[e] + c1 * x1[e] + c2 * x2[e] + c3 * x3[e];
    }
    for (; j < N; j++) { const real c = p[j * pj]; for (n e = 0; e < K; e++) y[e] += c * x[j * xs + e]; }
  }
}

static void softmax(n N, real scale, real *p) {
  for (n i = 0; i < N; i++, p += MOST) {
    real top = -INFINITY, sum = 0;
    for (n j = 0; j < N; j++) { p[j] *= scale; if (!(p[j] <= top)) top = p[j]; }
    for (n j = 0; j < N; j++) sum += p[j] = EXP(p[j] - top);
    for (n j = 0; j < N; j++) p[j] /= sum;
  }
}

KERNEL small_attention_forward(n t0, n t1, n N, n H, n HK, n D, n V, double scale, const real *restrict q,
                                   const real *restrict k, const real *restrict v, real *restrict o) {
  real p[MOST * MOST];
  for (n b = t0; b < t1; b++) for (n h = 0; h < H; h++) {
    const n at = b * N * H + h, from = b * N * HK + h % HK;
    all_dots(N, D, q + at * D, H * D, k + from * D, HK * D, p);
    softmax(N, scale, p);
    combine(N, V, p, MOST, 1, v + from * V, HK * V, o + at * V, H * V, 0);
  }
}

KERNEL small_attention_backward(n t0, n t1, n N, n H, n HK, n D, n V, double scale, const real *restrict q,
                                    const real *restrict k, const real *restrict v, const real *restrict g,
                                    real *restrict gq, real *restrict gk, real *restrict gv) {
  real p[MOST * MOST], gp[MOST * MOST];
  for (n b = t0; b < t1; b++) for (n h = 0; h < H; h++) {
    const n at = b * N * H + h, from = b * N * HK + h % HK;
    const int add = h >= HK; /* heads may share keys */
    all_dots(N, D, q + at * D, H * D, k + from * D, HK * D, p);
    softmax(N, scale, p);
    all_dots(N, V, g + at * V, H * V, v + from * V, HK * V, gp);
    combine(N, V, p, 1, MOST, g + at * V, H * V, gv + from * V, HK * V, add);
    for (n i = 0; i < N; i++) {
      real mean = 0;
      for (n j = 0; j < N; j++) mean += p[i * MOST + j] * gp[i * MOST + j];
      for (n j = 0; j < N; j++) gp[i * MOST + j] = p[i * MOST + j] * (gp[i * MOST + j] - mean) * (real)scale;
    }
    combine(N, D, gp, MOST, 1, k + from * D, HK * D, gq + at * D, H * D, 0);
    combine(N, D, gp, 1, MOST, q + at * D, H * D, gk + from * D, HK * D, add);
  }
}

/* ---- geometric product and join ---- */

typedef void form(const real *restrict x, n xs, const real *restrict y, n ys, real *restrict o, n os);
FORMS
/* A form of w items: fewer than BLOCK are padded. */
static void apply(form *f, n w, const real *x, n xs, const real *y, n ys, real *o, n os) {
  if (w == BLOCK) { f(x, xs, y, ys, o, os); return; }
  real px[16 * BLOCK] = {0}, py[16 * BLOCK] = {0}, po[16 * BLOCK];
  for (n k = 0; k < 16; k++) {
    memcpy(px + k * BLOCK, x + k * xs, w * sizeof(real));
    memcpy(py + k * BLOCK, y + k * ys, w * sizeof(real));
  }
  f(px, BLOCK, py, BLOCK, po, BLOCK);
  for (n k = 0; k < 16; k++) memcpy(o + k * os, po + k * BLOCK, w * sizeof(real));
}
static void scale(n w, const real *restrict r, real *restrict o, n os) {
  for (n k = 0; k < 16; k++) for (n i = 0; i < w; i++) o[k * os + i] *= r[i];
}
static void keep(n t0, n t1, n T, n S, const real *restrict y, real *restrict out) {
  for (n f = 0; f < S; f++) memcpy(out + f * T + t0, y + f * T + t0, (t1 - t0) * sizeof(real));
}

KERNEL bilinear_forward(n t0, n t1, n T, n C, n S, const real *restrict p, const real *restrict y,
                            const real *restrict ref, real *restrict out) {
  const n from = 4 * C * T, to = 2 * C * T;
  keep(t0, t1, T, S, y, out);
  for (n c = 0; c < C; c++) for (n b = t0; b < t1; b += BLOCK) {
    const n w = t1 - b < BLOCK ? t1 - b : BLOCK;
    const real *x = p + c * T + b;
    real *o = out + (S + c) * T + b;
    apply(product_2, w, x, from, x + C * T, from, o, to);
    apply(join_2, w, x + 2 * C * T, from, x + 3 * C * T, from, o + C * T, to);
    scale(w, ref + b, o + C * T, to);
  }
}

/* The four inputs' gradient, and the layer's output again; gref (C, T) may be null. */
KERNEL bilinear_backward(n t0, n t1, n T, n C, n S, const real *restrict p, const real *restrict y,
                             const real *restrict ref, const real *restrict g, real *restrict gp,
                             real *restrict out, real *restrict gref) {
  const n from = 4 * C * T, to = 2 * C * T, next = C * T;
  keep(t0, t1, T, S, y, out);
  for (n c = 0; c < C; c++) for (n b = t0; b < t1; b += BLOCK) {
    const n w = t1 - b < BLOCK ? t1 - b : BLOCK;
    const real *x = p + c * T + b, *h = g + (S + c) * T + b;
    real *o = out + (S + c) * T + b, *gx = gp + c * T + b;
    apply(product_2, w, x, from, x + next, from, o, to);
    apply(product_0, w, x + next, from, h, to, gx, from);
    apply(product_1, w, x, from, h, to, gx + next, from);
    x += 2 * next; gx += 2 * next; h += next; o += next;
    apply(join_2, w, x, from, x + next, from, o, to);
    if (gref) for (n i = 0; i < w; i++) {
      real dot = 0;
      for (n k = 0; k < 16; k++) dot += h[k * to + i] * o[k * to + i];
      gref[c * T + b + i] = dot;
    }
    apply(join_0, w, x + next, from, h, to, gx, from);
    apply(join_1, w, x, from, h, to, gx + next, from);
    scale(w, ref + b, o, to); scale(w, ref + b, gx, from); scale(w, ref + b, gx + next, from);
  }
}

/* ---- gate: 16 blades of C channels, each times gate (C, T) ---- */

KERNEL gate_forward(n t0, n t1, n T, n C, const real *restrict gate, const real *restrict x, real *restrict y) {
  EACH(for (n c = 0; c < C; c++) for (n p = 0; p < 16; p++) {
    const n at = (p * C + c) * T + b;
    LANES y[at + i] = gate[c * T + b + i] * x[at + i];
  })
}
/* dot (C, T) becomes the gradient of the gate. */
KERNEL gate_backward(n t0, n t1, n T, n C, const real *restrict gate, const real *restrict x,
                         const real *restrict g, real *restrict gx, real *restrict y, real *restrict dot) {
  EACH(for (n c = 0; c < C; c++) {
    real sum[BLOCK] = {0};
    for (n p = 0; p < 16; p++) {
      const n at = (p * C + c) * T + b;
      LANES {
        const real a = gate[c * T + b + i];
        y[at + i] = a * x[at + i]; gx[at + i] = a * g[at + i]; sum[i] += x[at + i] * g[at + i];
      }
    }
    LANES dot[c * T + b + i] = sum[i];
  })
}

/* ---- sharing a call between threads ---- */

typedef union { n i; double d; void *p; } value;
typedef void kernel(n t0, n t1, const value *a);
typedef struct { n next, end; char apart[48]; } share;
typedef struct { kernel *f; n step; int threads, (*me)(void); share *of; const value *a; } job;
/* Every thread begins with its own share, which it finds in its cache if it had the same one before, then helps. */
static void work(void *p) {
  const job *j = p;
  const int me = j->threads > 1 ? j->me() : 0;
  for (int v = 0; v < j->threads; v++) {
    share *s = j->of + (me + v) % j->threads;
    for (n t; (t = __atomic_fetch_add(&s->next, j->step, __ATOMIC_RELAXED)) < s->end;)
      j->f(t, t + j->step < s->end ? t + j->step : s->end, j->a);
  }
}
/* `parallel` and `me` are OpenMP's: the one runs work(&j) in so many threads, the other counts them. */
void flashgatr_run(kernel *f, n units, n step, int threads,
                   void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int (*me)(void), const value *a) {
  share of[MOST_THREADS];
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  const n steps = (units + step - 1) / step;
  for (int v = 0; v < threads; v++) {
    of[v].next = steps * v / threads * step;
    of[v].end = v == threads - 1 ? units : steps * (v + 1) / threads * step;
  }
  job j = {f, step, threads, me, of, a};
  if (threads > 1) parallel(work, &j, threads, 0); else work(&j);
}
"""
_KERNEL = re.compile(r"^KERNEL (\w+)\(n t0, n t1, (.*?)\) \{", re.MULTILINE | re.DOTALL)


def _form(form: str, slot: int) -> str:
    """A function that computes one slot of a form from the others, for BLOCK items."""
    loads = "\n".join(
        f"    const vec {x}{k} = *(const vec_at *)({x} + {k} * {x}s + i);"
        for x in "xy"
        for k in range(BLADES)
    )
    stores = "\n".join(
        f"    *(vec_at *)(o + {k} * os + i) = {value};"
        for k, value in enumerate(sums(form, slot, "x", "y"))
    )
    arguments = "const real *restrict x, n xs, const real *restrict y, n ys, real *restrict o, n os"
    return f"static void {form}_{slot}({arguments}) {{\n  for (n i = 0; i < BLOCK; i += VL) {{\n{loads}\n{stores}\n  }}\n}}"


def _signatures() -> dict[str, list[str]]:
    """For every kernel, which member of a `value` each argument is: i, d or p."""

    def member(text: str) -> str:
        return "p" if "*" in text else "d" if text.startswith("double") else "i"

    return {
        name: [member(argument.strip()) for argument in arguments.split(",")]
        for name, arguments in _KERNEL.findall(_SOURCE)
    }


def _source(real: str) -> str:
    suffix = "f" if real == "float" else ""
    grades = [PGA.grades[blade] for blade in ORDER]
    head = [
        f"#define real {real}",
        f"#define word {'int' if real == 'float' else 'long long'}",
        f"#define SQRT sqrt{suffix}",
        f"#define EXP exp{suffix}",
        f"#define BLOCK {BLOCK}",
        f"#define MOST {SMALL_SET}",
        f"#define MOST_FEATURES {MOST_FEATURES}",
        f"#define MOST_THREADS {_MOST_THREADS}",
        *(f"#define P{axis} {ORDER.index(i)}" for axis, i in zip("XYZ", POINT, strict=True)),
        f"static const int GRADE[] = {{{', '.join(map(str, grades))}}};",
        f"static const real SCALE[] = {{{', '.join(map(repr, SCALES))}}};",
    ]
    forms = "\n".join(_form(form, slot) for form in ("product", "join") for slot in range(3))
    calls = [
        f"void flashgatr_{name}(n t0, n t1, const value *a) {{ {name}(t0, t1, "
        + ", ".join(f"a[{i}].{member}" for i, member in enumerate(members))
        + "); }"
        for name, members in _signatures().items()
    ]
    return "\n".join([*head, _SOURCE.replace("\nFORMS\n", f"\n{forms}\n"), *calls, ""])


class Library:
    """The kernels of one dtype."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._run = self._library.flashgatr_run
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._run.argtypes = (pointer, size, size, ctypes.c_int, pointer, pointer, ctypes.c_char_p)
        self._run.restype = None
        self._kernels = {
            name: (self._address(f"flashgatr_{name}"), struct.Struct("".join(map(_FORMAT.__getitem__, members))))
            for name, members in _signatures().items()
        }  # fmt: skip

    def _address(self, name: str) -> int | None:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value

    def call(self, name: str, units: int, step: int, cost: int, *arguments: Any) -> None:
        """Run a kernel on units 0 to `units`, `step` at a time, shared by threads if `cost` numbers each are worth it."""
        address, layout = self._kernels[name]
        values = layout.pack(
            *[x.data_ptr() if isinstance(x, Tensor) else x or 0 for x in arguments]
        )
        parallel, me = _openmp()
        threads = (
            torch.get_num_threads() if parallel and units > step and units * cost > _SERIAL else 1
        )
        self._run(address, units, step, threads, parallel, me, values)


_FORMAT = {"i": "q", "d": "d", "p": "P"}


@functools.cache
def _openmp() -> tuple[int | None, int | None]:
    """torch's own OpenMP: its threads are awake between products, and a second pool would fight them for the cores."""
    names = "GOMP_parallel", "omp_get_thread_num"
    found = [getattr(ctypes.CDLL(None), name, None) for name in names]
    if None in found:
        return None, None
    parallel, me = (ctypes.cast(function, ctypes.c_void_p).value for function in found)
    return parallel, me


@functools.cache
def library() -> dict[torch.dtype, Library] | None:
    """The compiled kernels by dtype, or None where nothing can be compiled."""
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        return None
    flags = _FLAGS + (_X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())
    with tempfile.TemporaryDirectory(prefix="flashgatr-") as folder:
        targets, running = {}, []
        try:
            for dtype, real in ((torch.float32, "float"), (torch.float64, "double")):
                source, targets[dtype] = Path(folder, f"{real}.c"), Path(folder, f"{real}.so")
                source.write_text(_source(real))
                command = [
                    *compiler.split(),
                    *flags,
                    "-shared",
                    "-fPIC",
                    str(source),
                    "-o",
                    str(targets[dtype]),
                    "-lm",
                ]
                running.append(
                    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            if any([process.wait(_TIMEOUT) for process in running]):
                return None
            return {dtype: Library(path) for dtype, path in targets.items()}
        except (OSError, subprocess.SubprocessError):
            return None
        finally:
            for process in running:
                process.kill()
