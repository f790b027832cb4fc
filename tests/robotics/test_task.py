"""The robotics experiment as the trainer sees it, on a few demonstrations."""

import numpy as np
import pytest
import torch

from flashgatr.experiments import equivariance
from flashgatr.experiments.config import ConfigError, RunConfig, override
from flashgatr.experiments.robotics import layouts, normalised
from flashgatr.experiments.robotics.demonstrations import shards
from flashgatr.experiments.robotics.diffusion import Schedule
from flashgatr.experiments.robotics.layouts import HORIZON
from flashgatr.experiments.robotics.offline_rl.task import OfflineTask
from flashgatr.experiments.robotics.symmetry import symmetry
from flashgatr.experiments.robotics.task import RoboticsTask, require
from flashgatr.train import Trainer, distributed

CPU = torch.device("cpu")
SMALL = [
    "model.name=transformer",
    "model.options.hidden_channels=32",
    "model.options.num_blocks=2",
    "model.options.num_heads=2",
    "data.options.held_out=4",
    "data.options.validation_windows=20",
    "data.options.test_windows=20",
    "data.options.scenes=0",
]
GATR = ["model.name=gatr", *(f"model.options.{x}" for x in ("num_blocks=2", "num_heads=2"))]
GATR += ["model.options.hidden_mv_channels=4", "model.options.hidden_s_channels=8", *SMALL[4:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("demonstrations")
    shards.generate(found, 9, workers=1)
    return found


def make(folder, *changes, small=SMALL):
    return RoboticsTask(override(RunConfig(), [f"data.folder='{folder}'", *small, *changes]), CPU)


def test_batches_are_windows_with_noise(folder):
    task = make(folder)
    batch = task.batch(torch.tensor([3, 50]))
    every = shards.load(folder)
    torch.testing.assert_close(
        batch.clean[0], normalised.Scale().normalize(every.states[3 : 3 + HORIZON])
    )
    assert batch.noise.std().item() == pytest.approx(1, abs=0.1)
    assert batch.clamp.tolist() == [[True] + [False] * 127] * 2
    assert task.samples == every.first(5).count


def test_a_batch_is_a_function_of_the_random_state(folder):
    task = make(folder, "data.options.clamps=ends", "data.options.augment=true")
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(task.batch(torch.arange(16)))
    for x, same, other in zip(*drawn, strict=True):
        assert torch.equal(x, same)
        assert not torch.equal(x, other)


def test_augmented_windows_are_turned_about_the_vertical(folder):
    plain = make(folder).batch(torch.arange(9)).clean
    turned = make(folder, "data.options.augment=true").batch(torch.arange(9)).clean
    (a, _, flags), (b, _, others) = layouts.objects(plain), layouts.objects(turned)
    torch.testing.assert_close(a[..., 2], b[..., 2])
    torch.testing.assert_close(a.norm(dim=-1), b.norm(dim=-1))
    assert torch.equal(flags, others)
    assert (a - b)[..., :2].abs().max() > 0.5


def test_the_current_state_shows_no_held_block(folder):
    """Planning forgets flags after each phase; the model must recognise a held block without."""
    task = make(folder)
    held = layouts.objects(task._train.states).flags[:150].amax(-1).argmax()  # of the first of them
    batch = task.batch(held[None])
    seen = []

    def model(x, t, clamp):
        seen.append(layouts.objects(x).flags[0, 0])
        return torch.zeros_like(x)

    task.loss(model, batch)
    make(folder, "data.options.release=false").loss(model, batch)
    assert seen[0].tolist() == [-1] * 4
    assert seen[1].max() == 1


def test_the_loss_of_zero_is_the_size_of_the_noise(folder):
    batch = make(folder).batch(torch.arange(30))
    zero = torch.nn.Module()
    zero.forward = lambda x, t, clamp: torch.zeros_like(x)
    squared, _ = make(folder).loss(zero, batch)
    absolute, _ = make(folder, "data.options.loss=l1").loss(zero, batch)
    assert squared.item() == pytest.approx(1, abs=0.02)
    assert absolute.item() == pytest.approx((2 / torch.pi) ** 0.5, abs=0.02)


def test_the_loss_is_that_of_what_the_network_predicts(folder):
    """A network that says 0 errs by the size of the clean trajectory, at every diffusion step."""
    task = make(folder, 'model.options.predict="clean"')
    batch = task.batch(torch.arange(30))
    task.model.net = torch.nn.Module()
    task.model.net.forward = lambda x, t, clamp: torch.zeros_like(x)
    clean = batch.clean[:, 1:].square().mean().item()
    assert task.loss(task.model, batch)[0].item() == pytest.approx(clean, rel=1e-3)


def test_validation_has_all_diffusion_steps_and_fixed_noise(folder):
    task, again = make(folder), make(folder, "seed=5")
    assert task._validation.t.sort().values.tolist() == [25 + 50 * k for k in range(20)]
    assert torch.equal(task._validation.noise, again._validation.noise)
    assert task.validate(task.model) == task.validate(task.model)


def test_the_best_denoiser_scores_zero(folder):
    task = make(folder)
    schedule, clean = Schedule.cosine(), task._validation.clean

    def oracle(x, t, clamp):
        signal, sigma = (y[t][:, None, None] for y in (schedule.signal, schedule.noise))
        return ((x - signal * clean) / sigma).float()

    found = task.validate(oracle)
    assert found["score"] < 1e-8


def test_turned_scenes_are_as_easy_for_gatr(folder):
    task = make(folder, small=GATR)
    found = task.evaluate(task.model)
    assert found["test_turned"]["mse"] == pytest.approx(found["test"]["mse"], rel=1e-5)
    plain = make(folder)
    other = plain.evaluate(plain.model)
    assert other["test_turned"]["mse"] != pytest.approx(other["test"]["mse"], rel=1e-4)
    assert found["test"]["cases"] == 20


def test_the_noise_that_gatr_estimates_turns_with_the_scene(folder):
    """In every dtype; that of the Transformer does not, and policies estimate none."""
    equivariant, plain = (make(folder, small=small) for small in (GATR, SMALL))
    found, other = (
        dict(equivariance.errors(symmetry, task, task.model, CPU)) for task in (equivariant, plain)
    )
    assert found["float64"] < 1e-10 < found["float32"] < 1e-4 < found["bfloat16 autocast"]
    assert len(other) == 3
    assert min(other.values()) > 1e-3
    acts = [*SMALL[4:], f"data.folder='{folder}'", "model.name=cql"]
    policy = OfflineTask(override(RunConfig(), acts), CPU)
    assert symmetry(policy, policy.model, torch.float32) is None


def test_training_runs_and_resumes_exactly(folder, tmp_path):
    """Bit for bit: 20 steps at once, or 10 and then 10 more."""

    def train(place, stop):
        changes = ["train.steps=20", "train.batch_size=4", "train.ema=0.9", "train.lr=1e-3"]
        changes += ["train.checkpoint_every=10", "train.validate_every=10", f"folder='{place}'"]
        config = override(
            RunConfig(experiment="robotics", device="cpu"),
            [f"data.folder='{folder}'", *SMALL, *changes],
        )
        task = RoboticsTask(config, CPU)
        trainer = Trainer(task, config, distributed.join("cpu"))
        if stop:
            task.loss, whole = _failing_after(task, 15), task.loss
            with pytest.raises(KeyboardInterrupt):
                trainer.run()
            task.loss = whole
            return None
        return trainer.run()

    once = train(tmp_path / "once", stop=False)
    train(tmp_path / "twice", stop=True)
    twice = train(tmp_path / "twice", stop=False)
    assert once["best_score"] == twice["best_score"]
    assert once["results"] == twice["results"]
    assert once["results"]["test"]["mse"] < 1.5


def test_published_files_are_trained_on(folder, tmp_path):
    """One file per demonstration, at twice the rate; windows hold nothing after the end."""
    for number, demonstration in enumerate(shards.read(folder)):
        np.save(tmp_path / f"data_{number}.npy", demonstration.states.repeat(2, 0).astype(float))
    change = f"data.folder='{tmp_path}'"
    task, own = make(tmp_path), make(folder)
    require(override(RunConfig(), [*SMALL[4:], change]))
    every = shards.load(folder)
    lengths = every.offsets.diff()[:5].clamp(max=300)
    assert task.samples == (lengths - HORIZON + 1).sum()
    assert torch.equal(task._sets["test"].states[:100], own._sets["test"].states[:100])
    assert set(task.evaluate(task.model)) == {"test", "test_turned", "test_mirrored"}
    few = [*SMALL[4:], change, "data.train_samples=6"]
    with pytest.raises(ConfigError, match=r"6 are needed for training; change one of the numbers"):
        require(override(RunConfig(), few))
    policy = OfflineTask(override(RunConfig(), [*SMALL[4:], change, "model.name=cql"]), CPU)
    assert policy.samples == lengths.sum()


def _failing_after(task, calls):
    own, count = task.loss, 0

    def loss(model, batch):
        nonlocal count
        count += 1
        if count > calls:
            raise KeyboardInterrupt
        return own(model, batch)

    return loss


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("data.options.losses=l1", "did you mean data.options.loss"),
        ("data.options.loss=huber", "one of 'l2', 'l1', got 'huber'"),
        ("data.options.held_out=1", "at least 2, got 1"),
        ("data.options.release=1", "true or false, got 1"),
        ("model.name=gtr", "did you mean 'gatr'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(folder, change, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(folder, change)


def test_demonstrations_of_the_sets_are_different(folder):
    """Nine demonstrations, four held out: five, two and two."""
    task, every = make(folder), shards.load(folder)
    sets = task._sets
    assert [len(sets[name]) for name in ("train", "validation", "test")] == [5, 2, 2]
    joined = torch.cat([x.states for x in sets.values()])
    assert torch.equal(joined, every.states)
    few = make(folder, "data.train_samples=2")
    assert torch.equal(few._sets["train"].states, every.first(2).states)
    assert few.data_hash != task.data_hash
    with pytest.raises(ConfigError, match=r"holds 9 demonstrations, of which .* 6 are needed"):
        make(folder, "data.train_samples=6").samples  # noqa: B018


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("data.folder=nowhere", "no demonstrations in nowhere"),
        ("data.train_samples=6", r"6 are needed for training; make 10 with .*demonstrations 10`"),
    ],
)
@pytest.mark.parametrize("model", ["transformer", "cql"])
def test_missing_demonstrations_are_an_error_before_training(folder, change, complaint, model):
    """The check reads the manifest alone: it is called for all runs of a sweep before the first."""
    fine = override(RunConfig(), [f"data.folder='{folder}'", *SMALL[4:], f"model.name={model}"])
    require(fine)
    with pytest.raises(ValueError, match=complaint):
        require(override(fine, [change]))
