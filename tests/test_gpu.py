"""The same laws on a GPU, and the training step as one CUDA graph."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from flashgatr import AxialGATr, GATr, embed_point
from flashgatr.testing import batch_error, equivariance_error, padding_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GOLDENS = sorted((Path(__file__).parent / "goldens").glob("*gatr*.safetensors"))
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


def _stepper(graph):
    from flashgatr.experiments.config import TrainConfig
    from flashgatr.experiments.engine.distributed import World
    from flashgatr.experiments.engine.stepper import Stepper, make_optimizer

    class Fit:
        samples = 8

        def __init__(self):
            torch.manual_seed(0)
            self.model = GATr(**OPTIONS).cuda()

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
    """Freed memory is handed out again: a step that read some would go wrong once others write there."""
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
