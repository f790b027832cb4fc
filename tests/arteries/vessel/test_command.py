"""The command that predicts: its files, its messages, what it refuses."""

import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli, runs
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.raw import write_raw
from flashgatr.experiments.arteries.vessel import model_input, vtkxml
from flashgatr.experiments.arteries.vessel import predict as prediction
from flashgatr.experiments.arteries.vessel.formats import read as read_file
from flashgatr.experiments.config import override, save

from . import meshfiles
from .predictions import SAMPLE, make_run


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), ["predict", *map(str, arguments)])


def test_the_command_writes_a_file_and_a_picture_and_says_what_it_found(run, expected, tmp_path):
    done = invoke("arteries", run, SAMPLE, "--out", tmp_path)
    assert done.exit_code == 0, done.exception
    inside = f"{expected.mesh.nodes:,}, {expected.mesh.mask.sum():,} of them inside"
    for text in (inside, "the file's", "0.3614 cm", "ε against the labels"):
        assert text in done.output
    assert f"{expected.errors.epsilon:.2f} %" in done.output
    file = tmp_path / "sample_0001.vtp"
    assert (tmp_path / "sample_0001.png").read_bytes().startswith(b"\x89PNG")
    position, face, wss = read_file(file, "wss")
    np.testing.assert_array_equal(position, expected.position)
    np.testing.assert_array_equal(face, expected.mesh.face)
    np.testing.assert_allclose(wss, expected.wss, atol=1e-5)
    np.testing.assert_array_equal(read_file(file, "wss_reference")[2], expected.mesh.wss)
    error = np.linalg.norm(expected.wss - expected.mesh.wss, axis=1)
    np.testing.assert_allclose(read_file(file, "wss_error")[2][:, 0], error, rtol=1e-4)
    np.testing.assert_array_equal(read_file(file, "inside")[2][:, 0], expected.mesh.mask)
    # What was written is a mesh again: the vessel with its labels, open, and in its own folder.
    again = invoke("arteries", run, file, "--inlet", "-0.3 0 0", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.exception
    assert "ε against the labels" in again.output
    done = invoke("arteries", run, file, "--inlet", "-0.3 0 0", "--out", tmp_path)
    assert "is the mesh itself" in str(done.exception)


def test_only_predictions_are_overwritten(run, raw, tmp_path):
    file, image = tmp_path / "sample_0001.vtp", tmp_path / "sample_0001.png"
    for mine, other in ((file, image), (image, file)):
        mine.write_bytes(b"mine")
        done = invoke("arteries", run, SAMPLE, "--out", tmp_path)
        assert f"{mine} is there" in str(done.exception)
        assert "choose another folder with --out" in str(done.exception)
        assert mine.read_bytes() == b"mine"
        assert not other.exists()
        mine.unlink()
    file.write_bytes(vtkxml.write(raw.position, raw.face, {}))  # as an earlier prediction
    assert b"flashgatr" in file.read_bytes()[:100]
    assert prediction.targets(tmp_path, "sample_0001", SAMPLE) == [file, image]


def test_a_file_is_no_folder_to_write_to(run, tmp_path):
    (tmp_path / "a").write_bytes(b"mine")
    for out in (tmp_path / "a", tmp_path / "a" / "below"):
        with pytest.raises(ArteryError, match=f"--out must be a folder, but {tmp_path}/a is a"):
            prediction.run(run, tmp_path / "none.stl", out)  # at once: nobody looked at the mesh


def test_a_reference_that_was_asked_for_must_be_there(raw, inlet, tmp_path):
    file = tmp_path / "a.vtp"
    file.write_bytes(meshfiles.vtk(raw.position, raw.face, fields={"stress": raw.wss}))
    assert model_input.read_vessel(file, inlet=inlet).mesh.wss is None
    assert model_input.read_vessel(file, inlet=inlet, reference="stress").mesh.wss is not None
    with pytest.raises(ArteryError, match=r"wss is not there, .* there are: stress"):
        model_input.read_vessel(file, inlet=inlet, reference="wss")
    with pytest.raises(ArteryError, match=r"--reference goes with .vtp and .vtu files"):
        model_input.read_vessel(SAMPLE, reference="stress")


def test_published_files_say_the_same_as_others(raw, tmp_path):
    kept = model_input.read_vessel(SAMPLE, extensions="keep")
    assert kept.inlet in ("end 1, the file's", "end 2, the file's")
    for seen in (kept, model_input.read_vessel(SAMPLE)):
        assert any("its edges are 0.0" in note for note in seen.notes)


def test_a_database_needs_the_name_of_a_sample(run, raw, tmp_path):
    for name in ("sample_0001", "sample_0002"):
        write_raw(tmp_path / f"{name}.hdf5", replace(raw, wss=None))
    assert "such as --sample sample_0001" in str(invoke("arteries", run, tmp_path).exception)
    (tmp_path / "below").mkdir()
    for name in ("../sample_0001", "sample_0003"):
        wrong = invoke("arteries", run, tmp_path, "--sample", name, "-o", tmp_path / "out")
        listed = f"no sample {name!r}; --sample must be one of sample_0001, sample_0002"
        assert listed in str(wrong.exception)
    done = invoke("arteries", run, tmp_path, "--sample", "sample_0002", "-o", tmp_path / "out")
    assert "sample_0002.vtp" in done.output
    assert "ε" not in done.output  # without labels
    other = tmp_path / "a.stl"
    other.write_bytes(meshfiles.stl(raw.position, raw.face))
    message = str(invoke("arteries", run, other, "--sample", "sample_0002").exception)
    assert "--sample goes with HDF5" in message


def test_errors_name_the_sample_and_its_file(raw, tmp_path):
    flat = replace(raw, wss=None, position=raw.position * np.float32([1, 1, 0]))
    write_raw(tmp_path / "sample_0001.hdf5", flat)
    write_raw(tmp_path / "sample_0002.hdf5", flat)
    file = tmp_path / "sample_0001.hdf5"
    with pytest.raises(ArteryError, match=f"cannot use {re.escape(str(file))}: "):
        model_input.read_vessel(file)
    named = f"cannot use sample_0002 in {re.escape(str(tmp_path))}: "
    with pytest.raises(ArteryError, match=named):
        model_input.read_vessel(tmp_path, sample="sample_0002")


def test_runs_of_other_kinds_are_refused_or_said(run, tmp_path):
    plain = make_run(tmp_path / "plain", "model.name=transformer", "model.options.num_blocks=1")
    done = invoke("arteries", plain, SAMPLE, "--out", tmp_path)
    assert "transformer may predict something else for a mesh that is moved" in done.output
    done = invoke("arteries", plain, SAMPLE, "--both-signs", "--out", tmp_path)
    assert "--both-signs is for GATr" in str(done.exception)
    follows = make_run(tmp_path / "segnn", "model.name=segnn", "model.options.num_layers=1")
    done = invoke("arteries", follows, SAMPLE, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "may predict something else" not in done.output
    done = invoke("arteries", follows, SAMPLE, "--both-signs", "--out", tmp_path)
    assert "--both-signs is for GATr, not for segnn" in str(done.exception)
    assert "expected arteries" in str(invoke("nbody", run, SAMPLE).exception)
    assert "is not a run" in str(invoke("arteries", tmp_path, SAMPLE).exception)
    assert "there is no" in str(invoke("arteries", run, tmp_path / "none.vtp").exception)
    other = tmp_path / "other"
    other.mkdir()
    save(override(runs.defaults("nbody"), ["device=cpu"]), other / "config.toml")
    assert "a run of the nbody experiment" in str(invoke("arteries", other, SAMPLE).exception)
    wrong = invoke("arteries", run, SAMPLE, "--device", "tpu")
    assert "device" in str(wrong.exception)
