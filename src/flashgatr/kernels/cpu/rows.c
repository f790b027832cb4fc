/* Kernels on rows, for one type `real`. library.py inserts constants and the algebra's tables
   before this text, products and joins in place of the line FORMS, and functions that unpack
   arguments after it. */

#include <math.h>
#include <stddef.h>
#include <string.h>
typedef ptrdiff_t n;
#define KERNEL static void
#define INLINE static inline __attribute__((always_inline))
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))

/* ---- vectors ---- */

#if defined __AVX512F__
#define BYTES 64
#elif defined __AVX__
#define BYTES 32
#else
#define BYTES 16
#endif
#define VL ((n)(BYTES / sizeof(real) < 4 ? 4 : BYTES / sizeof(real)))
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

/* Transpose a 4 x 4 matrix. */
INLINE void turn4(quad *r) {
  const quad a = MIX(r[0], r[1], 0, 4, 1, 5), b = MIX(r[2], r[3], 0, 4, 1, 5);
  const quad c = MIX(r[0], r[1], 2, 6, 3, 7), d = MIX(r[2], r[3], 2, 6, 3, 7);
  r[0] = MIX(a, b, 0, 1, 4, 5); r[1] = MIX(a, b, 2, 3, 6, 7);
  r[2] = MIX(c, d, 0, 1, 4, 5); r[3] = MIX(c, d, 2, 3, 6, 7);
}

/* The sum of the lanes of a vector. */
INLINE real within(vec v) {
  real lanes[VL];
  *(vec_at *)lanes = v;
  quad sum = *(quad_at *)lanes;
  for (n l = 4; l < VL; l += 4) sum += *(quad_at *)(lanes + l);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
static real dot(n N, const real *a, const real *b) {
  vec s0 = {0}, s1 = {0};
  n i = 0;
  for (; i + 2 * VL <= N; i += 2 * VL) {
    s0 += *(const vec_at *)(a + i) * *(const vec_at *)(b + i);
    s1 += *(const vec_at *)(a + i + VL) * *(const vec_at *)(b + i + VL);
  }
  real rest = 0;
  for (; i < N; i++) rest += a[i] * b[i];
  return within(s0 + s1) + rest;
}
static real total(n N, const real *a) {
  vec s = {0};
  n i = 0;
  for (; i + VL <= N; i += VL) s += *(const vec_at *)(a + i);
  real rest = 0;
  for (; i < N; i++) rest += a[i];
  return within(s) + rest;
}
/* b = c a, and b = a below: faster than a call of memcpy for short arrays. */
INLINE void scaled(n N, real c, const real *restrict a, real *restrict b) {
  n i = 0;
  for (; i + VL <= N; i += VL) *(vec_at *)(b + i) = c * *(const vec_at *)(a + i);
  for (; i + 4 <= N; i += 4) *(quad_at *)(b + i) = c * *(const quad_at *)(a + i);
  for (; i < N; i++) b[i] = c * a[i];
}
INLINE void copied(n N, const real *restrict a, real *restrict b) {
  if (N == 4) { *(quad_at *)b = *(const quad_at *)a; return; } /* often the channels of a head */
  n i = 0;
  for (; i + VL <= N; i += VL) *(vec_at *)(b + i) = *(const vec_at *)(a + i);
  for (; i + 4 <= N; i += 4) *(quad_at *)(b + i) = *(const quad_at *)(a + i);
  for (; i < N; i++) b[i] = a[i];
}

/* Copy `count` pieces of N numbers, which start `as` and `bs` apart; multiply each by its c
   unless c is null. */
static void pieces(n count, n N, const real *c, const real *restrict a, n as, real *restrict b, n bs) {
  if (N == 4 && !c) for (n h = 0; h < count; h++) *(quad_at *)(b + h * bs) = *(const quad_at *)(a + h * as);
  else if (N == 4) for (n h = 0; h < count; h++) *(quad_at *)(b + h * bs) = c[h] * *(const quad_at *)(a + h * as);
  else for (n h = 0; h < count; h++) scaled(N, c ? c[h] : 1, a + h * as, b + h * bs);
}

/* ---- functions ---- */

/* The compiler cannot vectorise calls of libm. Up to |x| = 12, the error of gelu is at most 5e-7;
   that of torch's is 12e-7. */
#if IS_FLOAT
INLINE float exponential(float given) {
  const float x = given < -87.3f ? -87.3f : given > 88.0f ? 88.0f : given;
  /* k is the integer nearest to x / ln 2 */
  const float shifted = x * 1.44269504f + 12582912.0f, k = shifted - 12582912.0f;
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f, power;
  p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
  int bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4b400000 + 127) << 23;
  memcpy(&power, &bits, sizeof bits);
  return given < -87.3f ? 0 : given > 88.0f ? INFINITY : (p * (r * r) + r + 1) * power;
}
INLINE float error_function(float x) {
  const float t = x < 0 ? -x : x, s = x * x;
  float big = -1.72853470e-5f * t + 3.83197126e-4f, small = -5.96761703e-4f;
  big = big * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  big = big * t - 1.06777877e-1f; big = big * t - 6.34846687e-1f; big = big * t - 1.28717512e-1f;
  big = 1 - exponential(big * t - t);
  small = small * s + 4.99119423e-3f; small = small * s - 2.67681349e-2f; small = small * s + 1.12819925e-1f;
  small = small * s - 3.76125336e-1f; small = small * s + 1.28379166e-1f;
  return t > 0.927734375f ? x < 0 ? -big : big : small * x + x;
}
INLINE float hyperbolic_tangent(float x) {
  const float t = x < 0 ? -x : x, s = x * x, big = 1 - 2 / (exponential(2 * t) + 1);
  float small = -5.70498872745e-3f;
  small = small * s + 2.06390887954e-2f; small = small * s - 5.37397155531e-2f;
  small = small * s + 1.33314422036e-1f; small = small * s - 3.33332819422e-1f;
  return t > 0.625f ? x < 0 ? -big : big : small * s * x + x;
}
#define EXP exponential
#define ERF error_function
#define TANH hyperbolic_tangent
#else
#define EXP exp
#define ERF erf
#define TANH tanh
#endif

/* ---- products ----

Weights are packed in panels of WIDE outputs, w[panel][k][WIDE], padded with zeros. */

#define HALF (WIDE / 2)
#define REGISTERS (BYTES == 64 ? 16 : 8) /* vector registers for sums */

/* R rows of y = [bias] [+ y] + a w + a2 w2, for `most` outputs, of which `width` are stored. Element
   (r, k) of a is a[r * stride + k], or a[k * stride + r] with `back`; row k of w starts at w + k * ws. */
INLINE void tile(const int R, const n most, const int back, const real *a, n stride, n K, const real *w, n ws,
                 const real *a2, n K2, const real *w2, const real *bias, int add, real *y, n next, n width) {
  vec acc[REGISTERS];
  const int V = most / VL;
#pragma GCC unroll 16
  for (int j = 0; j < R * V; j++) acc[j] = (vec){0};
#pragma GCC unroll 1
  for (int part = 0; part < 2; part++, a = a2, K = K2, w = w2) for (n k = 0; k < K; k++, w += ws) {
    /* with `back`, rows are far apart in memory */
    if (back) { __builtin_prefetch(a + (k + 8) * stride); __builtin_prefetch(w + 8 * ws); }
    vec row[8];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) row[v] = *(const vec_at *)(w + v * VL);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const real c = back ? a[k * stride + r] : a[r * stride + k];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) acc[r * V + v] += c * row[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++, y += next) {
    real edge[WIDE] = {0}, *to = width == most ? y : edge;
    if (add && width < most) memcpy(edge, y, width * sizeof(real));
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      vec found = acc[r * V + v];
      if (bias) found += *(const vec_at *)(bias + v * VL);
      if (add) found += *(const vec_at *)(to + v * VL);
      *(vec_at *)(to + v * VL) = found;
    }
    if (width < most) memcpy(y, edge, width * sizeof(real));
  }
}
typedef void tiled(const real *a, n stride, n K, const real *w, n ws, const real *a2, n K2, const real *w2,
                   const real *bias, int add, real *y, n next, n width);
#define TILE(name, R, most, back) static __attribute__((noinline)) void name( \
    const real *a, n stride, n K, const real *w, n ws, const real *a2, n K2, const real *w2, const real *bias, int add, \
    real *y, n next, n width) { tile(R, most, back, a, stride, K, w, ws, a2, K2, w2, bias, add, y, next, width); }
#define ROWS_WIDE ((int)(REGISTERS * VL / WIDE))
#define ROWS_HALF ((int)(REGISTERS * VL / HALF))
TILE(wide_rows, ROWS_WIDE, WIDE, 0) TILE(wide_row, 1, WIDE, 0)
TILE(half_rows, ROWS_HALF, HALF, 0) TILE(half_row, 1, HALF, 0)
TILE(wide_back, ROWS_WIDE, WIDE, 1) TILE(wide_back_row, 1, WIDE, 1)
TILE(half_back, ROWS_HALF, HALF, 1) TILE(half_back_row, 1, HALF, 1)

/* y (rows, O) = bias + a w + a2 w2 [+ y] for packed w and w2. */
static void product(n rows, n O, const real *a, n stride, n K, const real *w, const real *a2, n K2, const real *w2,
                    const real *bias, int add, real *y, n next) {
  for (n o = 0; o < O; o += WIDE) {
    const int half = O - o <= HALF, many = half ? ROWS_HALF : ROWS_WIDE;
    for (n r = 0, step; r < rows; r += step) {
      step = rows - r >= many ? many : 1;
      tiled *const f = step == many ? half ? half_rows : wide_rows : half ? half_row : wide_row;
      f(a + r * stride, stride, K, w + o * K, WIDE, a2 + r * stride, K2, w2 + o * K2, bias ? bias + o : 0, add,
        y + r * next + o, next, SMALLER(O - o, half ? HALF : WIDE));
    }
  }
}

/* ---- linear maps ----

Prepared weights: the map of scalars and scalar parts (SI + CI -> SO + CO); the bias; maps 1 to 8
(CI -> CO), of which the first four keep grades 1 to 4 and the others multiply grades 0 to 3 by e0; then
all of them but the bias transposed (outputs -> inputs), for the backward pass. */

#define PADDED(x) (((x) + WIDE - 1) / WIDE * WIDE)
#define BIAS_AT (PADDED(SO + CO) * (SI + CI))
#define MAP(m) (BIAS_AT + PADDED(SO + CO) + ((m) - 1) * PADDED(CO) * CI)
#define BACK_AT MAP(MAPS)
#define BACK_MAP(m) (BACK_AT + PADDED(SI + CI) * (SO + CO) + ((m) - 1) * PADDED(CI) * CO)

KERNEL linear_forward(n t0, n t1, n CI, n CO, n SI, n SO, const real *restrict w, const real *restrict x,
                      real *restrict y) {
  const n FI = SI + BLADES * CI, FO = SO + BLADES * CO, rows = t1 - t0;
  x += t0 * FI; y += t0 * FO;
  product(rows, SO + CO, x, FI, SI + CI, w, x, 0, w, w + BIAS_AT, 0, y, FO);
  for (n p = 1; p < BLADES; p++) {
    const real *from = x + SI + p * CI;
    const int more = p >= EUCLIDEAN;
    product(rows, CO, from, FI, CI, w + MAP(GRADE[p]), from - more * EUCLIDEAN * CI, more * CI,
            w + MAP(GRADES + GRADE[p - more * EUCLIDEAN]), 0, 0, y + SO + p * CO, FO);
  }
}

KERNEL linear_backward(n t0, n t1, n CI, n CO, n SI, n SO, const real *restrict w, const real *restrict g,
                       real *restrict gx) {
  const n FI = SI + BLADES * CI, FO = SO + BLADES * CO, rows = t1 - t0;
  g += t0 * FO; gx += t0 * FI;
  const real *shifted = g + SO + EUCLIDEAN * CO;
  product(rows, SI + CI, g, FO, SO + CO, w + BACK_AT, g, 0, w, 0, 0, gx, FI);
  product(rows, CI, shifted, FO, CO, w + BACK_MAP(GRADES), g, 0, w, 0, 1, gx + SI, FI);
  for (n p = 1; p < BLADES; p++) {
    const int more = p < EUCLIDEAN;
    product(rows, CI, g + SO + p * CO, FO, CO, w + BACK_MAP(GRADE[p]), more ? shifted + p * CO : g, more * CO,
            w + BACK_MAP(GRADES + more * GRADE[p]), 0, 0, gx + SI + p * CI, FI);
  }
}

/* Parameters: weight (CO, CI, MAPS), s2mv (CO, SI), mv2s (SO, CI), s2s (SO, SI), and if BIAS,
   bias_mv (CO) and bias_s (SO). */
#define PARAMETERS(kind, p) \
  kind *weight = p, *s2mv = weight + MAPS * CO * CI, *mv2s = s2mv + CO * SI, *s2s = mv2s + SO * CI, \
       *bias_mv = s2s + SO * SI, *bias_s = bias_mv + CO;

/* Whether a channel's type is odd: scalars, before channel 0, are even, and so are all channels of a
   map without types, whose `odd` is null. Weights between unlike types are zero. */
INLINE int is_odd(const int *odd, n channel) { return odd && channel >= 0 && odd[channel]; }
/* keep[t][j]: one if channel `first` + j has type t, else zero; all ones without types. */
INLINE void types_of(const int *odd, const int *other, n first, n count, real keep[2][WIDE]) {
  for (n j = 0; j < WIDE; j++) keep[0][j] = keep[1][j] = 1;
  if (odd || other) for (n j = 0; j < SMALLER(count, WIDE); j++) keep[!is_odd(odd, first + j)][j] = 0;
}

/* Copy a block of weights that begins at (o, k) to w (K -> O) and back (O -> K). */
static void spread(real block[WIDE][WIDE], n o, n k, n O, n K, real *restrict w, real *restrict back) {
  for (n i = 0; i < WIDE; i += 4) for (n j = 0; j < WIDE && k + j < K; j += 4) {
    quad part[4];
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++) part[l] = *(quad_at *)(block[i + l] + j);
    turn4(part);
    real *to = w + o * K + (k + j) * WIDE + i;
    *(quad_at *)to = part[0];
    if (k + j + 1 < K) *(quad_at *)(to + WIDE) = part[1];
    if (k + j + 2 < K) *(quad_at *)(to + 2 * WIDE) = part[2];
    if (k + j + 3 < K) *(quad_at *)(to + 3 * WIDE) = part[3];
  }
  for (n i = 0; i < WIDE && o + i < O; i++) memcpy(back + k * O + (o + i) * WIDE, block[i], sizeof block[i]);
}

/* Units: blocks of WIDE x WIDE weights, those of scalars and scalar parts first. */
KERNEL prepare(n t0, n t1, n CI, n CO, n SI, n SO, n BIAS, const int *odd_in, const int *odd_out,
               const real *restrict weight, const real *restrict s2mv, const real *restrict mv2s,
               const real *restrict s2s, const real *restrict bias_mv, const real *restrict bias_s,
               real *restrict w) {
  const n O = SO + CO, K = SI + CI, across = PADDED(K) / WIDE, first = PADDED(O) / WIDE * across;
  for (n u = t0; u < t1; u++) {
    real block[WIDE][WIDE] = {{0}}, keep[2][WIDE];
    if (u < first) {
      const n o = u / across * WIDE, k = u % across * WIDE;
      const n scalars = k > SI ? 0 : SMALLER(SI - k, WIDE), in = k + scalars - SI;
      const n parts = SMALLER(CI - in, WIDE - scalars);
      types_of(odd_in, odd_out, k - SI, K - k, keep);
      for (n i = 0; i < WIDE && o + i < O; i++) {
        const n out = o + i - SO;
        copied(scalars, (out < 0 ? s2s + (o + i) * SI : s2mv + out * SI) + k, block[i]);
        if (out < 0) copied(parts, mv2s + (o + i) * CI + in, block[i] + scalars);
        else for (n j = 0; j < parts; j++) block[i][scalars + j] = SCALE[0] * weight[(out * CI + in + j) * MAPS];
        if (is_odd(odd_out, out)) for (n j = 0; j < WIDE; j++) block[i][j] *= keep[1][j];
        else if (odd_in) for (n j = scalars; j < scalars + parts; j++) block[i][j] *= keep[0][j];
      }
      spread(block, o, k, O, K, w, w + BACK_AT);
      if (k == 0) for (n i = 0; i < WIDE; i++) {
        const n out = o + i - SO;
        w[BIAS_AT + o + i] = !BIAS || out >= CO || is_odd(odd_out, out) ? 0 : out < 0 ? bias_s[o + i] : bias_mv[out];
      }
    } else {
      const n o = (u - first) / (PADDED(CI) / WIDE) * WIDE, k = (u - first) % (PADDED(CI) / WIDE) * WIDE;
      types_of(odd_in, odd_out, k, CI - k, keep);
      for (n m = 1; m < MAPS; m++) {
        for (n i = 0; i < WIDE && o + i < CO; i++) {
          const real *kept = keep[is_odd(odd_out, o + i)];
          for (n j = 0; j < WIDE && k + j < CI; j++)
            block[i][j] = kept[j] * (SCALE[m] * weight[((o + i) * CI + k + j) * MAPS + m]);
        }
        spread(block, o, k, CO, CI, w + MAP(m), w + BACK_MAP(m));
      }
    }
  }
}

/* Gradient of the parameters, zero between unlike types; `first` (SO + CO, SI + CI) is that of scalars
   and scalar parts. Units: HALF outputs of one of maps 1 to 8, then OUTPUTS outputs of `first` and of
   the bias. */
KERNEL linear_weights(n t0, n t1, n T, n CI, n CO, n SI, n SO, n BIAS, const int *odd_in, const int *odd_out,
                      const real *restrict x, const real *restrict g, const real *restrict first,
                      real *restrict theta) {
  PARAMETERS(real, theta)
  const n FI = SI + BLADES * CI, FO = SO + BLADES * CO, tiles = (CO + HALF - 1) / HALF;
  for (n u = t0; u < t1; u++) {
    if (u >= (MAPS - 1) * tiles) {
      const n from = (u - (MAPS - 1) * tiles) * OUTPUTS, to = SMALLER(from + OUTPUTS, SO + CO);
      for (n o = from; o < to; o++) {
        const real *row = first + o * (SI + CI);
        memcpy(o < SO ? s2s + o * SI : s2mv + (o - SO) * SI, row, SI * sizeof(real));
        if (o < SO) memcpy(mv2s + o * CI, row + SI, CI * sizeof(real));
        else for (n i = 0; i < CI; i++) weight[((o - SO) * CI + i) * MAPS] = SCALE[0] * row[SI + i];
        if (is_odd(odd_out, o - SO)) memset(s2mv + (o - SO) * SI, 0, SI * sizeof(real));
        if (odd_in || odd_out) for (n i = 0; i < CI; i++) if (is_odd(odd_in, i) != is_odd(odd_out, o - SO))
          *(o < SO ? mv2s + o * CI + i : weight + ((o - SO) * CI + i) * MAPS) = 0;
      }
      if (!BIAS) continue;
      real sum[OUTPUTS] = {0};
      if (to - from == OUTPUTS)
        for (n t = 0; t < T; t++) for (n i = 0; i < OUTPUTS; i++) sum[i] += g[t * FO + from + i];
      else for (n t = 0; t < T; t++) for (n i = 0; i < to - from; i++) sum[i] += g[t * FO + from + i];
      for (n o = from; o < to; o++) *(o < SO ? bias_s + o : bias_mv + o - SO) = is_odd(odd_out, o - SO) ? 0 : sum[o - from];
      continue;
    }
    const n m = 1 + u % (MAPS - 1), begin = u / (MAPS - 1) * HALF, end = SMALLER(begin + HALF, CO);
    const int shift = m >= GRADES;
    for (n i = 0; i < CI; i += WIDE) {
      const n width = SMALLER(CI - i, WIDE);
      const int half = width <= HALF, many = half ? ROWS_HALF : ROWS_WIDE;
      real out[HALF][WIDE], keep[2][WIDE];
      types_of(odd_in, odd_out, i, CI - i, keep);
      for (n o = begin, step; o < end; o += step) {
        step = end - o >= many ? many : 1;
        tiled *const f = step == many ? half ? half_back : wide_back : half ? half_back_row : wide_back_row;
        int add = 0;
        for (n p = 0; p < (shift ? EUCLIDEAN : BLADES); p++) if (m == GRADE[p] + GRADES * shift) {
          const real *outer = g + SO + (p + EUCLIDEAN * shift) * CO + o, *inner = x + SI + p * CI + i;
          const n room = T * FI - (SI + p * CI + i) - (half ? HALF : WIDE);
          const n safe = room < 0 ? 0 : SMALLER(T, room / FI + 1);
          f(outer, FO, safe, inner, FI, 0, 0, 0, 0, add, out[o - begin], WIDE, width);
          add = 1;
          if (safe == T) continue;
          real last[3][WIDE] = {{0}}; /* vector loads must not read past the end of x */
          for (n t = safe; t < T; t++) copied(width, inner + t * FI, last[t - safe]);
          f(outer + safe * FO, FO, T - safe, last[0], WIDE, 0, 0, 0, 0, 1, out[o - begin], WIDE, width);
        }
      }
      for (n o = begin; o < end; o++) {
        const real *kept = keep[is_odd(odd_out, o)];
        for (n j = 0; j < width; j++) weight[(o * CI + i + j) * MAPS + m] = kept[j] * (SCALE[m] * out[o - begin][j]);
      }
    }
  }
}

/* Reorder the columns of rows, and back. `runs` (COUNT, 3): the first column of each piece in x, its
   first column in y, its number of columns. */
KERNEL reorder(n t0, n t1, n F, n COUNT, const int *restrict runs, const real *restrict x, real *restrict y) {
  for (n t = t0; t < t1; t++) for (const int *r = runs; r < runs + 3 * COUNT; r += 3)
    copied(r[2], x + t * F + r[0], y + t * F + r[1]);
}
KERNEL reorder_back(n t0, n t1, n F, n COUNT, const int *restrict runs, const real *restrict x, real *restrict y) {
  for (n t = t0; t < t1; t++) for (const int *r = runs; r < runs + 3 * COUNT; r += 3)
    copied(r[2], x + t * F + r[1], y + t * F + r[0]);
}

/* ---- norm ---- */

KERNEL norm_forward(n t0, n t1, n C, n S, double epsilon, const real *restrict x, const real *restrict d,
                    real *restrict z, real *restrict y, real *restrict stat) {
  const n F = S + BLADES * C;
  for (n t = t0; t < t1; t++) {
    const real *restrict xt = x + t * F, *restrict dt = d + t * F;
    real *restrict zt = z + t * F, *restrict yt = y + t * F;
    for (n f = 0; f < F; f++) zt[f] = xt[f] + dt[f];
    const real mean = total(S, zt) / (S ? S : 1), m = dot(EUCLIDEAN * C, zt + S, zt + S) / C;
    for (n f = 0; f < S; f++) yt[f] = zt[f] - mean;
    const real q = 1 / SQRT(dot(S, yt, yt) / (S ? S : 1) + SCALAR_NORM_EPSILON);
    const real r = m != m ? m : 1 / SQRT(m > epsilon ? m : (real)epsilon);
    stat[2 * t] = m > epsilon ? r : -r;
    stat[2 * t + 1] = q;
    for (n f = 0; f < S; f++) yt[f] *= q;
    for (n f = S; f < F; f++) yt[f] = zt[f] * r;
  }
}

KERNEL norm_backward(n t0, n t1, n C, n S, const real *restrict gz, const real *restrict gy, const real *restrict y,
                     const real *restrict stat, real *restrict out) {
  const n F = S + BLADES * C;
  for (n t = t0; t < t1; t++) {
    const real *restrict gt = gy + t * F, *restrict yt = y + t * F;
    real *restrict ot = out + t * F;
    const real r = stat[2 * t] < 0 ? -stat[2 * t] : stat[2 * t], q = stat[2 * t + 1];
    const real along = stat[2 * t] < 0 ? 0 : dot(BLADES * C, gt + S, yt + S) / C;
    const real mean = total(S, gt) / (S ? S : 1), with = dot(S, gt, yt) / (S ? S : 1);
    for (n f = 0; f < S; f++) ot[f] = q * (gt[f] - mean - yt[f] * with);
    for (n f = S; f < S + EUCLIDEAN * C; f++) ot[f] = r * (gt[f] - yt[f] * along);
    for (n f = S + EUCLIDEAN * C; f < F; f++) ot[f] = r * gt[f];
    if (gz) for (n f = 0; f < F; f++) ot[f] += gz[t * F + f];
  }
}

/* ---- queries, keys and values ----

A row of `raw` has SH scalars of each head, then for each blade CM channels of each head. The heads are
those of queries, then of keys, then of values. */

#define SOME (MOST_FEATURES / FEATURES) /* channels that are processed together */

/* The DISTANCES features per channel of a query or key; blades of mv are CALL numbers apart. */
INLINE void distances(n N, n CALL, const int query, real epsilon, const real *restrict mv, real out[DISTANCES][SOME]) {
  for (n i = 0; i < N; i++) {
    const real w0 = mv[E123 * CALL + i], om = w0 / (w0 * w0 + epsilon), W = w0 * om;
    const real x = mv[POINT_X * CALL + i] * om, y = mv[POINT_Y * CALL + i] * om, z = mv[POINT_Z * CALL + i] * om;
    const real sq = x * x + y * y + z * z, twice = query ? W : 2 * W;
    out[0][i] = query ? W * W : -sq; out[1][i] = query ? sq : -W * W;
    out[2][i] = twice * x; out[3][i] = twice * y; out[4][i] = twice * z;
  }
}

/* Rotate the channel pairs (c, c + SH/2) of H heads, `step` numbers apart, by the angles whose cosines and sines are
   `rotary` (SH); if `back`, by minus these angles. */
INLINE void rotated(n H, n SH, n step, const int back, const real *restrict rotary, real *restrict s) {
  const n half = SH / 2;
  for (n h = 0; h < H; h++, s += step) for (n c = 0; c < half; c++) {
    const real x = s[c], y = s[half + c], cosine = rotary[c], sine = back ? -rotary[half + c] : rotary[half + c];
    s[c] = x * cosine - y * sine; s[half + c] = y * cosine + x * sine;
  }
}

INLINE void heads_forward(n H, n CALL, n CM, n SH, n D, n AWARE, const int query, real epsilon, const real *alpha,
                          const real *beta, const real *gamma, const real *rotary, const real *s, const real *mv,
                          real *out) {
  const n plain = AWARE ? INNER : EUCLIDEAN, used = SH + CM * (AWARE ? FEATURES : EUCLIDEAN);
  pieces(H, SH, gamma, s, SH, out, D);
  if (rotary) rotated(H, SH, D, 0, rotary, out);
  for (n p = 0; p < plain; p++) pieces(H, CM, alpha, mv + p * CALL, CM, out + SH + p * CM, D);
  for (n h = 0; h < H; h++) for (n j = used; j < D; j++) out[h * D + j] = 0;
  if (!AWARE || !CM) return;
  const n group = SOME / CM;
  for (n h0 = 0; h0 < H; h0 += group) {
    real found[DISTANCES][SOME];
    const n count = SMALLER(group, H - h0);
    distances(count * CM, CALL, query, epsilon, mv + h0 * CM, found);
    for (n j = 0; j < DISTANCES; j++) {
      if (beta) for (n i = 0; i < count * CM; i++) found[j][i] *= beta[h0 * CM + i];
      pieces(count, CM, 0, found[j], CM, out + h0 * D + SH + (INNER + j) * CM, D);
    }
  }
}

KERNEL features_forward(n t0, n t1, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon, const real *alpha,
                        const real *beta, const real *gamma, const real *restrict rotary, const real *restrict raw,
                        real *restrict q, real *restrict k, real *restrict v) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, F = SALL + BLADES * CALL, V = SH + BLADES * CM;
  for (n t = t0; t < t1; t++) {
    const real *s = raw + t * F, *mv = s + SALL, *turn = rotary ? rotary + t * SH : 0;
    heads_forward(H, CALL, CM, SH, D, AWARE, 1, epsilon, alpha, beta, gamma, turn, s, mv, q + t * H * D);
    heads_forward(HK, CALL, CM, SH, D, AWARE, 0, epsilon, 0, 0, 0, turn, s + H * SH, mv + H * CM, k + t * HK * D);
    s += (H + HK) * SH; mv += (H + HK) * CM;
    pieces(HK, SH, 0, s, SH, v + t * HK * V, V);
    for (n p = 0; p < BLADES; p++) pieces(HK, CM, 0, mv + p * CALL, CM, v + t * HK * V + SH + p * CM, V);
  }
}

/* out: the gradient of mv; `along`: that of log beta. */
INLINE void distances_backward(n N, n CALL, const int query, real epsilon, const real *restrict mv, real g[DISTANCES][SOME],
                               real *restrict out, real *restrict along) {
  real found[4][SOME];
  for (n i = 0; i < N; i++) {
    const real g0 = g[0][i], g1 = g[1][i], g2 = g[2][i], g3 = g[3][i], g4 = g[4][i], w0 = mv[E123 * CALL + i];
    const real x0 = mv[POINT_X * CALL + i], y0 = mv[POINT_Y * CALL + i], z0 = mv[POINT_Z * CALL + i];
    const real bottom = w0 * w0 + epsilon, omega = w0 / bottom;
    const real W = w0 * omega, x = x0 * omega, y = y0 * omega, z = z0 * omega, with = g2 * x + g3 * y + g4 * z;
    along[i] = g0 * W * W + g1 * (x * x + y * y + z * z) + W * with;
    const real gW = query ? 2 * W * g0 + with : 2 * with - 2 * W * g1;
    const real square = query ? g1 : -g0, twice = query ? W : 2 * W;
    const real gx = 2 * x * square + twice * g2, gy = 2 * y * square + twice * g3, gz = 2 * z * square + twice * g4;
    const real go = gW * w0 + gx * x0 + gy * y0 + gz * z0;
    found[0][i] = gW * omega + go * (epsilon - w0 * w0) / (bottom * bottom);
    found[1][i] = gx * omega; found[2][i] = gy * omega; found[3][i] = gz * omega;
  }
  const n place[4] = {E123, POINT_X, POINT_Y, POINT_Z};
  for (n j = 0; j < 4; j++) copied(N, found[j], out + place[j] * CALL);
}

/* Adds the gradients of log beta (H, CM), log alpha (H), log gamma (H) to `part`, null for keys. */
INLINE void heads_backward(n H, n CALL, n CM, n SH, n D, n AWARE, const int query, real epsilon, const real *alpha,
                           const real *beta, const real *gamma, const real *rotary, const real *s, const real *mv,
                           const real *g, real *os, real *om, real *part) {
  const n plain = AWARE ? INNER : EUCLIDEAN;
  for (n p = plain; p < BLADES; p++) for (n c = 0; c < H * CM; c++) om[p * CALL + c] = 0;
  pieces(H, SH, gamma, g, D, os, SH);
  if (rotary) rotated(H, SH, SH, 1, rotary, os);
  for (n p = 0; p < plain; p++) pieces(H, CM, alpha, g + SH + p * CM, D, om + p * CALL, CM);
  if (gamma) for (n h = 0; h < H; h++) part[H * CM + H + h] += dot(SH, os + h * SH, s + h * SH);
  if (alpha) for (n h = 0; h < H; h++) for (n p = 0; p < plain; p++)
    part[H * CM + h] += dot(CM, om + p * CALL + h * CM, mv + p * CALL + h * CM);
  if (!AWARE || !CM) return;
  const n group = SOME / CM;
  for (n h0 = 0; h0 < H; h0 += group) {
    real given[DISTANCES][SOME], along[SOME];
    const n count = SMALLER(group, H - h0);
    for (n j = 0; j < DISTANCES; j++) {
      pieces(count, CM, 0, g + h0 * D + SH + (INNER + j) * CM, D, given[j], CM);
      if (beta) for (n i = 0; i < count * CM; i++) given[j][i] *= beta[h0 * CM + i];
    }
    distances_backward(count * CM, CALL, query, epsilon, mv + h0 * CM, given, om + h0 * CM, along);
    if (beta) for (n c = 0; c < count * CM; c++) part[h0 * CM + c] += along[c];
  }
}

/* `parts` (blocks of BLOCK items, H * (CM + 2)): `part` of heads_backward, for each block. */
KERNEL features_backward(n t0, n t1, n H, n HK, n CM, n SH, n D, n AWARE, double epsilon, const real *alpha,
                         const real *beta, const real *gamma, const real *restrict rotary, const real *restrict raw,
                         const real *restrict gq, const real *restrict gk, const real *restrict gv, real *restrict out,
                         real *restrict parts) {
  const n CALL = (H + 2 * HK) * CM, SALL = (H + 2 * HK) * SH, F = SALL + BLADES * CALL, V = SH + BLADES * CM;
  for (n t = t0; t < t1; t++) {
    const real *s = raw + t * F, *mv = s + SALL, *turn = rotary ? rotary + t * SH : 0;
    real *os = out + t * F, *om = os + SALL, *part = parts + t / BLOCK * H * (CM + 2);
    if (t % BLOCK == 0) for (n j = 0; j < H * (CM + 2); j++) part[j] = 0;
    heads_backward(H, CALL, CM, SH, D, AWARE, 1, epsilon, alpha, beta, gamma, turn, s, mv, gq + t * H * D, os, om,
                   part);
    heads_backward(HK, CALL, CM, SH, D, AWARE, 0, epsilon, 0, 0, 0, turn, s + H * SH, mv + H * CM, gk + t * HK * D,
                   os + H * SH, om + H * CM, 0);
    os += (H + HK) * SH; om += (H + HK) * CM;
    pieces(HK, SH, 0, gv + t * HK * V, V, os, SH);
    for (n p = 0; p < BLADES; p++) pieces(HK, CM, 0, gv + t * HK * V + SH + p * CM, V, om + p * CALL, CM);
  }
}

/* ---- attention within sets of N <= MOST items ----

The items of a set are `step` rows apart: N * step consecutive rows hold `step` sets, and units are whole ones. */

/* out[i][j] = a[i] . b[j], for N rows of K numbers each */
static void all_dots(n N, n K, const real *a, n as, const real *b, n bs, real *out) {
  for (n i = 0; i < N; i += 4) for (n j = 0; j < N; j += 4) {
    const n R = SMALLER(N - i, 4), C = SMALLER(N - j, 4);
    const real *x[4], *y[4];
    vec part[4][4];
    real rest[4][4] = {{0}}, lanes[4][4][VL];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) { /* rows past the end repeat the first one */
      x[r] = a + (i + (r < R ? r : 0)) * as; y[r] = b + (j + (r < C ? r : 0)) * bs;
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) part[r][c] = (vec){0};
    }
    n k = 0;
    for (; k + VL <= K; k += VL) {
      vec other[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) other[c] = *(const vec_at *)(y[c] + k);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        const vec own = *(const vec_at *)(x[r] + k);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) part[r][c] += own * other[c];
      }
    }
    for (; k < K; k++) for (int r = 0; r < 4; r++) for (int c = 0; c < 4; c++) rest[r][c] += x[r][k] * y[c][k];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) *(vec_at *)lanes[r][c] = part[r][c];
    for (int r = 0; r < R; r++) {
      quad four[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) {
        four[c] = *(const quad_at *)lanes[r][c];
        for (n l = 4; l < VL; l += 4) four[c] += *(const quad_at *)(lanes[r][c] + l);
      }
      turn4(four);
      const quad sum = (four[0] + four[1]) + (four[2] + four[3]) + *(const quad_at *)rest[r];
      for (int c = 0; c < C; c++) out[(i + r) * N + j + c] = sum[c];
    }
  }
}

/* y[r] = sum over j of p[r * pr + j * pj] x[j]; added to y[r] if `add`. */
static void combine(n N, n K, const real *p, n pr, n pj, const real *x, n xs, real *y, n ys, int add) {
  for (n r = 0; r < N; r++, p += pr, y += ys) for (n e = 0; e < K;) {
    if (K - e >= VL) {
      vec sum = {0};
      if (add) sum = *(const vec_at *)(y + e);
      for (n j = 0; j < N; j++) sum += p[j * pj] * *(const vec_at *)(x + j * xs + e);
      *(vec_at *)(y + e) = sum;
      e += VL;
    } else {
      real sum = add ? y[e] : 0;
      for (n j = 0; j < N; j++) sum += p[j * pj] * x[j * xs + e];
      y[e++] = sum;
    }
  }
}

static void softmax(n N, real scale, real *p) {
  for (n i = 0; i < N; i++) {
    real *row = p + i * N, top = -INFINITY;
    for (n j = 0; j < N; j++) { row[j] *= scale; if (!(row[j] <= top)) top = row[j]; }
    for (n j = 0; j < N; j++) row[j] -= top;
  }
  for (n i = 0; i < N * N; i++) p[i] = EXP(p[i]);
  for (n i = 0; i < N; i++) {
    real *row = p + i * N, sum = 0;
    for (n j = 0; j < N; j++) sum += row[j];
    for (n j = 0; j < N; j++) row[j] /= sum;
  }
}

KERNEL small_attention_forward(n t0, n t1, n N, n step, n H, n HK, n D, n V, double scale, const real *restrict q,
                               const real *restrict k, const real *restrict v, real *restrict o) {
  real p[MOST * MOST];
  const n R = step * H, RK = step * HK;
  for (n b = t0 / N; b < t1 / N; b++) for (n h = 0; h < H; h++) {
    const n row = b / step * step * N + b % step, at = row * H + h, from = row * HK + h % HK;
    all_dots(N, D, q + at * D, R * D, k + from * D, RK * D, p);
    softmax(N, scale, p);
    combine(N, V, p, N, 1, v + from * V, RK * V, o + at * V, R * V, 0);
  }
}

KERNEL small_attention_backward(n t0, n t1, n N, n step, n H, n HK, n D, n V, double scale, const real *restrict q,
                                const real *restrict k, const real *restrict v, const real *restrict g,
                                real *restrict gq, real *restrict gk, real *restrict gv) {
  real p[MOST * MOST], gp[MOST * MOST];
  const n R = step * H, RK = step * HK;
  for (n b = t0 / N; b < t1 / N; b++) for (n h = 0; h < H; h++) {
    const n row = b / step * step * N + b % step, at = row * H + h, from = row * HK + h % HK;
    const int add = h >= HK; /* several query heads may share a key head */
    all_dots(N, D, q + at * D, R * D, k + from * D, RK * D, p);
    softmax(N, scale, p);
    all_dots(N, V, g + at * V, R * V, v + from * V, RK * V, gp);
    combine(N, V, p, 1, N, g + at * V, R * V, gv + from * V, RK * V, add);
    for (n i = 0; i < N; i++) {
      real mean = 0;
      for (n j = 0; j < N; j++) mean += p[i * N + j] * gp[i * N + j];
      for (n j = 0; j < N; j++) gp[i * N + j] = p[i * N + j] * (gp[i * N + j] - mean) * (real)scale;
    }
    combine(N, D, gp, N, 1, k + from * D, RK * D, gq + at * D, R * D, 0);
    combine(N, D, gp, 1, N, q + at * D, R * D, gk + from * D, RK * D, add);
  }
}

/* ---- geometric product and join, of VL channels; blades are xs, ys, os numbers apart ---- */

typedef void form(const real *restrict x, n xs, const real *restrict y, n ys, real *restrict o, n os, real r);
FORMS
/* Apply a form to w channels, VL at a time; the last ones are padded with zeros. */
static void apply(form *f, n w, const real *x, n xs, const real *y, n ys, real *o, n os, real r) {
  n c = 0;
  for (; c + VL <= w; c += VL) f(x + c, xs, y + c, ys, o + c, os, r);
  if (c == w) return;
  real px[BLADES * VL], py[BLADES * VL], po[BLADES * VL];
  for (n k = 0; k < BLADES; k++) for (n i = 0; i < VL; i++) {
    px[k * VL + i] = i < w - c ? x[k * xs + c + i] : 0;
    py[k * VL + i] = i < w - c ? y[k * ys + c + i] : 0;
  }
  f(px, VL, py, VL, po, VL, r);
  for (n k = 0; k < BLADES; k++) for (n i = 0; i < w - c; i++) o[k * os + c + i] = po[k * VL + i];
}

KERNEL bilinear_forward(n t0, n t1, n C, n S, const real *restrict p, const real *restrict y,
                        const real *restrict ref, real *restrict out) {
  for (n t = t0; t < t1; t++) {
    const real *x = p + t * 4 * BLADES * C;
    real *o = out + t * (S + 2 * BLADES * C);
    copied(S, y + t * (S + BLADES * C), o);
    apply(product_2, C, x, 4 * C, x + C, 4 * C, o + S, 2 * C, 1);
    apply(join_2, C, x + 2 * C, 4 * C, x + 3 * C, 4 * C, o + S + C, 2 * C, ref[t]);
  }
}

/* gp: gradient of the four inputs p; out: the layer's output, recomputed; gref: gradient of the
   reference, may be null. */
KERNEL bilinear_backward(n t0, n t1, n C, n S, const real *restrict p, const real *restrict y,
                         const real *restrict ref, const real *restrict g, real *restrict gp, real *restrict out,
                         real *restrict gref) {
  for (n t = t0; t < t1; t++) {
    const real *x = p + t * 4 * BLADES * C, *h = g + t * (S + 2 * BLADES * C) + S, r = ref[t];
    real *o = out + t * (S + 2 * BLADES * C), *gx = gp + t * 4 * BLADES * C;
    copied(S, y + t * (S + BLADES * C), o);
    o += S;
    apply(product_2, C, x, 4 * C, x + C, 4 * C, o, 2 * C, 1);
    apply(product_0, C, x + C, 4 * C, h, 2 * C, gx, 4 * C, 1);
    apply(product_1, C, x, 4 * C, h, 2 * C, gx + C, 4 * C, 1);
    x += 2 * C; gx += 2 * C; h += C; o += C;
    if (gref) {
      apply(join_2, C, x, 4 * C, x + C, 4 * C, o, 2 * C, 1);
      gref[t] = 0;
      for (n k = 0; k < BLADES; k++) gref[t] += dot(C, h + k * 2 * C, o + k * 2 * C);
    }
    apply(join_2, C, x, 4 * C, x + C, 4 * C, o, 2 * C, r);
    apply(join_0, C, x + C, 4 * C, h, 2 * C, gx, 4 * C, r);
    apply(join_1, C, x, 4 * C, h, 2 * C, gx + C, 4 * C, r);
  }
}

/* ---- gate ---- */

enum { TANH_GELU = -1 }; /* the gate's GELU; codegen.py numbers the others */
#define CDF(x) ((real)0.5 * (1 + ERF(x * SQRT_HALF)))
#define GELU_ARGUMENT(x) (GELU_SLOPE * (x + GELU_CUBIC * x * x * x))
static void activate(n kind, n N, const real *restrict x, real *restrict y) {
  if (kind == GELU) for (n i = 0; i < N; i++) y[i] = x[i] * CDF(x[i]);
  if (kind == RELU) for (n i = 0; i < N; i++) y[i] = x[i] <= 0 ? 0 : x[i];
  if (kind == SIGMOID) for (n i = 0; i < N; i++) y[i] = 1 / (1 + EXP(-x[i]));
  if (kind == TANH_GELU) for (n i = 0; i < N; i++) y[i] = (real)0.5 * x[i] * (1 + TANH(GELU_ARGUMENT(x[i])));
}
/* y: as `activate`; gx: g times the derivative. */
static void activate_backward(n kind, n N, const real *restrict x, const real *restrict g, real *restrict y,
                              real *restrict gx) {
  if (kind == GELU) for (n i = 0; i < N; i++) {
    const real v = x[i], cdf = CDF(v);
    y[i] = v * cdf;
    gx[i] = g[i] * (cdf + v * NORMAL_DENSITY * EXP((real)-0.5 * v * v));
  }
  if (kind == RELU) for (n i = 0; i < N; i++) { y[i] = x[i] <= 0 ? 0 : x[i]; gx[i] = x[i] <= 0 ? 0 : g[i]; }
  if (kind == SIGMOID) for (n i = 0; i < N; i++) { y[i] = 1 / (1 + EXP(-x[i])); gx[i] = g[i] * y[i] * (1 - y[i]); }
  if (kind == TANH_GELU) for (n i = 0; i < N; i++) {
    const real v = x[i], th = TANH(GELU_ARGUMENT(v));
    const real slope = GELU_SLOPE * (1 + GELU_CUBIC_TIMES_3 * v * v);
    y[i] = (real)0.5 * v * (1 + th);
    gx[i] = g[i] * ((real)0.5 * (1 + th) + (real)0.5 * v * (1 - th * th) * slope);
  }
}

#define ALL_AT_ONCE (C == 2 * G && C <= SOME) /* one loop over both halves */
/* Activates scalars, and multiplies each of C multivectors by its activated scalar part; G of them
   have such gates, the others (odd ones, in networks with types) take those of the first G. */
KERNEL gate_forward(n t0, n t1, n C, n G, n S, n KIND, const real *restrict x, real *restrict y) {
  for (n t = t0; t < t1; t++) {
    const real *restrict from = x + t * (S + BLADES * C);
    real *restrict to = y + t * (S + BLADES * C);
    activate(KIND, S, from, to);
    from += S; to += S;
    for (n c = 0; c < G; c += SOME) {
      real gate[SOME];
      const n some = SMALLER(G - c, SOME);
      activate(KIND == GELU ? TANH_GELU : KIND, some, from + c, gate);
      const n all = ALL_AT_ONCE ? C : some;
      if (all > some) copied(some, gate, gate + some);
      for (n h = c; h < C; h += all > some ? C : G)
        for (n p = 0; p < BLADES; p++) for (n i = 0; i < all; i++) to[p * C + h + i] = gate[i] * from[p * C + h + i];
    }
  }
}
/* gx: gradient of x; y: the gate's output, recomputed. */
KERNEL gate_backward(n t0, n t1, n C, n G, n S, n KIND, const real *restrict x, const real *restrict g, real *restrict gx,
                     real *restrict y) {
  for (n t = t0; t < t1; t++) {
    const n at = t * (S + BLADES * C);
    const real *restrict from = x + at, *restrict outer = g + at;
    real *restrict to = y + at, *restrict gto = gx + at;
    activate_backward(KIND, S, from, outer, to, gto);
    from += S; outer += S; to += S; gto += S;
    for (n c = 0; c < G; c += SOME) {
      real gate[SOME], sum[SOME] = {0}, more[SOME];
      const n some = SMALLER(G - c, SOME);
      const n all = ALL_AT_ONCE ? C : some, next = all > some ? C : G;
      for (n h = c; h < C; h += next)
        for (n p = 0; p < BLADES; p++) for (n i = 0; i < all; i++) sum[i] += from[p * C + h + i] * outer[p * C + h + i];
      for (n i = some; i < all; i++) sum[i - some] += sum[i];
      activate_backward(KIND == GELU ? TANH_GELU : KIND, some, from + c, sum, gate, more);
      if (all > some) copied(some, gate, gate + some);
      for (n h = c; h < C; h += next) for (n p = 0; p < BLADES; p++) for (n i = 0; i < all; i++) {
        to[p * C + h + i] = gate[i] * from[p * C + h + i];
        gto[p * C + h + i] = gate[i] * outer[p * C + h + i];
      }
      for (n i = 0; i < some; i++) gto[c + i] += more[i];
    }
  }
}

/* Add the first N columns of x to those of y. */
KERNEL add_columns(n t0, n t1, n N, n FX, n FY, const real *restrict x, real *restrict y) {
  for (n t = t0; t < t1; t++) for (n i = 0; i < N; i++) y[t * FY + i] += x[t * FX + i];
}

/* ---- sharing a call between threads ---- */

typedef union { n i; double d; void *p; } value;
typedef void kernel(n t0, n t1, const value *a);
typedef struct { n next, end; char apart[48]; } share;
typedef struct { const value *jobs, *end; int threads, (*me)(void); share (*of)[MOST_THREADS]; } call;
/* A job is its length, number of units and step, then its kernels, each with the number of its
   arguments and the arguments. All kernels run on `step` units, then on the next ones. Every thread
   begins with its own share of a job, whose rows may be in its cache from the previous job. Then it
   helps the other threads, and continues with the next job without waiting. */
static void work(void *p) {
  const call *c = p;
  const int me = c->threads > 1 ? c->me() : 0;
  share(*of)[MOST_THREADS] = c->of;
  for (const value *job = c->jobs, *end; job < c->end; job = end, of++) {
    const n step = job[2].i;
    end = job + job[0].i;
    for (int v = 0; v < c->threads; v++) {
      share *s = *of + (me + v) % c->threads;
      for (n t; (t = __atomic_fetch_add(&s->next, step, __ATOMIC_RELAXED)) < s->end;)
        for (const value *k = job + 3; k < end; k += 2 + k[1].i)
          ((kernel *)k[0].p)(t, t + step < s->end ? t + step : s->end, k + 2);
    }
  }
}
/* `parallel` and `me` are functions of OpenMP: `parallel` runs work(&c) in several threads, `me`
   returns the number of the current thread. */
void flashgatr_run(const value *jobs, n length, int threads,
                   void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int (*me)(void)) {
  share of[MOST_JOBS][MOST_THREADS];
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  n i = 0;
  for (const value *job = jobs; job < jobs + length; job += job[0].i, i++) {
    const n units = job[1].i, step = job[2].i, steps = (units + step - 1) / step;
    for (int v = 0; v < threads; v++) {
      of[i][v].next = steps * v / threads * step;
      of[i][v].end = v == threads - 1 ? units : steps * (v + 1) / threads * step;
    }
  }
  call c = {jobs, jobs + length, threads, me, of};
  if (threads > 1) parallel(work, &c, threads, 0); else work(&c);
}
