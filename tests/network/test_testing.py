"""The checks find broken laws and measure the error."""

import pytest
import torch
from hypothesis import given, settings

from flashgatr import GATr, embed_point, extract_point, testing
from flashgatr.algebra import E123
from flashgatr.ops import norm

MV, S = torch.randn(3, 5, 2, 16), torch.randn(3, 5, 1)


def _net():
    options = dict(hidden_mv_channels=2, hidden_s_channels=4, num_blocks=1, num_heads=2)
    return GATr(in_mv_channels=2, in_s_channels=1, out_mv_channels=1, **options)


def test_what_is_not_equivariant_is_found():
    with pytest.raises(AssertionError, match=r"not E\(3\)-equivariant: relative error \d"):
        testing.assert_equivariant(lambda mv: mv + 1, MV)
    with pytest.raises(AssertionError, match=r"not translation-equivariant"):
        testing.assert_equivariant(lambda mv: mv.flip(-1), MV, group="translation")


def test_a_function_may_return_multivectors_alone_or_none_as_scalars():
    assert testing.equivariance_error(lambda mv: 2 * mv, MV) < 1e-12
    assert testing.equivariance_error(lambda mv: (2 * mv, None), MV) < 1e-12
    with pytest.raises(TypeError, match="pair"):
        testing.equivariance_error(lambda mv: [mv], MV)


def test_invariant_scalars_are_checked_too():
    def f(mv, s):
        return mv, s + mv[..., 1:2, 1]  # the e0 part is no invariant

    assert testing.equivariance_error(f, MV, S) > 1e-3


def test_mixing_of_samples_items_and_padding_is_found():
    with pytest.raises(AssertionError, match="independent of its batch"):
        testing.assert_batch_independent(lambda mv: mv - mv.mean(), MV)
    with pytest.raises(AssertionError, match="permutation-equivariant"):
        testing.assert_permutation_equivariant(lambda mv: mv.cumsum(-3), MV)
    with pytest.raises(AssertionError, match=r"invariant to padding.*inf"):
        testing.assert_padding_invariant(lambda mv, mask=None: mv + mv.mean(-3, keepdim=True), MV)
    with pytest.raises(AssertionError, match=r"output has shape \(5"):
        testing.batch_error(lambda mv: mv.flatten(-2) if mv.dim() == 3 else mv, MV)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: testing.batch_error(_net(), MV[0], S[0]), ValueError, r"\(B, N, C, 16\), got \(5"),
        (lambda: testing.batch_error(_net(), MV[:1], S[:1]), ValueError, "at least two samples"),
        (lambda: testing.permutation_error(_net(), MV[:, :1], S[:, :1]), ValueError, "two of them"),
        (lambda: testing.equivariance_error(extract_point, MV), ValueError, "point_equivariance_"),
        (lambda: testing.equivariance_error(_net(), MV.numpy(), S), TypeError, "got ndarray"),
        (lambda: testing.equivariance_error(_net(), MV, S.tolist()), TypeError, "s must be a tens"),
        (lambda: testing.point_equivariance_error(abs, MV), ValueError, "use equivariance_error"),
        (lambda: testing.point_equivariance_error(abs, [[0.0] * 3]), TypeError, "points must be"),
        (lambda: testing.point_equivariance_error(len, MV[..., :3]), TypeError, "output must be"),
        (
            lambda: testing.point_equivariance_error(torch.sum, MV[..., :3]),
            ValueError,
            r"the output must have shape \(..., 3\), got \(\)",
        ),
    ],
)
def test_a_check_that_would_see_nothing_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_good_network_passes_and_reports_its_error():
    net = _net().train()
    for check in (
        testing.assert_equivariant,
        testing.assert_batch_independent,
        testing.assert_padding_invariant,
        testing.assert_permutation_equivariant,
    ):
        assert 0 <= check(net, MV, S) < 1e-10
    assert net.training
    assert net.linear_in.weight.dtype == torch.float32  # the user's network is left alone
    assert 0 < testing.assert_equivariant(net, MV, S, dtype=torch.float32) < 1e-3


MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True] + [True] * 3])


@pytest.mark.parametrize(
    "check",
    [
        testing.assert_batch_independent,
        testing.assert_padding_invariant,
        testing.assert_permutation_equivariant,
    ],
)
def test_checks_carry_a_mask_along(check):
    assert check(_net(), MV, S, mask=MASK) < 1e-10
    with pytest.raises(ValueError, match="attention_mask belongs to one order"):
        check(_net(), MV, S, attention_mask=torch.ones(5, 5).bool())


def test_sixteen_bits_need_a_tolerance():
    with pytest.raises(ValueError, match=r"no default tolerance for torch\.bfloat16"):
        testing.assert_equivariant(_net(), MV, S, dtype=torch.bfloat16)
    error = testing.assert_equivariant(_net(), MV, S, dtype=torch.bfloat16, tolerance=0.5)
    assert error > 1e-4


def test_empty_output_has_no_error():
    assert testing.equivariance_error(lambda mv: mv[:0], MV) == 0


@given(testing.versors("SE(3)"), testing.multivectors(2), testing.point_clouds(items=4))
@settings(max_examples=20, deadline=None)
def test_strategies_draw_what_they_say(versor, mv, points):
    assert norm(versor).item() == pytest.approx(1)
    assert mv.shape == (2, 16)
    assert points.shape == (4, 3)
    assert points.isfinite().all()


def test_strategies_name_the_missing_package(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match="pip install hypothesis"):
        testing.versors()


def test_a_join_reference_moves_with_the_input():
    """The network is equivariant in both; if the reference stayed, mirrors would be violated."""
    reference = torch.zeros(16)
    reference[E123] = 2.0
    assert testing.assert_equivariant(_net(), MV, S, join_reference=reference) < 1e-10


@pytest.mark.parametrize(
    "check",
    [
        testing.assert_equivariant,
        testing.assert_batch_independent,
        testing.assert_padding_invariant,
        testing.assert_permutation_equivariant,
    ],
)
def test_networks_are_checked_without_dropout(check):
    options = dict(hidden_mv_channels=4, hidden_s_channels=4, num_blocks=1, num_heads=2)
    net = GATr(in_mv_channels=1, in_s_channels=1, out_mv_channels=1, dropout=0.5, **options)
    mv, s = embed_point(torch.randn(2, 5, 1, 3)), torch.randn(2, 5, 1)
    assert check(net.train(), mv, s) < 1e-10
    assert net.training
