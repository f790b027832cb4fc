"""Which samples form the batch of step k."""

import pytest
import torch

from flashgatr.train.distributed import World
from flashgatr.train.order import batch_indices, mix


@pytest.mark.parametrize(("batch", "samples"), [(8, 64), (7, 30), (1, 5), (12, 5), (5, 1)])
def test_every_epoch_is_a_permutation(batch, samples):
    sequence = torch.cat([batch_indices(3, k, batch, samples) for k in range(4 * samples)])
    epochs = sequence[: len(sequence) // samples * samples].view(-1, samples)
    assert all(sorted(epoch) == list(range(samples)) for epoch in epochs.tolist())
    if samples > 8:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)


def test_a_batch_depends_on_seed_and_step_alone():
    forward = [batch_indices(1, k, 6, 20).tolist() for k in range(30)]
    torch.manual_seed(99)
    backward = [batch_indices(1, k, 6, 20).tolist() for k in reversed(range(30))]
    assert forward == backward[::-1]
    assert forward != [batch_indices(2, k, 6, 20).tolist() for k in range(30)]


def test_a_run_begun_with_an_earlier_version_goes_on_with_its_batches():
    assert batch_indices(3, 5, 6, 20).tolist() == [11, 2, 18, 13, 19, 12]
    assert (mix(), mix(0, 0, 0), mix(3, 5, -1)) == (
        5700357409661599242,
        4937707932681806393,
        7117385745910075746,
    )


def test_drawing_a_batch_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    batch_indices(5, 1234, 6, 20)
    assert torch.equal(before, torch.get_rng_state())


def test_a_batch_is_a_copy():
    first = batch_indices(0, 0, 4, 8)
    kept = first.clone()
    first.zero_()
    assert torch.equal(batch_indices(0, 0, 4, 8), kept)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_shares_of_all_processes_make_up_the_batch(size):
    batch = batch_indices(0, 7, 8, 100)
    shares = [World(rank, size, torch.device("cpu")).share(batch) for rank in range(size)]
    assert sorted(torch.cat(shares).tolist()) == sorted(batch.tolist())
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_seeds_of_nearby_numbers_differ():
    seeds = {mix(a, b, c) for a in range(9) for b in range(9) for c in range(9)}
    assert len(seeds) == 9**3
    assert mix(1) != mix(1, 0) != mix(0, 1)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("wrong", [(0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)])
def test_impossible_batches_are_refused(wrong):
    with pytest.raises(ValueError, match="expected at least one sample, a batch and a step"):
        batch_indices(*wrong)
