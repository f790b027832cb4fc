"""Names, explanations and the paper's numbers that the artery report shows."""

from __future__ import annotations

from typing import Any

TITLE = "Arteries: wall shear stress"
INTRODUCTION = """<p>Models see the wall of a vessel, its nodes with normals and their distance from
the inlet, and predict the stress that the flow exerts on it. The error of a mesh is
ε = √(Σ‖ŷ − y‖² / Σ‖y‖²) over its nodes away from both ends; the number to compare is the mean over
test meshes. Labels come from simulations and carry noise of their own, of up to about 5 %:
differences of less than 0.3 points mean little. ± is the standard error over seeds.</p>"""
SYNTHETIC = """<p><strong>{some} vessels are synthetic: flashgatr made them, and they are not the
paper's data.</strong> Errors on them cannot be compared with the paper's numbers.</p>"""
MODELS = {
    "gatr": "GATr",
    "gatr_e3": "GATr with types",
    "gatr_e3_wide": "GATr with types, wider",
    "gatr_both_signs": "GATr, both signs",
    "transformer": "Transformer",
    "segnn": "SEGNN",
    "pointnet2": "PointNet++",
    "gem_cnn": "GEM-CNN",
    "gatr_no_scalars": "GATr without scalars",
    "gatr_unconstrained": "GATr with any linear maps",
    "gatr_narrow": "GATr, less wide",
    "gatr_shallow": "GATr, less deep",
}
SETS = ("test", "val", "test_float32", "test_full", "test_moved", "test_mirrored")
VARIANTS = {
    "test_float32": "in float32",
    "test_full": "full attention",
    "test_moved": "turned and moved",
    "test_mirrored": "mirrored too",
}
"""How the test meshes of a set differ from `test`."""
CAPTIONS = {
    "figure.png": "Mean over seeds of the mean approximation error ε on the {shown} meshes, "
    "and its standard error.",
    "curves.png": "Mean ε on the validation meshes during training, in %, one line per run.",
    "histograms.png": "How many {evaluated} meshes have which ε. Dashed: the mean.",
    "scatter.png": "Predicted against true size of the stress at the nodes of a few {evaluated} "
    "meshes. On the line, they agree.",
    "maps.png": "Walls, chosen by the rank of GATr's ε on them, which stands above each: the size "
    "of the true stress, of the predicted one, and of their difference, in dyn/cm². Grey: seen by "
    "models, and not counted.",
}
PAPER_CAPTION = (
    "Grey: the paper's, with 1,600 training meshes "
    "(filled: random orientations, hollow: canonical)."
)
"""Follows the caption of figure.png where the paper's numbers are drawn."""
REFERENCE: dict[str, Any] = {
    "source": "the paper's table 2",
    "meshes": 1600,
    "steps": 200_000,
    "epsilon": {  # %, on randomly and on canonically oriented meshes
        "GATr": (5.6, 5.5),
        "Transformer": (10.5, 6.0),
        "PointNet++": (12.3, 8.6),
        "GEM-CNN": (7.7, 7.8),
    },
    "readme": {"steps": 50_000, "epsilon": {"GATr": 8.9, "Transformer": 10.5}},
    "ablations": {  # %, on the validation meshes after 100,000 steps
        "gatr": 6.1,
        "transformer": 10.5,
        "gatr_no_scalars": 10.4,
        "gatr_unconstrained": 9.7,
        "gatr_narrow": 12.0,
        "gatr_shallow": 7.8,
    },
}
"""The authors' results."""
