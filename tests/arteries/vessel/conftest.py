"""A run, its network, and its prediction on a sample."""

import pytest

from flashgatr.experiments.arteries.data.raw import read_raw
from flashgatr.experiments.arteries.vessel import model_input
from flashgatr.experiments.arteries.vessel import predict as prediction

from .predictions import SAMPLE, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def model(run):
    return prediction.load(run)[0]


@pytest.fixture(scope="module")
def raw():
    return read_raw(SAMPLE)


@pytest.fixture(scope="module")
def inlet(raw):
    return " ".join(map(str, raw.position[raw.inlet].mean(axis=0)))


@pytest.fixture(scope="module")
def expected(model):
    return prediction.predict_vessel(model, model_input.read_vessel(SAMPLE))
