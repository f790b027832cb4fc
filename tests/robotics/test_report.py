"""The report on runs: rewards beside the paper's, a figure, a film strip, commands."""

import json
import shutil

import numpy as np
import pytest

from flashgatr.experiments.report import write
from flashgatr.experiments.robotics.evaluation import PICTURES
from flashgatr.experiments.robotics.report.titles import REFERENCE
from flashgatr.experiments.robotics.world import scenes


@pytest.fixture
def runs(trained, tmp_path):
    """Two seeds of one run, with results of planning that do not depend on an engine."""
    for seed, reward in ((0, 60.0), (1, 80.0)):
        folder = shutil.copytree(trained, tmp_path / "runs" / str(seed))
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("\nseed = 0\n", f"\nseed = {seed}\n"))
        found = json.loads((folder / "results.json").read_text())
        strip = np.repeat(scenes.scenes("test", 1), PICTURES, 0).tolist()
        found["results"] = {
            "plan_mujoco": dict(
                reward=reward, reward_error=3.0, strict=10.0, strict_error=2.0, success=0.0,
                scenes=200, scene_set="test", sampler="ancestral", sampling_steps=1000,
                demonstrations=11_000, strip=strip, cases=200,
            ),
            **{name: x | {"demonstrations": 11_000} for name, x in found["results"].items()
               if name.startswith("test")},
        }  # fmt: skip
        (folder / "results.json").write_text(json.dumps(found))
    return tmp_path / "runs"


def test_a_report_has_rewards_beside_the_papers(runs, tmp_path):
    page = write([runs], tmp_path / "report").read_text()
    numbers = json.loads((tmp_path / "report" / "report.json").read_text())
    (group,) = numbers["groups"]
    assert group["results"]["plan_mujoco"]["reward"] == {"mean": 70, "standard_error": 10}
    assert group["samples"] == 11_000
    for text in ("70.0 ± 10.0", "paper: GATr-Diffuser", "74.8 ± 1.7", "ancestral, 1000 steps"):
        assert text in page
    assert page.count("<img") == 3
    assert not [note for note in numbers["notes"] if "not drawn" in note]
    assert numbers["commands"].startswith("flashgatr data kuka --folder")


def test_one_seed_has_the_error_over_scenes(runs, tmp_path):
    shutil.rmtree(runs / "1")
    page = write([runs], tmp_path / "report").read_text()
    assert "60.0 ± 3.0" in page


def test_a_report_without_planning_says_why_figures_are_missing(runs, tmp_path):
    for file in runs.rglob("results.json"):
        found = json.loads(file.read_text())
        del found["results"]["plan_mujoco"]
        file.write_text(json.dumps(found))
    page = write([runs], tmp_path / "report").read_text()
    assert "figure.png was not drawn: no run has results of planning" in page
    assert "An answer of zero has error 1" in page


def test_damaged_states_of_the_strip_do_not_stop_the_report(runs, tmp_path):
    for file in runs.rglob("results.json"):
        file.write_text(file.read_text().replace('"strip": [[', '"strip": [["x", '))
    assert "strip.png was not drawn" in write([runs], tmp_path / "report").read_text()


def test_the_papers_numbers():
    """Table of appendix C.3."""
    assert [value for value, _ in REFERENCE["reward"].values()] == [
        74.8, 69.8, 57.7, 58.7, 62.0, 24.4, 0.0,
    ]  # fmt: skip
