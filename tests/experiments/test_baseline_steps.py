"""A step of every baseline, forward and backward: it never waits for the device, and compiled or as
a CUDA graph it has the same gradients.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashgatr import batch, embed_point
from flashgatr.batch import pack
from flashgatr.experiments.baselines import (
    GCAGNN,
    GCAMLP,
    SEGNN,
    FusedSE3Transformer,
    SE3Transformer,
)
from flashgatr.experiments.baselines.tensor_field import Fiber
from flashgatr.experiments.bench import walls, workload
from flashgatr.experiments.charges import EXPERIMENT as CHARGES
from flashgatr.experiments.nbody import EXPERIMENT as NBODY
from flashgatr.train.compiled import blocks

CPU = torch.device("cpu")
VECTOR = Fiber(1, 1, 1)
NETS = {
    "segnn": lambda: SEGNN(12, 2),
    "segnn with neighbours": lambda: SEGNN(12, 2, k=2),
    "segnn of degree 2": lambda: SEGNN(8, 1, degree=2, attribute_degree=2, norm="instance"),
    "segnn, recomputed": lambda: SEGNN(12, 1, checkpoint=True),
    "se3": lambda: SE3Transformer(VECTOR, Fiber(2, 1, 1), 4, 2, 1, div=2),
    "se3, factorised": lambda: FusedSE3Transformer(VECTOR, Fiber(2, 0, 1), 4, 1, 1, div=2),
    "gca_gnn": lambda: GCAGNN(1, 1, 3, 4, 5, steps=1),
    "gca_mlp": lambda: GCAMLP(5, 2, 4),
}
COMPILED = ["segnn with neighbours", "se3", "se3, factorised", "gca_gnn", "gca_mlp"]
"""Of every architecture one at least: to compile takes seconds."""
ON_SETS = [name for name in NETS if name != "gca_mlp"]


def made(name):
    """The network and inputs for a batch of three sets of five items, in float64."""
    torch.manual_seed(0)
    net, (x, v) = NETS[name]().double(), torch.randn(2, 3, 5, 3, dtype=torch.float64)
    q = torch.randn(3, 5, dtype=torch.float64)
    if name.startswith("segnn"):
        return net, (x, v, q)
    if name.startswith("se3"):
        return net, (v[..., None, :], x, q[..., None])
    return net, (embed_point(x) if name == "gca_mlp" else embed_point(x)[..., None, :],)


def gradients(net, inputs, **options):
    """Those of all parameters that the output depends on."""
    loss = net(*inputs, **options).square().mean()
    parameters = [p for p in net.parameters() if p.numel()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


# ---- waiting for the device ----


REFUSED = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere",
    "nonzero_numpy", "masked_select", "unique", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "bincount",
}  # fmt: skip
READ = {"tolist", "numpy", "cpu", "__array__"}
"""Methods that read a tensor without an operator."""


class RefusedOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        waits = name in REFUSED
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            waits = any(x.dtype in (torch.bool, torch.uint8) for x in tree_leaves(args[1]))
        if name == "repeat_interleave":
            waits = kwargs.get("output_size") is None
        assert not waits, f"{name} waits for the device"
        return func(*args, **kwargs)


class RefusedMethods(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert name not in READ, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def never_waits():
    """A context in which everything is refused whose result the host has to wait for."""
    with RefusedOperators(), RefusedMethods():
        yield


class WaitsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.sum().item()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: float(x[0]),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.index_put((x > 0,), x[:3] * 1),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda x: torch.equal(x, x),
        lambda x: WaitsInBackward.apply(x.requires_grad_()).sum().backward(),
    ],
)
def test_what_waits_for_the_device_is_noticed(wait):
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(AssertionError, match="waits for the device"), never_waits():
        wait(x)


@pytest.mark.parametrize(
    ("name", "sets"),
    [(name, "batch") for name in NETS]
    + [(name, sets) for name in ON_SETS for sets in ("padded", "packed")],
)
def test_a_step_does_not_wait_for_the_device(name, sets, monkeypatch):
    net, inputs = made(name)
    mask, options = torch.tensor([[True] * 5, [True] * 4 + [False], [True] * 2 + [False] * 3]), {}
    if sets == "padded":
        options = dict(mask=mask)
    if sets == "packed":
        monkeypatch.setattr(
            batch, "_check_offsets", lambda *given: None
        )  # reads them on a CPU only
        packed = [pack([x[i, own] for i, own in enumerate(mask)]) for x in inputs]
        inputs = [x for x, _ in packed]
        options = dict(offsets=packed[0][1], max_items=5)
    with never_waits():
        assert gradients(net, inputs, **options)


BODIES = [
    (experiment, name)
    for experiment in (NBODY, CHARGES)
    for name in sorted(experiment.get("models"))
    if "gatr" not in name
]


@pytest.mark.parametrize(
    ("experiment", "name"), BODIES, ids=[f"{e.name} {name}" for e, name in BODIES]
)
def test_models_of_bodies_do_not_wait_for_the_device(experiment, name):
    model, n = experiment.build(name, {}), 4 if experiment is NBODY else 5
    charge, (position, velocity) = torch.rand(2, n), torch.randn(2, 2, n, 3)
    with never_waits():
        out = model(charge, position, velocity)
        if isinstance(out, tuple):  # positions and a regulariser
            out = out[0].square().mean() + out[1]
        out.square().mean().backward()


SMALL = {
    "segnn": dict(num_layers=1, hidden_channels=8, k=4),
    "pointnet2": dict(widths=[8, 8, 8, 8, 8]),
    "gem_cnn": dict(channels=4),
}


@pytest.mark.parametrize("name", ["segnn", "pointnet2"])
def test_models_of_walls_do_not_wait_for_the_device(name):
    """GEM-CNN does, and is not captured either: it reads the lengths of its lists of neighbours."""
    work = walls.work(name, SMALL[name], CPU)
    sample = work.sample(2, 120)
    if name != "segnn":  # its size is a tensor on the CPU, which can be read at once
        (walls_of_batch,) = sample.inputs
        sample = sample._replace(inputs=(walls_of_batch._replace(max_items=120),))
    with never_waits():
        work.step(sample)


@pytest.mark.parametrize("make", [workload.segnn, workload.se3_transformer])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_networks_of_the_scaling_benchmark_do_not_wait_for_the_device(make, checkpoint):
    work = make(12, 1, CPU, checkpoint=checkpoint)
    sample = work.sample(2, 3)
    with never_waits():
        work.step(sample)


# ---- compiled ----


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the compiler
@pytest.mark.parametrize("name", COMPILED)
def test_compilers_see_one_graph_with_the_same_results_and_gradients(name):
    net, inputs = made(name)
    options = {} if name == "gca_mlp" else dict(mask=torch.rand(3, 5) < 0.7)
    expected, out = gradients(net, inputs, **options), net(*inputs, **options)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs, **options), out)
    torch.testing.assert_close(gradients(compiled, inputs, **options), expected)


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["segnn", "se3, factorised", "gca_mlp"])
def test_blocks_compile_one_by_one_with_the_same_gradients(name):
    net, inputs = made(name)
    compile_and_compare(net, inputs)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", SMALL)
def test_blocks_of_networks_on_walls_compile_with_the_same_gradients(name):
    work = walls.work(name, SMALL[name], CPU)
    inputs = work.sample(1, 120).inputs
    if name == "segnn":
        inputs = [x.double() for x in inputs]
    else:
        nodes = {x: getattr(inputs[0], x).double() for x in ("position", "normal", "geodesic")}
        inputs = [inputs[0]._replace(**nodes)]
    compile_and_compare(work.net.double().eval(), inputs)


def compile_and_compare(net, inputs):
    expected = gradients(net, inputs)
    for block in blocks(net):
        block.compile(backend="aot_eager")
    torch.testing.assert_close(gradients(net, inputs), expected)


# ---- captured ----


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_a_captured_step_gives_the_same_gradients(name, masked):
    net, inputs = made(name)
    net, inputs, options = net.float().cuda(), [x.float().cuda() for x in inputs], {}
    if masked and name in ON_SETS:
        options = dict(mask=torch.tensor([5, 4, 1])[:, None].cuda() > torch.arange(5).cuda())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = gradients(net, inputs, **options)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(net, inputs, **options)
    graph.replay()
    torch.cuda.synchronize()
    assert any(gradient.any() for gradient in expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
