"""Anchors are chosen alike in every position, on every device, alone and in a batch."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashgatr import anchors, cells
from flashgatr.anchors import anchor_sets, cell_weights, choose_anchors
from flashgatr.batch import pack, pad

from .shapes import SHAPES, collinear, moved, regular_tube, vessel

MOTIONS = range(100)
METHODS = ("farthest", "medoids")
"""The methods that look at positions."""


def overlap(found, expected):
    return len(set(found.tolist()) & set(expected.tolist())) / len(expected)


def chosen_in_copies(points, method, count=None):
    """A sixth of the points or `count`, chosen from them, and from each of their copies."""
    copies, count = moved(points, MOTIONS, points.dtype), count or len(points) // 6
    if method == "farthest":
        return choose_anchors(points, count), choose_anchors(copies, count)
    # One by one: the random items with which medoids begin depend on the number of the sample.
    found = [choose_anchors(x, count, method=method) for x in copies]
    return choose_anchors(points, count, method=method), torch.stack(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_choice_is_the_same_after_every_motion_in_float64(name, method):
    expected, found = chosen_in_copies(SHAPES[name], method)
    assert bool((found == expected).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_choice_is_the_same_after_99_of_100_motions_in_float32(name, method):
    expected, found = chosen_in_copies(SHAPES[name].float(), method)
    assert int((found == expected).all(-1).sum()) >= 99
    assert min(overlap(x, expected) for x in found) >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_choice_is_the_same_in_vessels_of_full_size_in_float32(seed, method):
    points = vessel(seed, around=32, layers=160).float()
    assert len(points) == 10_272
    expected, found = chosen_in_copies(points, method, count=1024)
    assert int((found == expected).all(-1).sum()) >= 99
    assert min(overlap(x, expected) for x in found) >= 0.99


def test_without_tolerance_motions_would_change_the_choice(monkeypatch):
    monkeypatch.setitem(cells.TOLERANCES, torch.float64, 0.0)
    points = regular_tube()
    found = choose_anchors(moved(points, range(5), torch.float64), 60)
    assert max(overlap(x, choose_anchors(points, 60)) for x in found) < 0.9


@pytest.mark.parametrize("name", ["regular tube", "collinear", "vessel 0"])
def test_weights_are_the_same_after_every_motion(name):
    points = SHAPES[name]
    index = choose_anchors(points, 20)
    weights = cell_weights(points, index)
    copies = moved(points, range(20), torch.float64)
    assert bool((cell_weights(copies, index.expand(20, -1)) == weights).all())


def farthest(points, first, count):
    """Farthest points by the definition, sorted."""
    away, index = torch.cdist(points, points), [first]
    while len(index) < count:
        index.append(int(away[:, index].amin(-1).argmax()))
    return sorted(index)


def test_farthest_points_are_those_of_the_definition():
    points = torch.randn(80, 3, dtype=torch.float64)
    first = int((points - points.mean(0)).norm(dim=-1).argmax())
    assert choose_anchors(points, 30).tolist() == farthest(points, first, 30)


def test_medoids_are_those_of_the_definition():
    points = torch.randn(80, 3, dtype=torch.float64)
    expected = choose_anchors(points, 12, method="random", seed=5).tolist()
    for _ in range(cells.ROUNDS):
        own = torch.cdist(points, points[expected]).argmin(-1)
        members = [(own == i).nonzero()[:, 0] for i in range(12)]
        away = [(points[x] - points[x].mean(0)).norm(dim=-1) for x in members]
        expected = [int(x[d.argmin()]) for x, d in zip(members, away, strict=True)]
    assert choose_anchors(points, 12, method="medoids", seed=5).tolist() == expected


def test_the_effort_for_medoids_is_that_of_recorded_results():
    """With other numbers, trained networks see other anchors and predict something else."""
    assert (cells.ROUNDS, anchors._SEEN) == (5, 64)


def test_medoids_of_many_items_are_those_of_a_random_sample(monkeypatch):
    monkeypatch.setattr(anchors, "_SEEN", 4)
    points = torch.randn(2, 300, 3)
    seen = choose_anchors(points, 40, method="random", seed=1).sort(-1).values
    found = choose_anchors(points, 10, method="medoids", seed=1)
    assert all(set(x.tolist()) <= set(y.tolist()) for x, y in zip(found, seen, strict=True))
    masked = torch.cat([points, torch.full((2, 9, 3), torch.nan)], dim=1)
    mask = torch.arange(309).expand(2, -1) < 300
    assert torch.equal(choose_anchors(masked, 10, method="medoids", seed=1, mask=mask), found)


def test_the_weight_of_an_anchor_is_at_least_one():
    points = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 0, 0], [9, 0, 0]])
    assert cell_weights(points, torch.tensor([0, 1, 2])).tolist() == [1, 1, 2]


def test_weights_take_numbers_of_any_integer_type_and_samples_without_items_or_anchors():
    points, offsets = torch.randn(10, 3), torch.tensor([0, 4, 4, 10])
    index = torch.tensor([1, 4, 9])
    assert torch.equal(cell_weights(points, index.int()), cell_weights(points, index))
    weights = cell_weights(points, torch.tensor([1, 4, 9]), offsets=offsets)
    assert (weights[0], weights[1:].sum()) == (4, 6)


@pytest.mark.parametrize("method", anchors.METHODS)
def test_every_item_is_chosen_once_at_most(method):
    for points in (torch.zeros(9, 3), torch.randn(9, 3), collinear()[:9].float()):
        assert sorted(choose_anchors(points, 9, method=method).tolist()) == list(range(9))


def test_without_ties_a_permutation_of_the_items_permutes_the_choice():
    points, order = torch.randn(100, 3), torch.randperm(100)
    found = order[choose_anchors(points[order], 30)].sort().values
    assert torch.equal(found, choose_anchors(points, 30))


@pytest.mark.parametrize("method", anchors.METHODS)
def test_padded_packed_and_stacked_sets_agree(method):
    seed = 0 if method == "farthest" else 3  # then samples do not depend on their numbers
    sets = [torch.randn(n, 3) for n in (9, 5, 12)]
    (padded, mask), (packed, offsets) = pad(sets), pack(sets)
    padded[~mask] = torch.nan
    by_mask = choose_anchors(padded, 4, method=method, mask=mask, seed=seed)
    by_offsets = choose_anchors(packed, 4, method=method, offsets=offsets, seed=seed)
    assert torch.equal(by_offsets.reshape(3, 4), by_mask + offsets[:-1, None])
    weights = cell_weights(packed, by_offsets, offsets=offsets)
    assert torch.equal(weights.reshape(3, 4), cell_weights(padded, by_mask, mask=mask))
    assert weights.reshape(3, 4).sum(-1).tolist() == [9, 5, 12]
    if method == "farthest":
        for x, index in zip(sets, by_mask, strict=True):
            assert torch.equal(choose_anchors(x, 4), index)
            assert torch.equal(cell_weights(x, index), cell_weights(x[None], index[None])[0])
    stacked = torch.randn(2, 3, 8, 3)
    found = choose_anchors(stacked, 4, method=method, seed=3)
    flat = choose_anchors(stacked.flatten(0, 1), 4, method=method, seed=3)
    assert torch.equal(found, flat.reshape(2, 3, 4))


def test_holes_in_the_mask_change_no_random_choice():
    mask = torch.tensor([[True, False, True, True, False, True, True]])
    with_holes = choose_anchors(torch.randn(1, 7, 3), 3, method="random", mask=mask)
    without = choose_anchors(torch.randn(1, 5, 3), 3, method="random")
    assert torch.equal(with_holes, mask[0].nonzero()[without[0], 0][None])


def test_random_choices_depend_on_seed_and_sample_and_nothing_else():
    def chosen(seed, points):
        return choose_anchors(points, 10, method="random", seed=seed)

    first, second = torch.randn(2, 40, 3), torch.randn(2, 40, 3)
    assert torch.equal(chosen(1, first), chosen(1, second))
    assert not torch.equal(chosen(1, first), chosen(2, first))
    assert not torch.equal(*chosen(1, first))


def mixed(x):
    """SplitMix64 in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1])
def test_random_keys_are_those_of_splitmix64(seed):
    def key(sample, item):
        found = mixed(mixed(mixed(seed) + sample) + item)
        return found - 2**64 * (found >= 2**63)  # as a signed integer

    found = choose_anchors(torch.randn(2, 40, 3), 10, method="random", seed=seed)
    for sample in range(2):
        order = sorted(range(40), key=lambda i, sample=sample: -key(sample, i))
        assert found[sample].tolist() == order[:10]


@pytest.mark.parametrize("method", anchors.METHODS)
def test_a_seed_may_be_a_tensor(method):
    points = torch.randn(2, 40, 3)
    found = choose_anchors(points, 6, method=method, seed=torch.tensor([5]))
    assert torch.equal(found, choose_anchors(points, 6, method=method, seed=5))
    zero = choose_anchors(points, 6, method=method, seed=torch.tensor([0]))
    assert torch.equal(zero, choose_anchors(points, 6, method=method))
    with pytest.raises(ValueError, match="must be one 64-bit integer, got 2 of"):
        choose_anchors(points, 6, method=method, seed=torch.tensor([5, 6]))


def test_random_choices_are_uniform():
    counts = torch.zeros(20)
    for seed in range(500):
        counts[choose_anchors(torch.zeros(20, 3), 5, method="random", seed=seed)] += 1
    spread = (500 * 0.25 * 0.75) ** 0.5
    assert float((counts - 125).abs().max()) < 4 * spread


def test_the_loop_reads_nothing_from_the_device():
    with FakeTensorMode():
        for method in anchors.METHODS:
            index = choose_anchors(torch.empty(2, 50, 3), 7, method=method)
            assert cell_weights(torch.empty(2, 50, 3), index).shape == (2, 7)


def test_weights_count_the_nearest_anchors_whatever_the_tile(monkeypatch):
    points = torch.randn(200, 3, dtype=torch.float64)
    index = choose_anchors(points, 25)
    expected = torch.cdist(points, points[index]).argmin(-1).bincount(minlength=25)
    assert torch.equal(cell_weights(points, index), expected.double())
    monkeypatch.setattr(cells, "PAIRS", 700)
    assert torch.equal(cell_weights(points, index), expected.double())


def test_empty_batches_have_empty_choices():
    empty = torch.zeros(0, 5, 3)
    for method in anchors.METHODS:
        index = choose_anchors(empty, 2, method=method)
        assert index.shape == (0, 2)
        assert cell_weights(empty, index).shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (dict(count=6), "got count=6, but a sample has only 5 items"),
        (dict(count=0), "count must be an integer of at least 1, got 0"),
        (dict(method="nearest"), "unknown method 'nearest'; expected one of medoids, farthest"),
        (dict(seed=1.5), "seed must be a 64-bit integer, got 1.5"),
        (dict(position=torch.full((5, 3), torch.nan)), "position has NaN or infinite values"),
        (dict(position=torch.zeros(5, 2)), r"expected positions \(..., N, 3\), got \(5, 2\)"),
        (dict(position=torch.zeros(5, 3).half()), "must be float32 or float64, got torch.float16"),
        (dict(position=[[0.0, 0, 0]]), "position must be a tensor, got list"),
        (dict(mask=torch.tensor([1, 1, 0, 0, 0]).bool()), "a sample has only 2 items"),
        (dict(offsets=torch.tensor([0, 4, 5])), "a sample has only 1 items"),
    ],
)
def test_bad_arguments_of_a_choice_are_refused(change, error):
    given = dict(position=torch.randn(5, 3), count=3) | change
    with pytest.raises((TypeError, ValueError), match=error):
        choose_anchors(given.pop("position"), given.pop("count"), **given)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([0, 1], "anchors must be a tensor of integers, the numbers of items; got list"),
        (torch.tensor([0.0]), "got torch.float32"),
        (torch.tensor([0, 5]), "numbers of items, from 0 to 4; got 0 to 5"),
        (torch.tensor([-1, 2]), "got -1 to 2"),
        (torch.tensor([[0, 1]]), r"must have the shape \('M',\), one number per anchor"),
    ],
)
def test_bad_numbers_of_anchors_are_refused(index, error):
    with pytest.raises((TypeError, ValueError), match=error):
        cell_weights(torch.randn(5, 3), index)


@pytest.mark.parametrize("method", ["farthest", "medoids"])
def test_positions_whose_squares_are_infinite_are_refused(method):
    points = torch.rand(20, 3).double()
    assert len(set(choose_anchors(1e149 * points, 5, method=method).tolist())) == 5
    with pytest.raises(ValueError, match="position has NaN or infinite values, or some beyond 1e"):
        choose_anchors(1e200 * points, 5, method=method)
    with pytest.raises(ValueError, match="position has NaN or infinite values, or some beyond 1e"):
        cell_weights(1e200 * points, torch.arange(5))


def test_a_count_is_no_truth_value():
    with pytest.raises(ValueError, match="count must be an integer of at least 1, got True"):
        choose_anchors(torch.rand(20, 3), True)


def test_anchors_in_the_padding_or_out_of_order_are_refused():
    points, mask = torch.randn(1, 4, 3), torch.tensor([[True, True, True, False]])
    with pytest.raises(ValueError, match="for some of them mask is False"):
        cell_weights(points, torch.tensor([[0, 3]]), mask=mask)
    with pytest.raises(ValueError, match="must be ordered by sample"):
        cell_weights(points[0], torch.tensor([3, 0]), offsets=torch.tensor([0, 2, 4]))


def test_packed_anchors_may_differ_in_number():
    sets = anchors.Sets((9,), offsets=torch.tensor([0, 3, 3, 9]))
    found = anchor_sets(torch.tensor([1, 4, 5, 8]), sets)
    assert found.offsets.tolist() == [0, 1, 1, 4]


def test_farthest_anchors_of_another_seed_begin_with_its_first_random_item():
    points = torch.randn(3, 50, 3, generator=torch.Generator().manual_seed(0)).double()
    by_default = choose_anchors(points, 8)
    for seed in range(1, 4):
        found = choose_anchors(points, 8, seed=seed)
        first = choose_anchors(points, 1, method="random", seed=seed)
        assert not torch.equal(found, by_default)
        for sample, row, item in zip(points, found, first, strict=True):
            assert row.tolist() == farthest(sample, int(item), 8)
