"""One process at a time trains in a folder."""

import multiprocessing

import pytest

from flashgatr.train import ConfigError

from ..toy import make, settings, train


def _other(folder, connection):
    """Train in the folder, in another process; tells what became of it."""
    try:
        train(folder)
        connection.send("trained")
    except ConfigError as error:
        connection.send(str(error))


def elsewhere(folder):
    """What another process tells that trains in the folder."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_other, args=(folder, theirs))
    process.start()
    try:
        assert ours.poll(120)
        return ours.recv()
    finally:
        process.join(30)
        process.kill()
        process.join()


def test_a_second_process_is_refused_until_the_first_one_has_ended(tmp_path):
    trainer = make(settings(tmp_path))
    assert elsewhere(tmp_path).startswith(f"another process is training in {tmp_path}; wait for")
    assert not (tmp_path / "checkpoints").exists()
    trainer.run()
    assert elsewhere(tmp_path) == "trained"


def test_one_process_may_make_several_trainers_in_a_folder(tmp_path):
    first = make(settings(tmp_path))
    second = make(settings(tmp_path))
    assert first.run()["results"] == second.run()["results"]


def test_a_trainer_that_is_refused_or_forgotten_leaves_no_lock(tmp_path):
    train(tmp_path)
    with pytest.raises(ConfigError, match="another configuration"):
        make(settings(tmp_path, lr=0.5))
    trainer = make(settings(tmp_path))
    trainer.task.trainer = None  # a cycle, which only the garbage collector would find
    del trainer
    assert elsewhere(tmp_path) == "trained"
