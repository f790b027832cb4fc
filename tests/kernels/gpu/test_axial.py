"""Two item axes and rotary positions, on a GPU."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from flashgatr import AxialGATr

from .. import networks as laws
from .networks import ON_GPU, assert_no_worse, cast, make_inputs, make_net

pytestmark = ON_GPU
GOLDEN = Path(__file__).parents[2] / "goldens" / "axial_gatr_rotary.safetensors"
OPTIONS = {
    "default": {},
    "reinsert": dict(laws.REINSERT, multi_query=False),
    "rotary times": dict(
        rotary=(True, False), multi_query=False, distance_aware=False, attention_width=1
    ),
    "types": dict(laws.TYPED, **laws.REINSERT, rotary=(True, False), multi_query=False),
    "rotary": dict(rotary=(True, True), learned_weights="all", **laws.REINSERT),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 4, 5), (3, 20), (20, 3), (1, 40), (2, 20, 12)])
@pytest.mark.parametrize("name", OPTIONS)
def test_axial_networks_are_as_exact(name, shape, dtype):
    def make():
        net = make_net(AxialGATr, num_blocks=3, **OPTIONS[name])
        return net, make_inputs(net, *shape)

    assert_no_worse(make, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["default", "rotary times"])
def test_padded_axial_networks_are_as_exact(name, dtype):
    def make():
        net = make_net(AxialGATr, **OPTIONS[name])
        return net, make_inputs(net, 2, 12, 5)

    mask = torch.rand(2, 12, 5, generator=torch.Generator().manual_seed(0)).cuda() < 0.8
    assert_no_worse(make, dtype=dtype, mask=mask)
    times = torch.ones(12, 12, device="cuda", dtype=torch.bool).tril()
    assert_no_worse(make, dtype=dtype, attention_mask=(times, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "offsets"), [((16, 5), None), ((4, 40), None), ((12,), [0, 0, 3, 3, 12])]
)
def test_rotary_positions_are_as_exact(shape, offsets, dtype):
    def make():
        net = make_net(rotary=True)
        return net, make_inputs(net, *shape)

    given = {} if offsets is None else dict(offsets=torch.tensor(offsets, device="cuda"))
    assert_no_worse(make, dtype=dtype, **given)


def test_rotary_positions_of_padded_sets_are_as_exact():
    def make():
        net = make_net(rotary=True)
        return net, make_inputs(net, 3, 5)

    for dtype in (torch.float32, torch.bfloat16):
        assert_no_worse(make, dtype=dtype, mask=laws.MASK.cuda())


def test_the_rotary_golden_holds_on_the_fused_path():
    with safe_open(GOLDEN, "pt", device="cuda") as file:
        x, meta = {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118
    state = {k.removeprefix("official."): v for k, v in x.items() if k.startswith("official.")}
    net = AxialGATr.from_original(state).cuda().float()
    mv, s = x["input.mv"].float(), x["input.s"].float()
    assert net.obstacle(mv) is None
    out, out_s = net(mv, s, join_reference=meta["join_reference"])
    for found, exact in ((out, x["output.mv"]), (out_s, x["output.s"])):
        assert (found - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("shape", [(8, 6, 5), (4, 40, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_step_with_rotary_positions_equals_an_eager_one(shape, dtype):
    """It reads no memory that others own: garbage is written between capture and replay.

    cuDNN's backward pass, which runs in bfloat16, sums in any order.
    """
    limit = 1e-4 if dtype == torch.float32 else 1e-2
    net = make_net(AxialGATr, num_blocks=3, **OPTIONS["rotary times"])
    mv, s = make_inputs(net, *shape, grows=False)

    def step():
        with cast(dtype):
            assert net.obstacle(mv) is None
            out, out_s = net(mv, s)
        (out.float().square().sum() + out_s.float().sum()).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            net.zero_grad(set_to_none=False)
            step()
    torch.cuda.current_stream().wait_stream(stream)
    expected = [p.grad.clone() for p in net.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net.zero_grad(set_to_none=False)
        step()
    for _ in range(2):
        garbage = [torch.full((n,), 1e30, device="cuda") for n in range(1, 2000)]
        del garbage
        graph.replay()
        for p, g in zip(net.parameters(), expected, strict=True):
            assert (p.grad - g).norm() <= limit * g.norm()


def test_inference_with_rotary_positions_can_be_captured():
    net = make_net(AxialGATr, **OPTIONS["rotary times"])
    mv, s = make_inputs(net, 2, 12, 5, grows=False)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), net.frozen():
        expected = [x.clone() for x in net(mv, s)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = net(mv, s)
        graph.replay()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)
