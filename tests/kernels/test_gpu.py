"""The same laws on a GPU: kernels against the plain layers, and a step as one CUDA graph."""

import contextlib
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgatr import AxialGATr, GATr, embed_direction, embed_point
from flashgatr.fast import parameters_of
from flashgatr.kernels import linear, rows, small_sets, weights
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear
from flashgatr.testing import batch_error, equivariance_error, padding_error

from . import test_fused as laws

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GOLDENS = sorted((Path(__file__).parents[1] / "goldens").glob("*gatr*.safetensors"))
OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=2, hidden_mv_channels=8,
    hidden_s_channels=16, num_blocks=10, num_heads=4, reinsert_mv_channels=(0,),
)  # fmt: skip


def _data(*batch):
    return torch.randn(*batch, 2, 16, device="cuda"), torch.randn(*batch, 1, device="cuda")


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.stem)
def test_goldens(path):
    with safe_open(path, "pt", device="cuda") as file:
        x, meta = {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118
    state = {k.removeprefix("official."): v for k, v in x.items() if k.startswith("official.")}
    cls = AxialGATr if meta["net"] == "AxialGATr" else GATr
    net = cls.from_original(state).cuda()
    out, s = net(x["input.mv"], x["input.s"], join_reference=meta["join_reference"])
    limit = 1e-8 if "rotary" in path.stem else 1e-10
    assert (out - x["output.mv"]).abs().max() <= limit
    assert (s - x["output.s"]).abs().max() <= limit


def test_symmetry_and_independence():
    net, (mv, s) = GATr(**OPTIONS).cuda(), _data(3, 6)
    assert equivariance_error(net, mv, s, draws=100) <= 1e-12
    assert equivariance_error(net, mv, s, draws=100, dtype=torch.float32) <= 2e-5
    for check in (batch_error, padding_error):
        assert check(net, mv, s) <= 1e-12
        assert check(net, mv, s, dtype=torch.float32) <= 1e-6


def test_packed_equals_padded():
    net, (mv, s) = GATr(**OPTIONS).cuda(), _data(12)
    packed, _ = net(mv, s, offsets=torch.tensor([0, 5, 12], device="cuda"))
    alone = torch.cat([net(mv[:5], s[:5])[0], net(mv[5:], s[5:])[0]])
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


def test_the_forward_pass_can_be_captured_and_replayed():
    net, (mv, s) = GATr(**OPTIONS).cuda().eval(), _data(2, 6)
    with torch.no_grad():
        expected = net(mv, s)[0].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, _ = net(mv, s)
        graph.replay()
    torch.testing.assert_close(out, expected)


def _stepper(graph, **options):
    from flashgatr.experiments.config import TrainConfig
    from flashgatr.train.distributed import World
    from flashgatr.train.stepper import Stepper, make_optimizer

    class Fit:
        samples = 8

        def __init__(self):
            torch.manual_seed(0)
            self.model = GATr(**{**OPTIONS, **options}).cuda()

        def loss(self, model, batch):
            out, s = model(*batch[:2])
            return (out - batch[2]).square().mean() + s.square().mean(), {}

    task, device = Fit(), torch.device("cuda")
    config = TrainConfig(cuda_graph=graph, lr=1e-3)
    optimizer = make_optimizer(task.model, config, device)
    return task, Stepper(task, task.model, optimizer, config, World(0, 1, device), print)


def test_a_captured_step_equals_an_eager_one_and_skips_what_is_not_finite():
    torch.manual_seed(1)
    batches = [(*_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda")) for _ in range(6)]
    bad = (batches[0][0] * torch.nan, *batches[0][1:])
    losses = {}
    for graph in (False, True):
        task, stepper = _stepper(graph)
        losses[graph] = []
        for batch in (*batches, bad, *batches):
            loss, _, skipped = stepper.step(batch)
            losses[graph].append(loss.item())
            assert bool(skipped) == (batch is bad)
        assert all(p.isfinite().all() for p in task.model.parameters())
    torch.testing.assert_close(
        torch.tensor(losses[True]),
        torch.tensor(losses[False]),
        rtol=1e-4,
        atol=1e-6,
        equal_nan=True,
    )


def test_a_captured_step_owns_all_memory_it_reads():
    """A step that reads freed memory would go wrong when others write there."""
    torch.manual_seed(1)
    batch = (*_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda"))
    for _ in range(2):
        task, stepper = _stepper(True)
        stepper.step(batch)
        garbage = [torch.full((n,), 1e30, device="cuda") for n in range(1, 2000)]
        del garbage
        losses = [stepper.step(batch)[0].item() for _ in range(20)]
        assert losses[-1] < losses[0]
        assert all(p.isfinite().all() for p in task.model.parameters())


def test_autocast_far_from_the_origin():
    net = GATr(**{**OPTIONS, "in_mv_channels": 1, "in_s_channels": 0}).cuda()
    points = torch.randn(4, 32, 3, device="cuda", dtype=torch.float64)
    errors = []
    for distance in (0.0, 1e4):
        mv = embed_point(points + distance).unsqueeze(-2).float()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            found = net.float()(mv)[1]
        with torch.no_grad():
            exact = net.double()(mv.double())[1]
        errors.append(((found - exact).abs().max() / exact.std()).item())
    assert errors[1] <= 1.5 * errors[0]


# ---- the kernels against the plain layers ----

ENDS = dict(reinsert_mv_channels=(), num_blocks=3)
"""A network whose first and last steps have kernels too, if its inputs need no gradient."""
VARIANTS = [
    "default", "multi-head", "narrow multi-head", "blind to distance", "no learned weights",
    "all learned weights multi-head", "reinsert mv", "reinsert s multi-head", "reinsert mv and s",
    "reinsert mv and s multi-head", "relu", "sigmoid", "no scalars", "scalars at the ends only",
    "scalars in alone", "scalars out alone", "odd channels", "one head", "checkpoint",
    "no recentring", "length scale",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def _net(cls=GATr, **options):
    """A network with a large epsilon of distances.

    Random inputs have points with weights near zero. With a small epsilon, the rounding of a few
    distances would dominate all errors.
    """
    return laws._net(cls, torch.float32, **{"distance_epsilon": 0.3, **options}).cuda()


def _inputs(net, *items, grows=True):
    data = laws._data(net, *items)
    return [x.detach().float().cuda().requires_grad_(grows) for x in data]


def _cast(dtype):
    """Autocast to 16 bits, or nothing."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype)


def _measured(net, mv, s, *, plain, dtype=torch.float32, **given):
    """All outputs in one vector, and all gradients of a fixed projection of them."""
    with plain_kernels() if plain else contextlib.nullcontext(), _cast(dtype):
        assert plain or net.obstacle(mv) is None
        outputs = [x.flatten() for x in net(mv, s, **given) if x.requires_grad]
    outer = [torch.linspace(-1, 1, x.numel()).cos().to(x) for x in outputs]
    leaves = [x for x in (mv, s, *net.parameters()) if x.requires_grad]
    found = torch.autograd.grad(outputs, leaves, outer, allow_unused=True, materialize_grads=True)
    return torch.cat(outputs).detach(), torch.cat([x.flatten() for x in found])


def _assert_no_worse(make, *, dtype=torch.float32, draws=3, **given):
    """Against float64, the error of the kernels is at most twice that of the plain layers.

    Both have the same precision. The errors are those of all outputs and of the whole gradient. One
    draw may be exact by chance, so the test takes the geometric mean of some; `make` draws network
    and inputs.
    """
    logs = []
    for seed in range(draws):
        torch.manual_seed(seed)
        net, (mv, s) = make()
        with torch.no_grad():
            net(mv, s, **given)  # from the second call on, kernels run the network's two ends too
        found = [
            _measured(net, mv, s, plain=plain, dtype=dtype, **given) for plain in (False, True)
        ]
        wide = [x.detach().double().requires_grad_(x.requires_grad) for x in (mv, s)]
        exact = _measured(net.double(), *wide, plain=True, **_doubled(given))
        for results in found:
            for x, y in zip(results, exact, strict=True):
                assert x.shape == y.shape
                assert x.isfinite().all()
                logs.append(
                    math.log(max(((x - y).norm() / y.norm().clamp(min=1e-30)).item(), 1e-9))
                )
    ours, theirs = torch.tensor(logs).view(draws, 2, 2).mean(0).exp()
    assert (ours <= 2 * theirs + 1e-7).all(), (ours.tolist(), theirs.tolist())
    assert (theirs < 0.2).all()  # else nothing was compared


def _doubled(given):
    is_float = {k: isinstance(x, torch.Tensor) and x.is_floating_point() for k, x in given.items()}
    return {k: x.double() if is_float[k] else x for k, x in given.items()}


@pytest.mark.parametrize("grows", [True, False], ids=["inputs grow", ""])
@pytest.mark.parametrize("name", VARIANTS)
def test_float32_kernels_are_as_exact_as_the_plain_layers(name, grows):
    def make():
        net = _net(**laws.VARIANTS[name])
        return net, _inputs(net, 16, 5, grows=grows)

    _assert_no_worse(make)


@pytest.mark.parametrize("items", [5, 20])
@pytest.mark.parametrize("name", VARIANTS[::2])
def test_bfloat16_kernels_are_as_exact_as_the_plain_layers(name, items):
    def make():
        net = _net(**laws.VARIANTS[name])
        return net, _inputs(net, 16, items, grows=items == 5)

    _assert_no_worse(make, dtype=torch.bfloat16)


def test_float16_kernels_are_as_exact_as_the_plain_layers():
    def make():
        net = _net()
        return net, _inputs(net, 16, 5)

    _assert_no_worse(make, dtype=torch.float16)


@pytest.mark.parametrize("grows", [True, False], ids=["inputs grow", ""])
@pytest.mark.parametrize("items", [1, 7, 8, 9, 17, 129])
def test_sets_of_every_size_are_as_exact(items, grows):
    def make():
        net = _net()
        return net, _inputs(net, 5, items, grows=grows)

    _assert_no_worse(make)


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (0, 40)])
@pytest.mark.parametrize("options", [{}, laws.REINSERT], ids=["", "reinsert"])
def test_nothing_gives_nothing(shape, grows, options):
    net = _net(**options)
    mv, s = _inputs(net, *shape, grows=grows)
    for _ in range(2):
        outputs = net(mv, s)
        assert [x.shape for x in outputs] == [(*shape, 1, 16), (*shape, 2)]
    net.zero_grad()
    sum(x.sum() for x in outputs).backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in net.parameters())


def _given():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator).cuda()

    valid = torch.ones(4, 6, device="cuda", dtype=torch.bool)
    valid[1, 3:] = valid[2] = False
    return {
        "padded": dict(mask=valid),
        "boolean mask": dict(attention_mask=random(6, 6) > -0.5),
        "boolean mask per head": dict(attention_mask=random(4, 2, 6, 6) > -0.5),
        "additive mask per head": dict(attention_mask=random(4, 2, 6, 6)),
        "padded, with a mask": dict(mask=valid, attention_mask=random(4, 6, 6) > -0.5),
        "canonical reference": dict(join_reference="canonical"),
        "references": dict(join_reference=random(4, 16)),
        "centres": dict(center=random(4, 3)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "padded", "boolean mask", "boolean mask per head", "additive mask per head",
        "padded, with a mask", "canonical reference", "references", "centres",
    ],
)  # fmt: skip
def test_every_argument_of_a_call_is_as_exact(name, dtype):
    def make():
        net = _net(**laws.REINSERT)
        return net, _inputs(net, 4, 6)

    _assert_no_worse(make, dtype=dtype, **_given()[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offsets", [[0, 5, 12], [0, 0, 3, 3, 12]])
def test_packed_sets_are_as_exact(offsets, dtype):
    def make():
        net = _net()
        return net, _inputs(net, 12)

    _assert_no_worse(make, dtype=dtype, offsets=torch.tensor(offsets, device="cuda"))


@pytest.mark.parametrize("shape", [(2, 4, 5), (3, 20), (20, 3)])
@pytest.mark.parametrize(
    "options", [{}, dict(laws.REINSERT, multi_query=False)], ids=["", "reinsert"]
)
def test_axial_networks_are_as_exact(options, shape):
    def make():
        net = _net(AxialGATr, num_blocks=3, **options)
        return net, _inputs(net, *shape)

    _assert_no_worse(make)


def test_memory_order_and_batch_shape_of_the_inputs_do_not_matter():
    net = _net()
    mv = torch.randn(16, 5, 2, 3, 4, device="cuda").permute(4, 3, 1, 2, 0)
    s = torch.randn(1, 5, 3, 4, device="cuda").permute(3, 2, 1, 0)
    for _ in range(2):
        found = net(mv, s)
        expected = net(mv.reshape(12, 5, 2, 16).contiguous(), s.reshape(12, 5, 1).contiguous())
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x.flatten(0, 1), y, rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_stays_in_its_sample_and_is_seen():
    for options in ({}, dict(activation="relu"), dict(recenter=False)):
        net = _net(**options)
        mv, s = _inputs(net, 3, 5, grows=False)
        broken = mv.clone()
        broken[1, 0, 0, 2] = math.nan
        with torch.no_grad():
            for _ in range(2):  # the second call runs the kernels of the network's ends
                clean, found = net(mv, s), net(broken, s)
                for x, y in zip(found, clean, strict=True):
                    torch.testing.assert_close(x[::2], y[::2], rtol=1e-6, atol=1e-6)
                    assert x[1, 0].isnan().any()


def test_gradients_are_finite_where_the_norm_is_clamped():
    net = _net()
    mv, s = (torch.zeros_like(x).requires_grad_() for x in _inputs(net, 3, 5))
    found, expected = (
        _measured(net, mv, s, plain=plain, join_reference="canonical") for plain in (False, True)
    )
    for x, y in zip(found, expected, strict=True):
        assert x.isfinite().all()
        assert (x - y).norm() <= 1e-4 * y.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_input_gives_the_same_bits(dtype):
    net = _net(learned_weights="all")
    mv, s = _inputs(net, 200, 5, grows=False)
    net(mv, s)
    first, second = (_measured(net, mv, s, plain=False, dtype=dtype) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("channels", [(1, 2), (2, 0), (0, 3), (1, 7)])
def test_the_ends_kernels_move_and_copy(channels):
    """Into the frame and out again, by the kernels alone; also if there are only scalar outputs."""
    c, n = channels
    x, center = torch.randn(15, n + 16 * c, device="cuda"), torch.randn(3, 3, device="cuda")
    mv, s = small_sets.leave(x, center, c, n)
    back_mv, back_s = rows.from_rows(x, (15,), (c, n))
    assert torch.equal(s, back_s)
    still = small_sets.leave(x, torch.zeros_like(center), c, n)[0]
    assert torch.equal(still, back_mv)
    there_and_back = small_sets.leave(rows.to_rows(mv, s), -center, c, n)[0]
    torch.testing.assert_close(there_and_back, back_mv, rtol=1e-4, atol=1e-4)


def test_the_ends_operators_are_registered_correctly():
    mv, s = torch.randn(3, 5, 2, 16, device="cuda"), torch.randn(3, 5, 1, device="cuda")
    x = torch.randn(15, 33, device="cuda", requires_grad=True)
    center = torch.randn(3, 3, device="cuda")
    g_mv, g_s = torch.randn(15, 2, 16, device="cuda"), torch.randn(15, 1, device="cuda")
    operators = torch.ops.flashgatr
    torch.library.opcheck(operators.enter.default, (mv, s))
    torch.library.opcheck(operators.leave.default, (x, center, 2, 1))
    torch.library.opcheck(operators.leave_backward.default, (g_mv, g_s, center))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("items", [1, 7, 16, 17, 100, 512, 513])
def test_products_of_a_few_rows_in_tf32_are_near_enough(items, direction):
    """Ours up to 512 rows, the vendor's beyond."""
    torch.set_float32_matmul_precision("high")
    sizes = 8, 12, 16, 20
    layer = EquiLinear(*sizes).cuda()
    plan = rows.linear_plan(*sizes)
    parameters = parameters_of(layer)
    (prepared,) = weights.Weights().get(parameters, plan, torch.float32)
    mv, s = torch.randn(items, 8, 16, device="cuda"), torch.randn(items, 16, device="cuda")
    x = rows.to_rows(mv, s).requires_grad_()
    found = linear.linear(x, prepared, parameters, plan)
    exact_x = x.detach().double().requires_grad_()
    inner = rows.from_rows(exact_x, (items,), (8, 16))
    exact = rows.to_rows(*layer.double()(*inner))
    if direction == "backward":
        outer = torch.randn_like(exact)
        (found,) = torch.autograd.grad(found, x, outer.float())
        (exact,) = torch.autograd.grad(exact, exact_x, outer)
    assert (found - exact).norm() <= 5e-4 * exact.norm()


@pytest.mark.parametrize("items", [7, 17, 512])
def test_products_of_a_few_rows_in_tf32_are_not_too_small(items):
    """Numbers are rounded, not truncated: for positive ones, all errors would have one sign."""
    torch.set_float32_matmul_precision("high")
    sizes = 1, 1, 255, 1024
    layer = EquiLinear(*sizes).cuda()
    with torch.no_grad():
        for p in layer.parameters():
            p.uniform_(1, 2)
    plan = rows.linear_plan(*sizes)
    parameters = parameters_of(layer)
    (prepared,) = weights.Weights().get(parameters, plan, torch.float32)
    x = torch.rand(items, 16 + 255, device="cuda") + 1
    found = linear.linear(x, prepared, parameters, plan)[:, :1024]
    mv, s = rows.from_rows(x.double(), (items,), (1, 255))
    exact = layer.double()(mv, s)[1]
    assert ((found - exact) / exact).mean().abs() < 2e-5
    x[0, 20] = float("nan")
    assert linear.linear(x, prepared, parameters, plan)[0, :1024].isnan().all()


@pytest.mark.parametrize(("samples", "items"), [(16, 5), (4, 100)])
def test_tf32_networks_are_as_exact_as_the_plain_path(samples, items):
    torch.set_float32_matmul_precision("high")
    net = _net()
    mv, s = _inputs(net, samples, items, grows=False)
    net(mv, s)
    found, plain = (_measured(net, mv, s, plain=plain) for plain in (False, True))
    exact = _measured(net.double(), mv.double(), s.double(), plain=True)
    for x, y, z in zip(found, plain, exact, strict=True):
        assert (x - z).norm() <= 2 * (y - z).norm() + 1e-4 * z.norm()


@pytest.mark.parametrize("name", ["default", "multi-head", "reinsert mv and s", "no scalars"])
@pytest.mark.parametrize("items", [5, 20])
def test_second_derivatives_are_as_exact(name, items):
    net = _net(**laws.VARIANTS[name])
    mv, s = _inputs(net, 4, items)
    found = []
    with sdpa_kernel(SDPBackend.MATH):
        for plain in (False, True):
            with plain_kernels() if plain else contextlib.nullcontext():
                assert plain or net.obstacle(mv) is None
                found.append(_forces(net, mv, s))
        wide = [x.detach().double().requires_grad_() for x in (mv, s)]
        exact = _forces(net.double(), *wide)
    ours, theirs = ((x - exact).norm() / exact.norm() for x in found)
    assert ours <= 2 * theirs + 1e-5, (ours.item(), theirs.item())


def _forces(net, mv, s):
    """The gradient of a force-matching loss by everything, in one vector."""
    energy = sum(x.sin().sum() for x in net(mv, s))
    (force,) = torch.autograd.grad(energy, mv, create_graph=True)
    leaves = [mv, s, *net.parameters()]
    found = torch.autograd.grad(
        force.square().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return torch.cat([x.flatten() for x in found])


# ---- memory, graphs, training ----


@pytest.mark.parametrize("shape", [(2000, 5), (8, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_need_less_memory_than_the_plain_layers(shape, dtype):
    net = GATr(**{**OPTIONS, **ENDS}).cuda()
    mv, s = _inputs(net, *shape, grows=False)
    peaks = []
    for plain in (False, True):
        for _ in range(2):  # the first call makes what is kept
            torch.cuda.reset_peak_memory_stats()
            _measured(net, mv, s, plain=plain, dtype=dtype)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("options", [ENDS, dict(num_blocks=3)], ids=["ends", "reinsert"])
def test_twenty_captured_steps_equal_eager_ones(options):
    torch.manual_seed(1)
    batches = [(*_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda")) for _ in range(4)]
    losses = {}
    for graph in (False, True):
        task, stepper = _stepper(graph, **options)
        assert task.model.obstacle(batches[0][0]) is None
        losses[graph] = [stepper.step(batches[i % 4])[0].item() for i in range(20)]
    eager, captured = torch.tensor(losses[False]), torch.tensor(losses[True])
    torch.testing.assert_close(captured, eager, rtol=1e-4, atol=0)
    assert eager[-4:].mean() < eager[:4].mean()


@pytest.mark.parametrize("options", [ENDS, dict(num_blocks=3)], ids=["ends", "reinsert"])
def test_frozen_inference_can_be_captured(options):
    net = GATr(**{**OPTIONS, **options}).cuda().eval()
    mv, s = _data(2, 6)
    other_mv, other_s = _data(2, 6)
    with torch.no_grad(), net.frozen():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                net(mv, s)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, out_s = net(mv, s)
        for x, y in ((mv, s), (other_mv, other_s)):
            expected = net(x.clone(), y.clone())
            mv.copy_(x)
            s.copy_(y)
            graph.replay()
            torch.testing.assert_close(out, expected[0], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(out_s, expected[1], rtol=1e-5, atol=1e-6)


def test_frozen_weights_are_the_same_and_changes_are_seen_afterwards():
    net = _net()
    mv, s = _inputs(net, 3, 5, grows=False)
    with torch.no_grad():
        net(mv, s)
        expected = net(mv, s)
        with net.frozen():
            for _ in range(2):
                assert all(torch.equal(x, y) for x, y in zip(net(mv, s), expected, strict=True))
        for p in net.parameters():
            p *= 1.1
        found = net(mv, s)
        with plain_kernels():
            expected = net(mv, s)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_evaluation_sees_what_a_fused_optimizer_changed():
    net = _net()
    mv, s = _inputs(net, 3, 5, grows=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        sum(x.square().sum() for x in net(mv, s)).backward()
        optimizer.step()
        with torch.no_grad():
            found = net(mv, s)
            with plain_kernels():
                expected = net(mv, s)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def _loss_after(steps, dtype):
    """Train on bodies that move and attract each other: mean loss of the last steps."""
    torch.manual_seed(0)
    place, speed = torch.randn(2, 64, 5, 3, device="cuda")
    apart = place.unsqueeze(2) - place.unsqueeze(1)
    pull = -(apart / (1 + apart.square().sum(-1, keepdim=True)) ** 1.5).sum(2)
    moved = place + 0.5 * speed + 0.3 * pull
    target = embed_point(moved + 0.1 * torch.randn_like(moved)).unsqueeze(-2)  # seen through noise
    mv = torch.stack([embed_point(place), embed_direction(speed)], dim=-2)
    net = GATr(**{**OPTIONS, **ENDS, "in_s_channels": 0, "out_s_channels": 0}).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with _cast(dtype):
            assert net.obstacle(mv) is None
            loss = (net(mv)[0].float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses[-20:]).mean().item(), losses[0].item()


def test_training_in_bfloat16_is_about_as_good_as_in_float32():
    (wide, first), (narrow, _) = (
        _loss_after(200, dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    assert wide < 0.1 * first
    assert narrow <= 1.2 * wide
