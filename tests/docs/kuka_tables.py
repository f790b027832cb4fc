"""Rows of the tables of docs/kuka.md, from the recorded measurements."""

from .measured import measured, table_row


def of_the_harness():
    """Rewards without a network, on the 200 test scenes as they are."""
    for planner in ("expert", "do nothing", "noise"):
        cells = (
            measured(
                "kuka-reward", "reward", model=planner, engine=engine, turned=False, reward=kind,
                scenes=200,
            )
            for engine in ("mujoco", "bullet")
            for kind in ("original", "strict")
        )  # fmt: skip
        yield table_row(planner, *(f"{x:.1f}" for x in cells))


def of_the_expert():
    """How reliable the expert is at the diversity that is used."""
    same = dict(model="expert", diversity=0.5)
    plans = 2000
    failures, mean, most = (
        measured("kuka-expert", metric, plans=plans, **same)
        for metric in ("failures", "mean frames of a stack", "most frames of a stack")
    )
    yield table_row(f"plans that fail, of {plans:,}", failures)
    yield table_row("frames of a stack, on average", f"{mean:.0f}")
    yield table_row("frames of a stack, at most", most)
    for engine, title in (("mujoco", "MuJoCo"), ("bullet", "PyBullet")):
        share = measured("kuka-expert", "towers", engine=engine, replays=300, **same)
        what = f"replays that end with a tower of four, of 300 in {title}"
        yield table_row(what, f"{share:.1f} %")


STEPS = {"GATr": ("gatr", False), "Transformer": ("transformer", False)}
STEPS["Transformer, compiled"] = "transformer", True


def of_the_step(metric, mode, model, compiled):
    """Time or memory of the network alone."""
    same = dict(machine="H200", precision="bfloat16", cuda_graph=True, compile=compiled)
    return measured("kuka-step", metric, model=model, mode=mode, **same)


def of_the_networks():
    """Times and memory of a training step, and times of a forward pass."""
    for title, which in STEPS.items():
        step, memory, forward = (
            of_the_step(*what, *which)
            for what in (("time", "training"), ("memory", "training"), ("time", "forward"))
        )
        yield table_row(title, f"{step:.1f}", f"{memory:,.0f}", f"{forward:.1f}")


RATES = [  # model, what it predicts, learning rate, windows per step, steps
    ("gatr", "velocity", 1e-3, 8, 7100),
    ("gatr", "velocity", 3e-3, 32, 2650),
    ("gatr", "velocity", 1e-3, 32, 2650),
    ("gatr", "clean", 1e-3, 32, 2650),
    ("transformer", "clean", 1e-3, 32, 3850),
    ("transformer", "velocity", 3e-3, 32, 3850),
    ("transformer", "velocity", 1e-3, 32, 3850),
    ("unet", "clean", 3e-4, 32, 3800),
    ("unet", "clean", 1e-3, 32, 3800),
    ("unet", "velocity", 3e-4, 32, 3800),
]
NAMES = {"gatr": "GATr", "transformer": "Transformer", "unet": "U-Net"}


def of_the_choice():
    """Rewards on the validation scenes after 45 s of training."""
    for model, target, rate, batch, steps in RATES:
        settings = {"model.options.predict": target, "train.lr": rate, "train.batch_size": batch}
        yield table_row(
            NAMES[model], f'`"{target}"`', f"{rate:.0e}".replace("e-0", "e-"), batch, f"{steps:,}",
            *_rewards(model, scene_set="validation", steps=steps, **settings),
        )  # fmt: skip


def of_the_rewards():
    """Rewards on the test scenes."""
    for model, demonstrations, steps in [("gatr", 11_000, 27_050)]:
        facts = dict(demonstrations=demonstrations, steps=steps)
        found = _rewards(
            model, recipe="kuka_figure", scene_set="test", sampler="ancestral", turned=False,
            **facts,
        )  # fmt: skip
        yield table_row(NAMES[model], *(f"{n:,}" for n in facts.values()), *found)


def of_few_steps():
    """Rewards of the shipped network on the test scenes with the sampler of `predict`."""
    how = dict(recipe="pretrained:kuka", sampler="dpm_solver", sampling_steps=20)
    return _rewards("gatr", scene_set="test", scenes=200, turned=False, **how)


def _rewards(model, **settings):
    for kind in ("original", "strict"):
        own = dict(model=model, engine="bullet", reward=kind, **settings)
        value, error = (measured("kuka-reward", x, **own) for x in ("reward", "standard error"))
        yield f"{value:.1f} ± {error:.1f}"
