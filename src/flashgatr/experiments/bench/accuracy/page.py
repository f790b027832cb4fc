"""docs/results.md: every table of the paper beside ours, written from recorded results.

A table has what is measured; a sentence below it names the rest. The text around the tables stands
here, so that page and results cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ....train.settings import write_atomically
from ... import results
from . import arteries, charges, equivariance, kuka, mirrors, nbody, rates, scaling
from .tables import Table, not_measured

PAGE = Path("docs/results.md")
INTRODUCTION = """# Results

What GATr and the networks that it is compared with achieve on every table of the paper and on the
benchmark of charged particles, beside what others report.

- **Recipe.** `flashgatr sweep`, followed by the last column, trains the networks of a row;
  `--record` adds their results to this page's source, `benchmarks/results/*.jsonl`. Where the
  column does not begin with `recipe:`, it is the whole command.
- **Bold** is the best of a column among rows that may be compared: with the same data and, unless
  the section says otherwise, the same schedule. *Our recipe* for n-body is another schedule, and
  stands apart.
- **±** is the standard error over seeds; with one seed there is none. A recipe may have more seeds
  than the column *seeds* counts. *mse* is the mean squared error, *median* that of the systems,
  *trimmed* the mean without the worst 1 % of them.
- **Costs.** *Training* is the mean wall time of a run, with validation; several may have shared a
  GPU. *GPU time* is the number of steps times the time of a step, measured alone. *lr* is the
  learning rate.
- **Published values.** *Paper* is Brehmer et al., [Geometric Algebra
  Transformer](https://arxiv.org/abs/2305.18415): tables 2 and 3 for arteries, section 4.3 for
  robotics. *Authors' README* is that of their code. They are for the authors' data and schedules:
  systems of the same distribution as ours for n-body, the published meshes for arteries. For
  robotics, demonstrations, arm and environment are our own, so that rewards do not compare
  directly."""
WAITING = "Tables without results yet"


class Section(NamedTuple):
    title: str
    text: str
    tables: tuple[Callable[[Path], Table], ...]


SECTIONS = (
    Section(
        "n-body: the authors' README",
        "1,000 training systems, 5,000 steps of 64 systems; errors on 5,000 new systems, see "
        "[n-body](nbody.md).",
        (nbody.readme,),
    ),
    Section(
        "n-body: the same GPU time",
        "1,000 training systems, all models with the schedule of our recipe and with as many steps "
        "as take the same GPU time; of two losses, the one with less error on `val`.",
        (nbody.best,),
    ),
    Section(
        "n-body: the paper's figure",
        "100 to 100,000 training systems, 50,000 steps, [drawn](nbody.md#the-papers-figure) as in "
        "the paper. Networks of fixed size take four bodies only. SEGNN is evaluated on six bodies "
        "with messages from all others, and from the three or four nearest ones; the best of these "
        "is chosen on the set itself, as in the paper. The number of layers of the MLP is chosen "
        "on `val`.",
        (*(partial(nbody.errors, *each) for each in nbody.FIGURES), nbody.costs),
    ),
    Section(
        "Arteries: table 2",
        "Mean ε on the test meshes in %, see [the artery results](arteries_results.md). The paper "
        "has 1,600 training meshes and 200,000 steps. Bold compares rows with as many meshes, each "
        "with the steps and the learning rate that it states.",
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
        "What GATr loses without one of its parts: mean ε on the validation meshes in %, random "
        "orientations, 6,000 steps of our recipe. The paper has 1,600 meshes and 100,000 steps.",
        (arteries.ablations,),
    ),
    Section(
        "Exact mirrors",
        "GATr with [types of channels](symmetry.md#channels-with-types), as wide and with as many "
        "parameters, beside GATr as it is and with both signs, which takes two passes. n-body: our "
        "recipe, errors on new systems. Arteries: mean ε in % on the test meshes as they are, and "
        "on the same meshes mirrored, turned and moved; *change* is the largest change of a "
        "prediction where all meshes are moved, or mirrored as well. Rates that are not the "
        "recipe's are chosen on validation data. Rewards are among those of robotics.",
        (mirrors.nbody, mirrors.arteries),
    ),
    Section(
        "Robotics",
        "Rewards in % of a full tower in the test scenes, as they are (plain), turned or mirrored; "
        "see [robotics](kuka.md). With one seed, ± is the standard error over scenes. The paper's "
        "table also has EDGI, 62.0 ± 2.1, which is not implemented here.",
        (kuka.rewards,),
    ),
    Section(
        "Charged particles",
        "The standard benchmark, 1,000 steps ahead, 3,000 training systems; see [charged "
        "particles](charges.md). *Reversed* systems are the training systems once more, backwards "
        "in time. Published results are on the same data, with their own schedules, and are "
        "compared with our rows that have no reversed systems. At other horizons and with other "
        "laws, all rows have them.",
        (charges.standard, *(partial(charges.horizons, data) for data in charges.DATA)),
    ),
    Section(
        "Learning rates",
        "Each model's own best of three learning rates or more, chosen by its mean error on the "
        "validation data: `mse` for bodies, mean ε in % on vessels. These runs do not read the "
        "test data. For robotics, rewards decide: [the choice](kuka.md#the-choice-of-settings).",
        (rates.chosen,),
    ),
    Section(
        "Scaling",
        "Forward and backward on four sets, bfloat16, networks of equal width: time, and the most "
        "memory at any time. The largest number of items is limited by the memory of the GPU, or, "
        "where it says *at least*, by the time of a step. The paper could not fit SEGNN and the "
        "SE(3)-Transformer into memory on arteries. Their memory grows as a + b · B · N² for B "
        "sets of N items; a and b follow from the two largest N that were measured, and the second "
        "table extrapolates to one mesh, all pairs of nodes.",
        (scaling.sizes, scaling.mesh),
    ),
    Section(
        "Equivariance of trained models",
        "The largest |f(g x) - g f(x)| over four random motions g and a few samples x of the "
        "validation or test data, relative to the largest |f(x)|. For bodies f(x) is how far they "
        "move, on vessels the stress, for the robot the estimated noise. Systems and vessels are "
        "rotated and moved, the robot's scenes are turned about the vertical. Products of float32 "
        "are exact to float32 (no TF32). Of several runs of a recipe, the largest error counts; "
        "for the SE(3)-Transformer [one system in float32](nbody.md#the-models) decides. CQL, BCQ "
        "and the experiment `flows` have no such measurement. `flashgatr sweep --record` records "
        "these errors, `flashgatr bench trained-equivariance` those of the runs that come with the "
        "package.",
        (equivariance.errors,),
    ),
)


def text(folder: Path = results.FOLDER) -> str:
    """The whole page. Sections without any measurement are named at its end."""
    parts, waiting = [INTRODUCTION], []
    for section in SECTIONS:
        tables = [table(folder) for table in section.tables]
        missing = not_measured(gap for table in tables for gap in table.missing)
        told = [section.text, *(table.text for table in tables), missing]
        if any(table.rows for table in tables):
            parts += [f"## {section.title}", *filter(None, told)]
        else:
            waiting.append(f"**{section.title}.** {section.text} {missing}")
    if waiting:
        parts += [f"## {WAITING}", *waiting]
    return "\n\n".join(parts) + "\n"


def write(page: Path = PAGE, folder: Path = results.FOLDER) -> None:
    """Write the page from the recorded results."""
    write_atomically(page, text(folder))
    print(f"wrote {page}")
