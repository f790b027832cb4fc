"""Triton's kernels, interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("compiler")
INTERPRETED = """
import sys, torch
sys.path.insert(0, {folder!r})
from tests.kernels import networks as laws
from flashgatr import AxialGATr
from flashgatr.batch import Sets
from flashgatr.kernels import backend, cuda, plan
from flashgatr.kernels.rows import from_rows, to_rows
from flashgatr.versors import translate, working_center

backend.BACKENDS["cpu"] = cuda
variants = (
    {{}},
    dict(laws.REINSERT, multi_query=False, learned_weights="all"),
    dict(laws.ODD, distance_aware=False, activation="sigmoid"),
    dict(laws.NO_SCALARS, activation="relu"),
    dict(laws.REINSERT, rotary=True, learned_weights="all", hidden_s_channels=10),
    dict(laws.TYPED, **laws.REINSERT, multi_query=False),
    dict(laws.TYPED, **laws.NO_SCALARS, hidden_mv_channels=6, attention_width=1),
)
for options in variants:
    torch.manual_seed(0)
    net = laws.make_net(dtype=torch.float32, **options)
    for items in (5, 11):  # attended to within a kernel, and by torch
        mv, s = laws.make_data(net, 2, items, dtype=torch.float32)
        found, expected = (laws.results_of(net, mv, s, plain=plain) for plain in (False, True))
        laws.assert_equal(found, expected, 1e-4)

torch.manual_seed(0)
net = laws.make_net(AxialGATr, torch.float32, rotary=(True, False), multi_query=False)
for shape in ((3, 4), (11, 2)):
    mv, s = laws.make_data(net, *shape, dtype=torch.float32)
    found, expected = (laws.results_of(net, mv, s, plain=plain) for plain in (False, True))
    laws.assert_equal(found, expected, 1e-4)

for types in ({{}}, laws.TYPED):  # frames made by kernels, as on CUDA alone
    torch.manual_seed(0)
    net = laws.make_net(dtype=torch.float32, **types)
    mv, s = (x.detach() for x in laws.make_data(net, 4, 5, dtype=torch.float32))
    with torch.no_grad():
        found = net._fast.run_with_ends(mv, s, Sets((4, 5)), net.linear_in, net.linear_out)
        expected = net(mv, s)
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)

for c, channels in ((2, 1), (3, 0), (1, 7)):  # the ends of a network, which run on CUDA alone
    mv, s = torch.randn(4, 5, c, 16), torch.randn(4, 5, channels)
    sets = Sets((4, 5))
    center, mean = cuda.survey(mv)
    torch.testing.assert_close(center, working_center(mv, sets), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mean, sets.mean(mv[..., 14].mean(-1, keepdim=True))[:, 0])
    shift = sets.spread(center).unsqueeze(-2)
    rows = cuda.enter(mv, s, center)
    torch.testing.assert_close(rows, to_rows(translate(mv, -shift), s), rtol=1e-4, atol=1e-5)
    sizes = plan.Sizes(c, channels)
    rows.requires_grad_()
    inner, expected_s = from_rows(rows, (4, 5), (c, channels))
    expected = translate(inner, shift).flatten(0, 1)
    found, found_s = cuda.leave(rows, center, sizes)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_s, expected_s.flatten(0, 1))
    g, g_s = torch.randn_like(found), torch.randn_like(found_s)
    (expected,) = torch.autograd.grad([expected, expected_s.flatten(0, 1)], rows, [g, g_s])
    torch.testing.assert_close(cuda.leave_backward(g, g_s, center, sizes), expected)
print("equal")
"""


@pytest.mark.slow
def test_the_triton_kernels_equal_the_plain_layers_when_interpreted():
    pytest.importorskip("triton")
    code = INTERPRETED.format(folder=str(Path(__file__).parents[2]))
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]
