"""Titles and explanations in the robotics report, and the paper's results."""

from __future__ import annotations

from typing import Any

TITLE = "A robot arm stacks four blocks"
INTRODUCTION = """<p>A denoiser learns trajectories from demonstrations. In three phases it plans
128 frames from the current state, and a physics engine executes the plan without looking at it
again. CQL and BCQ learn policies instead, which see the state and act in every frame.
<i>Reward</i> is that of Janner et al.: the most blocks that one block was ever seen above, in
percent of three. It is lenient: random plans have some of it, too. <i>Tower</i> is the height of
the tower that stands in the end, and <i>all four</i> the share of scenes with a complete one. ± is
the standard error, over seeds if a model has several, and otherwise over scenes.</p>"""
MODELS = {
    "gatr": "GATr",
    "gatr_e3": "GATr with types",
    "gatr_e3_wide": "GATr with types, wider",
    "transformer": "Transformer",
    "unet": "U-Net",
    "cql": "CQL",
    "bcq": "BCQ",
}
ENGINES = {"mujoco": "MuJoCo", "bullet": "PyBullet"}
KINDS = {
    "": ("Scenes like those of the demonstrations", "The paper's rows are from its own engine, "
         "demonstrations and scenes: compare them with care."),
    "_turned": ("Turned scenes", "The same scenes, turned about the vertical as a whole; "
                "when demonstrations begin, the sides of all blocks are along the axes."),
    "_mirrored": ("Mirrored scenes", "The same scenes, mirrored in a vertical plane."),
}  # fmt: skip
"""Kinds of scenes by the end of the set's name: title and explanation."""
CLOSED_LOOP = "none: acts in every frame"
"""The sampler of a policy."""
DENOISING = {
    "test": "test demonstrations",
    "test_turned": "the same, turned about the vertical at random",
    "test_mirrored": "the same, mirrored in a vertical plane",
}
REWARDS = {"reward": "reward", "strict": "tower", "success": "all four"}
"""Metrics of planning, in percent, and their titles."""
ERRORS = {"reward": "reward_error", "strict": "strict_error"}
"""Where a run has the standard error over scenes."""
CAPTIONS = {
    "figure.png": "Reward and standing tower against the number of demonstrations, in percent.",
    "strip.png": "The first scene of the set, from the beginning to the end of the episode.",
    "curves.png": "Loss on validation windows during training, one line per run; of CQL and BCQ, "
    "the error of actions in validation demonstrations.",
}
DASHES = " Grey dashes: the paper."
REFERENCE: dict[str, Any] = {
    "source": "paper, appendix C.3",
    "demonstrations": 11_000,
    "reward": {
        "GATr-Diffuser": (74.8, 1.7),
        "Transformer-Diffuser": (69.8, 1.9),
        "Diffuser (reproduced)": (57.7, 1.8),
        "Diffuser (Janner et al.)": (58.7, 2.5),
        "EDGI (Brehmer et al.)": (62.0, 2.1),
        "CQL (from Janner et al.)": (24.4, None),
        "BCQ (from Janner et al.)": (0.0, None),
    },
}
"""The paper's results: reward and its standard error."""
