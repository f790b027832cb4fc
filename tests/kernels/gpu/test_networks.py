"""The laws of networks on a GPU: symmetry, memory, a step as one CUDA graph, training."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from flashgatr import AxialGATr, GATr, embed_direction, embed_point
from flashgatr.kernels.paths import plain_kernels
from flashgatr.testing import batch_error, equivariance_error, padding_error

from .networks import (
    ENDS,
    ON_GPU,
    OPTIONS,
    cast,
    make_data,
    make_inputs,
    make_net,
    outputs_and_gradients,
)

pytestmark = ON_GPU
GOLDENS = sorted((Path(__file__).parents[2] / "goldens").glob("*gatr*.safetensors"))


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
    net, (mv, s) = GATr(**OPTIONS).cuda(), make_data(3, 6)
    assert equivariance_error(net, mv, s, draws=100) <= 1e-12
    assert equivariance_error(net, mv, s, draws=100, dtype=torch.float32) <= 2e-5
    for check in (batch_error, padding_error):
        assert check(net, mv, s) <= 1e-12
        assert check(net, mv, s, dtype=torch.float32) <= 1e-6


def test_packed_equals_padded():
    net, (mv, s) = GATr(**OPTIONS).cuda(), make_data(12)
    packed, _ = net(mv, s, offsets=torch.tensor([0, 5, 12], device="cuda"))
    alone = torch.cat([net(mv[:5], s[:5])[0], net(mv[5:], s[5:])[0]])
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


def test_the_forward_pass_can_be_captured_and_replayed():
    net, (mv, s) = GATr(**OPTIONS).cuda().eval(), make_data(2, 6)
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
    batches = [(*make_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda")) for _ in range(6)]
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
    batch = (*make_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda"))
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


@pytest.mark.parametrize("shape", [(2000, 5), (8, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_need_less_memory_than_the_plain_layers(shape, dtype):
    net = GATr(**{**OPTIONS, **ENDS}).cuda()
    mv, s = make_inputs(net, *shape, grows=False)
    peaks = []
    for plain in (False, True):
        for _ in range(2):  # the first call makes what is kept
            torch.cuda.reset_peak_memory_stats()
            outputs_and_gradients(net, mv, s, plain=plain, dtype=dtype)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("options", [ENDS, dict(num_blocks=3)], ids=["ends", "reinsert"])
def test_twenty_captured_steps_equal_eager_ones(options):
    torch.manual_seed(1)
    batches = [(*make_data(8, 5), torch.randn(8, 5, 1, 16, device="cuda")) for _ in range(4)]
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
    mv, s = make_data(2, 6)
    other_mv, other_s = make_data(2, 6)
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
    net = make_net()
    mv, s = make_inputs(net, 3, 5, grows=False)
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
    net = make_net()
    mv, s = make_inputs(net, 3, 5, grows=False)
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
        with cast(dtype):
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
