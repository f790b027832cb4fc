"""docs/results.md: every table of the paper beside ours, written from recorded results.

A cell without a measurement says so. The text around the tables stands here, so that page and
results cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ....train.settings import write_atomically
from ... import results
from . import arteries, charges, equivariance, kuka, nbody, rates, scaling

PAGE = Path("docs/results.md")
INTRODUCTION = """# Results

Every table of the paper, and of the benchmark of charged particles, beside ours. `flashgatr bench
results` writes this page from `benchmarks/results/*.jsonl`, to which `flashgatr sweep --record` and
`flashgatr bench` append; only the published values are typed by hand. *Not measured* means that no
run is recorded. ± is the standard error over seeds. Training is the mean wall time of a run, with
validation, on the machine named; several runs may have shared a GPU. GPU time is the number of
steps times the time of a step measured alone, by `flashgatr bench nbody-step`. lr is the learning
rate; runs that compare rates are [below](#learning-rates).

Published values are for the authors' data and recipes. Ours have data of the same distribution for
n-body and the published meshes for arteries. For robotics, demonstrations, arm and environment are
our own, so that these rewards do not compare directly."""


class Section(NamedTuple):
    title: str
    text: str
    tables: tuple[Callable[[Path], str], ...]


SECTIONS = (
    Section(
        "n-body: the authors' README",
        "1,000 training systems, 5,000 steps of 64 systems; errors on 5,000 new systems, see "
        "[n-body](nbody.md). The authors' README gives one number per model, on systems of their "
        "own.",
        (nbody.readme,),
    ),
    Section(
        "n-body: the same GPU time",
        "The data of the table above, all models with the schedule of our recipe and with as many "
        "steps as take the same GPU time; of two losses, the one with less error on `val`.",
        (nbody.best,),
    ),
    Section(
        "n-body: the paper's figure",
        "100 to 100,000 training systems, 50,000 steps. The paper shows this as a picture. "
        "The fourth table has medians on new systems. Networks of fixed size take four bodies "
        "only. SEGNN is evaluated on six bodies with messages from all others, and from the three "
        "or four nearest ones; the best of these is chosen on the set itself, as in the paper. The "
        "number of layers of the MLP is chosen on `val`.",
        (nbody.figure,),
    ),
    Section(
        "Arteries: table 2",
        "Mean ε on the test meshes in %, see [the artery results](arteries_results.md). The "
        "paper's networks had 200,000 steps.",
        (arteries.errors,),
    ),
    Section(
        "Arteries: error against the number of meshes",
        "Mean ε on the validation meshes in %, as in the paper, which shows this as a picture; "
        "6,000 steps of our recipe. The training time is that with the most meshes.",
        (arteries.sizes,),
    ),
    Section(
        "Arteries: table 3",
        "What GATr loses without one of its parts, random orientations, 6,000 steps of our recipe. "
        "The paper's networks had 100,000 steps.",
        (arteries.ablations,),
    ),
    Section(
        "Robotics",
        "Rewards in % of a full tower in the test scenes, as they are (plain), turned or mirrored; "
        "see [robotics](kuka.md). With one seed, ± is the standard error over scenes.",
        (kuka.rewards,),
    ),
    Section(
        "Charged particles",
        "The standard benchmark, 1,000 steps ahead, see [charged particles](charges.md); then "
        "other horizons and laws, with each system also reversed in training.",
        (charges.standard, charges.horizons),
    ),
    Section(
        "Learning rates",
        "Each model's own best of three learning rates or more, chosen by its mean error on the "
        "validation data: `mse` for bodies, mean ε in % on vessels. These runs do not read the "
        "test data. Where a row is *not measured*, no recorded run supports the rate that the "
        "tables above have.",
        (rates.chosen,),
    ),
    Section(
        "Scaling",
        "Forward and backward on four sets, bfloat16, networks of equal width: time, and the most "
        "memory at any time. The largest number of items is limited by the memory of the GPU, or, "
        "where it says *at least*, by the time of a step.",
        (scaling.sizes,),
    ),
    Section(
        "SEGNN and the SE(3)-Transformer on an artery mesh",
        "The paper could not fit them into memory. Memory grows as a + b · B · N² for B sets of N "
        "items; a and b follow from the two largest N that were measured, and the last column is "
        "the extrapolation to one mesh, all pairs of nodes.",
        (scaling.mesh,),
    ),
    Section(
        "Equivariance of trained models",
        "The largest |f(g x) - g f(x)| over four random motions g and a few samples x of the "
        "validation or test data, relative to the largest |f(x)|. For bodies f(x) is how far they "
        "move, on vessels the stress, for the robot the estimated noise. Systems and vessels are "
        "rotated and moved, the robot's scenes are turned about the vertical. Products of float32 "
        "are exact to float32 (no TF32). Of several runs of a recipe, the largest error counts. An "
        "error of the order of one means that the model does not have this symmetry. The policies "
        "CQL and BCQ and the experiment `flows` have no such measurement. `flashgatr sweep "
        "--record` records these errors, and `flashgatr bench trained-equivariance` those of the "
        "runs that come with the package.",
        (equivariance.errors,),
    ),
)


def text(folder: Path = results.FOLDER) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        tables = [table(folder) for table in section.tables]
        parts += [f"## {section.title}", section.text, *tables]
    return "\n\n".join(parts) + "\n"


def write(page: Path = PAGE, folder: Path = results.FOLDER) -> None:
    """Write the page from the recorded results."""
    write_atomically(page, text(folder))
    print(f"wrote {page}")
