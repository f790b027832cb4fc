"""Models by name: their sizes, and options that another name stands for."""

import pytest
import torch

from flashgatr.experiments import table
from flashgatr.experiments.baselines.unet import TemporalUNet
from flashgatr.experiments.robotics.models import MODELS, GATrDenoiser

SIZES = {
    "gatr": 1_190_292,  # with 32 scalar channels, as the paper states them
    "transformer": 3_528_586,
    "unet": 65_093_809,  # the paper says 65.1 million
    "cql": 239_898,
    "bcq": 414_532,
}
"""Trained parameters. CQL and BCQ have copies of networks besides, which follow them."""


def count(make):
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters() if p.requires_grad)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_that_the_pages_give(name):
    assert count(MODELS[name]) == SIZES[name]


def test_sizes_are_those_of_the_paper():
    assert count(lambda: TemporalUNet(39)) == 65_084_839
    wide = count(lambda: GATrDenoiser(hidden_s_channels=128))
    assert wide == pytest.approx(4.2e6, rel=0.02)  # near the 4.0 million that the paper gives


def test_mirrors_are_chosen_by_the_name_of_the_model():
    build = table.find("kuka").build
    for value in (True, False):
        with pytest.raises(TypeError, match=r"the model 'gatr' has no types, .*; take 'gatr_e3'"):
            build("gatr", {"mirrors": value})
        with pytest.raises(TypeError, match="the model 'gatr_e3' sets mirrors itself"):
            build("gatr_e3", {"mirrors": value})
