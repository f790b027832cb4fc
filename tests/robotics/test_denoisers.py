"""The three denoisers: their symmetries, sizes and precision; plans turn with the scene."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from flashgatr import versors
from flashgatr.experiments import runs, shipped
from flashgatr.experiments.baselines.time_embedding import sinusoids
from flashgatr.experiments.baselines.unet import LinearAttention, TemporalUNet
from flashgatr.experiments.robotics import layouts, normalised
from flashgatr.experiments.robotics.demonstrations.shards import to_tensors
from flashgatr.experiments.robotics.demonstrations.stream import Recipe, stream
from flashgatr.experiments.robotics.diffusion import (
    TARGETS,
    Schedule,
    denoising_errors,
    draw_clamps,
    mean_over_free_frames,
    target_tables,
)
from flashgatr.experiments.robotics.layouts import GEOMETRIC
from flashgatr.experiments.robotics.models import (
    DENOISERS,
    GATrDenoiser,
    TargetDenoiser,
)
from flashgatr.experiments.robotics.sampling import (
    SeededNoise,
    ancestral,
    condition,
    ddim,
    sample,
)
from flashgatr.train.compiled import compiled_copy

SMALL = dict(num_blocks=2, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
SMALL_OF = {
    "gatr": SMALL,
    "gatr_e3": SMALL,
    "gatr_e3_wide": SMALL,
    "transformer": dict(hidden_channels=32, num_blocks=2, num_heads=2),
    "unet": dict(hidden_channels=32, factors=(1, 2, 2)),
}
TOLERANCES = [(torch.float64, 1e-10), (torch.float32, 2e-5)]
ORDER = torch.tensor([2, 0, 3, 1])
"""A permutation of the blocks."""


def make(name, dtype=torch.float64, **options):
    return DENOISERS[name](**SMALL_OF[name], **options).to(dtype)


def inputs(batch=2, frames=8, dtype=torch.float64):
    x = torch.randn(batch, frames, GEOMETRIC, dtype=dtype)
    return x, torch.randint(1000, (batch,)), draw_clamps("ends", batch, frames, x.device)


def rotation(kind="SO(3)", dtype=torch.float64):
    if kind == "vertical":
        angle = torch.tensor(1.234, dtype=torch.float64)
        c, s, o = angle.cos(), angle.sin(), 0 * angle
        return torch.stack([c, -s, o, s, c, o, o, o, o + 1]).view(3, 3).to(dtype)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    sign = turn.det().sign() * (-1 if kind == "mirror" else 1)
    return (turn * sign).to(dtype)


def permuted(x):
    """Trajectories with the blocks in another order."""
    position, directions, flags = layouts.objects(x)
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + ORDER])
    return layouts.from_objects(
        position[..., order, :], directions[..., order, :, :], flags[..., ORDER]
    )


def rotation_error(model, kind, dtype=torch.float64, frames=8):
    """|f(Rx) - R f(x)|, relative to the largest output."""
    x, t, clamp = inputs(frames=frames, dtype=dtype)
    turn = rotation(kind, torch.float64)
    with torch.no_grad():
        turned = normalised.rotated(x.double(), turn).to(dtype)
        moved, plain = model(turned, t, clamp).double(), model(x, t, clamp).double()
    return ((moved - normalised.rotated(plain, turn)).abs().max() / plain.abs().max()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_gatr_turns_with_the_scene(dtype, tolerance):
    assert rotation_error(make("gatr", dtype), "SO(3)", dtype) < tolerance
    model = make("gatr", dtype, gravity=True)
    assert rotation_error(model, "vertical", dtype) < tolerance


def mirror_error(model):
    """As `rotation_error`, for a mirror in a random plane through the base, or a vertical one."""
    x, t, clamp = inputs()
    turn = rotation("vertical" if getattr(model, "gravity", True) else "SO(3)")

    def reflected(x):
        return normalised.rotated(normalised.mirrored(x), turn)

    with torch.no_grad():
        found, expected = model(reflected(x), t, clamp), reflected(model(x, t, clamp))
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("options", [{}, dict(gravity=True), dict(predict="clean")], ids=str)
def test_gatr_with_types_turns_and_mirrors_with_the_scene(options):
    assert mirror_error(make("gatr_e3", **options)) < 1e-10
    assert mirror_error(make("gatr", **options)) > 1e-3
    kind = "SO(3)" if not options.get("gravity") else "vertical"
    assert rotation_error(make("gatr_e3", **options), kind) < 1e-10


def test_what_is_no_symmetry():
    """Gravity tells up from sideways; a point changes its sign in a mirror; others know no frame.

    With these errors, the test above could fail.
    """
    assert rotation_error(make("gatr", gravity=True), "SO(3)") > 1e-2
    assert rotation_error(make("gatr"), "mirror") > 1e-3
    assert rotation_error(make("transformer"), "vertical") > 1e-2
    assert rotation_error(make("unet"), "vertical") > 1e-2


def permutation_error(model, dtype=torch.float64, frames=8):
    """|f(Px) - P f(x)|, relative to the largest output."""
    x, t, clamp = inputs(frames=frames, dtype=dtype)
    assert (permuted(x) - x).abs().max() > 1
    with torch.no_grad():
        found, plain = model(permuted(x), t, clamp), model(x, t, clamp)
    return ((found - permuted(plain)).abs().max() / plain.abs().max()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("name", ["gatr", "gatr_e3", "transformer"])
def test_blocks_are_interchangeable(name, dtype, tolerance):
    assert permutation_error(make(name, dtype), dtype) < tolerance


def test_the_unet_tells_blocks_apart():
    """With this error, the test above could fail."""
    assert permutation_error(make("unet")) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_the_trained_network_turns_with_the_scene_and_its_blocks_are_interchangeable(
    dtype, tolerance
):
    """At full size, on whole windows."""
    config = runs.load_config(shipped.find(Path("pretrained:kuka")))
    model = runs.load_model(config).to(dtype).eval()
    assert rotation_error(model, "SO(3)", dtype, frames=128) < tolerance
    assert permutation_error(model, dtype, frames=128) < tolerance


@pytest.mark.parametrize("name", ["gatr", "transformer"])
def test_order_of_frames_diffusion_step_and_clamped_frames_matter(name):
    model = make(name)
    x, t, clamp = inputs(batch=1)
    plain = model(x, t, clamp)
    for other in (
        model(x.flip(1), t, clamp.flip(1)).flip(1),
        model(x, (t + 300) % 1000, clamp),
        model(x, t, ~clamp),
    ):
        assert (other - plain).abs().max() > 1e-3


def test_plans_turn_with_the_scene_through_all_denoising_steps():
    """The current state and all noise turned, or with blocks in another order: so is the plan."""
    model, frames, turn = make("gatr"), 4, rotation()

    def variants(x):
        return torch.cat([x, normalised.rotated(x, turn), permuted(x)])

    first = torch.randn(1, GEOMETRIC, dtype=torch.float64)
    draw = SeededNoise([3], (frames, GEOMETRIC), first)
    known, clamp = condition(variants(first), frames)
    plan = ancestral(Schedule.cosine())
    found = sample(model, plan, known, clamp, lambda k: variants(draw(k)), bound=normalised.bounded)
    assert (found - variants(found[:1])).abs().max() < 1e-8
    assert torch.equal(found[:, 0], variants(first))
    assert found[:1, 1:].abs().max() > 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", DENOISERS)
def test_a_captured_step_samples_as_the_loop_does(name):
    """One CUDA graph, replayed, against the same sampler in a plain loop on the CPU.

    Both in float64, where rounding of two devices stays small through all steps.
    """
    model, plan = make(name), ddim(Schedule.cosine(), 50, eta=1.0)
    known, clamp = condition(torch.randn(2, GEOMETRIC, dtype=torch.float64), 8)
    noise = torch.randn(51, 2, 8, GEOMETRIC, dtype=torch.float64)
    ours = sample(model, plan, known, clamp, lambda k: noise[k], bound=normalised.bounded)
    model, known, clamp, noise = model.cuda(), known.cuda(), clamp.cuda(), noise.cuda()
    found = sample(model, plan, known, clamp, lambda k: noise[k], bound=normalised.bounded)
    torch.testing.assert_close(found.cpu(), ours, rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_follows_the_weights():
    """Sampling again after training must not use weights that an earlier call prepared."""
    model, plan = make("gatr", torch.float32).cuda(), ddim(Schedule.cosine(), 3)
    known, clamp = condition(torch.randn(2, GEOMETRIC, device="cuda"), 8)
    noise = torch.randn(2, 8, GEOMETRIC, device="cuda")
    before = sample(model, plan, known, clamp, lambda k: noise)
    torch.testing.assert_close(sample(model, plan, known, clamp, lambda k: noise), before)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    after = sample(model, plan, known, clamp, lambda k: noise)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_blocks_draw_the_same_trajectory():
    model, plan = make("transformer", torch.float32).cuda(), ddim(Schedule.cosine(), 3)
    known, clamp = condition(torch.randn(2, GEOMETRIC, device="cuda"), 8)
    noise = torch.randn(2, 8, GEOMETRIC, device="cuda")
    plain = sample(model, plan, known, clamp, lambda k: noise, bound=normalised.bounded)
    before = counters["stats"]["unique_graphs"]
    compiled = compiled_copy(model)
    found = sample(compiled, plan, known, clamp, lambda k: noise, bound=normalised.bounded)
    assert counters["stats"]["unique_graphs"] > before
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)


def trained_loss(model, steps, lr, batch=8, frames=8):
    """Mean loss of the last ten of a few steps of training. An answer of zero has a loss of 1."""
    states = to_tensors(list(stream(Recipe(), 4, workers=1))).states
    whole = len(states) // frames * frames
    clean = normalised.Scale().normalize(states[:whole]).unflatten(0, (-1, frames))
    schedule = Schedule.cosine().to("cpu", torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        x = clean[torch.randint(len(clean), (batch,))]
        t, clamp = torch.randint(1000, (batch,)), draw_clamps("first", batch, frames, x.device)
        errors = denoising_errors(model, schedule, x, torch.randn_like(x), t, clamp)
        loss = mean_over_free_frames(errors.square(), clamp).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


@pytest.mark.parametrize("name", ["gatr", "transformer"])
def test_a_few_steps_of_training_remove_most_of_the_loss(name):
    assert trained_loss(make(name, torch.float32), 100, 5e-3) < 0.4


def test_a_network_that_predicts_velocities_need_not_learn_to_copy():
    """The U-Net takes hundreds of steps to learn what a velocity gives for nothing."""
    noise, velocity = (make("unet", torch.float32, predict=x) for x in ("noise", "velocity"))
    found = trained_loss(noise, 30, 1e-3), trained_loss(velocity, 30, 1e-3)
    assert found[1] < 0.6 < 0.9 < found[0] < 1.2


def test_files_hold_the_weights_of_a_network_that_predicts_velocities_alone():
    noise, velocity = (make("unet", predict=x) for x in ("noise", "velocity"))
    assert velocity.state_dict().keys() == {f"net.{key}" for key in noise.state_dict()}


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_that_predicts_its_target_estimates_the_noise(target):
    """And an error of the target is the error of the noise divided by the table's factor."""
    schedule, t = Schedule.cosine(), torch.tensor([0, 1, 500, 990])
    clean, noise, off = (torch.randn(4, 8, GEOMETRIC, dtype=torch.float64) for _ in range(3))
    signal, sigma = schedule.signal[t, None, None], schedule.noise[t, None, None]
    right = {"noise": noise, "velocity": signal * noise - sigma * clean, "clean": clean}[target]
    x, clamp = schedule.noisy(clean, noise, t), draw_clamps("first", 4, 8, clean.device)
    for error in (0 * off, off):
        model = TargetDenoiser(lambda *_, out=right + error: out, target).double()
        for name, table in zip(("copied", "added"), target_tables(target), strict=True):
            model.register_buffer(name, table)
        found = model(x, t, clamp) - noise
        expected = target_tables(target)[1][t, None, None] * error
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("target", ["velocity", "clean"])
def test_other_targets_keep_the_symmetry(target):
    assert rotation_error(make("gatr", predict=target), "SO(3)") < 1e-10


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="'velocity', 'clean', got 'speed'"):
        make("gatr", predict="speed")


def test_unet_learns_a_batch_by_heart():
    model = TemporalUNet(6, hidden_channels=32, factors=(1, 2))
    x, noise, t = torch.randn(4, 8, 6), torch.randn(4, 8, 6), torch.tensor([0, 10, 200, 999])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = (model(x, t) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


@pytest.mark.parametrize("name", DENOISERS)
def test_denoisers_run_in_16_bits(name):
    model = make(name, torch.float32)
    x, t, clamp = inputs(dtype=torch.float32)
    with torch.no_grad():
        plain = model(x, t, clamp)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(x, t, clamp)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - plain).abs().max() < 0.1 * plain.abs().max()


@pytest.mark.parametrize("name", DENOISERS)
def test_denoisers_are_one_graph(name):
    """Compilers and CUDA graphs need a forward pass without values that Python reads."""
    model = make(name, torch.float32)
    x, t, clamp = inputs(dtype=torch.float32)
    with torch.no_grad():
        found = torch.compile(model, backend="eager", fullgraph=True)(x, t, clamp)
        torch.testing.assert_close(found, model(x, t, clamp))


def test_sinusoids_have_many_frequencies():
    found = sinusoids(torch.tensor([7]), 6, torch.float64)[0]
    angles = 7 * torch.tensor([1, 1e-2, 1e-4], dtype=torch.float64)
    torch.testing.assert_close(found, torch.cat([angles.sin(), angles.cos()]))


def test_linear_attention_is_a_weighted_mean_over_frames():
    """Values that are the same in all frames: the weights of the keys add up to 1."""
    layer = LinearAttention(16).double()
    with torch.no_grad():
        layer.qkv.weight[-128:].zero_()  # the values
        x = torch.randn(2, 16, 5, dtype=torch.float64)
        nothing = layer(x) - x
    torch.testing.assert_close(nothing, layer.output.bias[None, :, None].expand_as(x))


def test_trajectories_that_do_not_fit_are_refused():
    x, t, clamp = inputs(frames=6, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"H divisible by 4, got \(2, 6, 49\)"):
        make("unet", torch.float32)(x, t, clamp)
    with pytest.raises(ValueError, match="the geometric layout has 49"):
        make("gatr", torch.float32)(x[..., :39], t, clamp)
    with pytest.raises(TypeError, match="sets recenter itself"):
        GATrDenoiser(recenter=True)


def test_the_rotations_of_this_file_are_rotations():
    matrix = versors.to_matrix(versors.sample(3, kind="rotation"))[..., :3, :3].double()
    x = torch.randn(3, GEOMETRIC, dtype=torch.float64)
    turned = normalised.rotated(x, matrix)
    first = layouts.objects(x).position[1, 2] @ matrix[1].T
    torch.testing.assert_close(layouts.objects(turned).position[1, 2], first)
