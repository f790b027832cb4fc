"""A second, deliberately naive GATr, computed from a state dict with the original's tensor names.

It uses dense 16 x 16 x 16 tables and an explicit softmax, one head at a time. It shares only the
product table with the package, so that agreement of the two means something.
"""

import math

import torch

from flashgatr.algebra import PGA

GRADE = [0] + [1] * 4 + [2] * 6 + [3] * 4 + [4]
NORMS = [1, 1 / 2, 1 / 6**0.5, 1 / 2, 1, 1, 1 / 3**0.5, 1 / 3**0.5, 1]
RAISE = {5: [(1, 0)], 6: [(5, 2), (6, 3), (7, 4)], 7: [(11, 8), (12, 9), (13, 10)], 8: [(15, 14)]}
INNER = [0, 2, 3, 4, 8, 9, 10, 14]
DUAL = [1, -1, 1, -1, 1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1, 1]


def _table(terms):
    table = torch.zeros(16, 16, 16, dtype=torch.float64)
    for k, i, j, s in terms:
        table[i, j, k] = s
    return table


PRODUCT, OUTER = _table(PGA.product_terms), _table(PGA.outer_terms)
BASIS = torch.zeros(9, 16, 16, dtype=torch.float64)
for blade, k in enumerate(GRADE):
    BASIS[k, blade, blade] = NORMS[k]
for b, pairs in RAISE.items():
    for target, source in pairs:
        BASIS[b, target, source] = NORMS[b]


def _dual(x):
    return x.flip(-1) * torch.tensor(DUAL, dtype=x.dtype)


def _multiply(x, y, table):
    return torch.einsum("...i,...j,ijk->...k", x, y, table)


class PlainGATr:
    def __init__(
        self, state, heads, *, reinsert_mv=(), reinsert_s=(), activation="gelu", base=4096
    ):
        self.state, self.heads, self.base = state, heads, base
        self.reinsert_mv, self.reinsert_s = list(reinsert_mv), list(reinsert_s)
        self.activation = activation

    def linear(self, name, mv, s):
        get = lambda key: self.state.get(f"{name}.{key}")  # noqa: E731
        out = torch.einsum("oib,bxy,...iy->...ox", get("weight"), BASIS, mv)
        extra = torch.zeros(*out.shape[:-1], dtype=out.dtype)
        if get("s2mvs.weight") is not None and s is not None:
            extra = s @ get("s2mvs.weight").T + get("s2mvs.bias")
        elif get("bias") is not None:
            extra = extra + get("bias")[:, 0]
        out = torch.cat([(out[..., 0] + extra)[..., None], out[..., 1:]], dim=-1)
        if get("mvs2s.weight") is None:
            return out, None
        scalars = mv[..., 0] @ get("mvs2s.weight").T + get("mvs2s.bias")
        if get("s2s.weight") is not None and s is not None:
            scalars = scalars + s @ get("s2s.weight").T
        return out, scalars

    def norm(self, mv, s):
        mean = (mv[..., INNER] ** 2).sum(-1).mean(-1).clamp(min=0.01)
        centred = s - s.mean(-1, keepdim=True)
        s = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return mv / mean.sqrt()[..., None, None], s

    def qkv(self, name, mv, s, more_mv, more_s):
        qk_mv, qk_s = torch.cat([mv, more_mv], -2), torch.cat([s, more_s], -1)
        if f"{name}.in_linear.weight" in self.state:
            out_mv, out_s = self.linear(f"{name}.in_linear", qk_mv, qk_s)
            parts = zip(out_mv.chunk(3, -2), out_s.chunk(3, -1), strict=True)
            return [self.split(m, t) for m, t in parts]
        q = self.split(*self.linear(f"{name}.q_linear", qk_mv, qk_s))
        k = self.linear(f"{name}.k_linear", qk_mv, qk_s)
        v = self.linear(f"{name}.v_linear", mv, s)
        return [q, *([x] * self.heads for x in (k, v))]

    def split(self, mv, s):
        """Channel index = hidden · heads + head."""
        return [(mv[..., h :: self.heads, :], s[..., h :: self.heads]) for h in range(self.heads)]

    def rotate(self, s):
        half = s.shape[-1] // 2
        angle = torch.arange(s.shape[-2])[:, None] * self.base ** -(torch.arange(half) / half)
        turned = torch.complex(s[..., :half], s[..., half:]) * torch.polar(
            torch.ones_like(angle.double()), angle.double()
        )
        return torch.cat([turned.real, turned.imag], -1)

    def attention(self, name, mv, s, more_mv, more_s):
        q, k, v = self.qkv(f"{name}.qkv_module", mv, s, more_mv, more_s)
        rotary = f"{name}.pos_encoding.inv_freq" in self.state
        outs = []
        for h in range(self.heads):
            (q_mv, q_s), (k_mv, k_s), (v_mv, v_s) = q[h], k[h], v[h]
            if rotary:
                q_s, k_s = self.rotate(q_s), self.rotate(k_s)
            weights = self.state[f"{name}.attention.log_weights"][h, 0].exp()
            logits = torch.einsum(
                "...ncx,...mcx->...nm", q_mv[..., INNER[:7]], k_mv[..., INNER[:7]]
            )
            logits = logits + torch.einsum("...ns,...ms->...nm", q_s, k_s)
            a, b = (
                x[..., 11:15] * (x[..., 14:15] / (x[..., 14:15] ** 2 + 1e-3)) for x in (q_mv, k_mv)
            )
            a, b = a[..., :, None, :, :], b[..., None, :, :, :]
            apart = (b[..., 3:] * a[..., :3] - a[..., 3:] * b[..., :3]).square().sum(-1)
            logits = logits - (weights * apart).sum(-1)
            scale = math.sqrt(12 * q_mv.shape[-2] + q_s.shape[-1])
            p = torch.softmax(logits / scale, -1)
            outs.append(
                (
                    torch.einsum("...nm,...mcx->...ncx", p, v_mv),
                    torch.einsum("...nm,...ms->...ns", p, v_s),
                )
            )
        mv, s = torch.cat([o[0] for o in outs], -2), torch.cat([o[1] for o in outs], -1)
        return self.linear(f"{name}.out_linear", mv, s)

    def mlp(self, name, mv, s, reference):
        left, right, jl, jr = (
            self.linear(f"{name}.0.linear_{part}", mv, s)[0]
            for part in ("left", "right", "join_left", "join_right")
        )
        joined = reference * _dual(_multiply(_dual(jl), _dual(jr), OUTER))
        hidden = torch.cat([_multiply(left, right, PRODUCT), joined], -2)
        mv, s = self.linear(f"{name}.0.linear_out", hidden, s)
        if self.activation == "gelu":
            gate, s = (
                torch.nn.functional.gelu(mv[..., :1], approximate="tanh"),
                torch.nn.functional.gelu(s),
            )
        else:
            gate, s = torch.relu(mv[..., :1]), torch.relu(s)
        last = "2" if f"{name}.2.weight" in self.state else "3"
        return self.linear(f"{name}.{last}", gate * mv, s)

    def __call__(self, mv, s=None, canonical=False, axial=False):
        """mv (B, N, C, 16) or (B, N1, N2, C, 16)."""
        dims = tuple(range(1, mv.dim() - 1))
        reference = torch.ones(1) if canonical else mv.mean(dims)[:, 14]
        reference = reference.reshape(-1, *[1] * (mv.dim() - 1))
        scalars = torch.zeros(*mv.shape[:-2], 0, dtype=mv.dtype) if s is None else s
        more_mv, more_s = mv[..., self.reinsert_mv, :], scalars[..., self.reinsert_s]
        mv, s = self.linear("linear_in", mv, s)
        blocks = 1 + max(int(k.split(".")[1]) for k in self.state if k.startswith("blocks."))
        for i in range(blocks):
            swap = axial and i % 2 == 1
            if swap:
                mv, s, more_mv, more_s = (x.transpose(1, 2) for x in (mv, s, more_mv, more_s))
            h = self.attention(f"blocks.{i}.attention", *self.norm(mv, s), more_mv, more_s)
            mv, s = mv + h[0], s + h[1]
            h = self.mlp(f"blocks.{i}.mlp.layers", *self.norm(mv, s), reference)
            mv, s = mv + h[0], s + h[1]
            if swap:
                mv, s, more_mv, more_s = (x.transpose(1, 2) for x in (mv, s, more_mv, more_s))
        return self.linear("linear_out", mv, s)


def random_state(
    in_mv=2, in_s=1, out_mv=2, out_s=3, mv=4, s=8, heads=2, blocks=2, width=2, *,
    multi_query=True, reinsert_mv=0, reinsert_s=0, rotary=(), dropout=False, seed=0,
):  # fmt: skip
    """Random weights with the tensor names and shapes of the original's network."""
    generator = torch.Generator().manual_seed(seed)
    state = {}

    def draw(name, *shape):
        value = torch.randn(*shape, generator=generator, dtype=torch.float64)
        state[name] = value / math.sqrt(max(shape[1] if len(shape) > 1 else 4, 1))

    def linear(name, i_mv, o_mv, i_s, o_s):
        draw(f"{name}.weight", o_mv, i_mv, 9)
        if i_s:
            draw(f"{name}.s2mvs.weight", o_mv, i_s)
            draw(f"{name}.s2mvs.bias", o_mv)
        elif i_s is None:
            draw(f"{name}.bias", o_mv, 1)
        if o_s:
            draw(f"{name}.mvs2s.weight", o_s, i_mv)
            draw(f"{name}.mvs2s.bias", o_s)
            if i_s:
                draw(f"{name}.s2s.weight", o_s, i_s)

    linear("linear_in", in_mv, mv, in_s, s)
    for i in range(blocks):
        h_mv, h_s = max(width * mv // heads, 1), max(width * s // heads, 4)
        if i in rotary:
            h_s = max(h_s + h_s % 2, 8)
            name = f"blocks.{i}.attention.pos_encoding.inv_freq"
            state[name] = (4096 ** -(torch.arange(h_s // 2) / (h_s // 2))).float()
        qkv, wide = f"blocks.{i}.attention.qkv_module", (mv + reinsert_mv, s + reinsert_s)
        if multi_query:
            linear(f"{qkv}.q_linear", wide[0], heads * h_mv, wide[1], heads * h_s)
            linear(f"{qkv}.k_linear", wide[0], h_mv, wide[1], h_s)
            linear(f"{qkv}.v_linear", mv, h_mv, s, h_s)
        else:
            linear(f"{qkv}.in_linear", wide[0], 3 * heads * h_mv, wide[1], 3 * heads * h_s)
        linear(f"blocks.{i}.attention.out_linear", heads * h_mv, mv, heads * h_s, s)
        draw(f"blocks.{i}.attention.attention.log_weights", heads, 1, h_mv)
        layers = f"blocks.{i}.mlp.layers"
        for part in ("left", "right", "join_left", "join_right"):
            linear(f"{layers}.0.linear_{part}", mv, mv, s, None)
        linear(f"{layers}.0.linear_out", 2 * mv, 2 * mv, s, 2 * s)
        linear(f"{layers}.{3 if dropout else 2}", 2 * mv, mv, 2 * s, s)
    linear("linear_out", mv, out_mv, s, out_s)
    return state
