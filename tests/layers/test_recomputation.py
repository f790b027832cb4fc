"""Half of a block computed again in the backward pass: same gradients, less memory."""

import contextlib
import json
from unittest import mock

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from flashgatr import AxialGATr, GATr, GATrConfig
from flashgatr.kernels import block as fused
from flashgatr.kernels.paths import plain_kernels

from ..files.plain_gatr import random_state

SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=3, num_heads=2, reinsert_mv_channels=(1,),
)  # fmt: skip
PATHS = {"fused": contextlib.nullcontext, "plain": plain_kernels}
SETS = {
    "small sets": ((40, 6), {}),
    "a large set": ((200,), {}),
    "packed": ((200,), dict(offsets=torch.tensor([0, 60, 200]))),
}
CASES = [(GATr, name) for name in SETS] + [(AxialGATr, "small sets")]
HALVES = ["attention", "mlp"]


def _net(kind, checkpoint, **options):
    torch.manual_seed(3)
    return kind(**{**SMALL, **options}, checkpoint=checkpoint).double()


def _data(items):
    generator = torch.Generator().manual_seed(4)
    given = dict(generator=generator, dtype=torch.float64)
    return torch.randn(*items, 2, 16, **given).requires_grad_(), torch.randn(*items, 1, **given)


def _results(net, mv, s, **given):
    """Outputs and gradients."""
    out = net(mv, s, **given)
    loss = sum(x.square().sum() for x in out)
    return [*out, *torch.autograd.grad(loss, [mv, *net.parameters()])]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "sets"), CASES)
def test_values_and_gradients_are_the_same_as_without(kind, sets, path, half):
    items, given = SETS[sets]
    mv, s = _data(items)
    with PATHS[path]():
        found = _results(_net(kind, half), mv, s, **given)
        expected = _results(_net(kind, False), mv, s, **given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("half", HALVES)
def test_dropout_is_drawn_again_as_it_was(half):
    mv, s = _data((4, 6))
    results = []
    for checkpoint in (half, False):
        net = _net(GATr, checkpoint, dropout=0.3)
        results.append(_results(net, mv, s))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def _saved(net, mv, s, **given):
    """Bytes of the tensors that the graph saves, each storage once, without parameters.

    The inputs of a recomputed part are kept as well, outside the graph, and not counted.
    """
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    sizes, kept = {}, []

    def note(x):
        kept.append(x)
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with saved_tensors_hooks(note, lambda x: x):
        net(mv, s, **given)
    return sum(sizes.values())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "sets"), CASES)
def test_each_half_saves_memory_and_the_whole_block_more(kind, sets, path):
    items, given = SETS[sets]
    mv, s = _data(items)
    with PATHS[path]():
        saved = {x: _saved(_net(kind, x), mv, s, **given) for x in (False, "mlp", "attention")}
        block = _saved(_net(kind, "block"), mv, s, **given)
    assert block < min(saved["mlp"], saved["attention"])
    assert max(saved["mlp"], saved["attention"]) < 0.8 * saved[False]


@pytest.mark.parametrize("checkpoint", [False, *HALVES])
@pytest.mark.parametrize("kind", [GATr, AxialGATr])
def test_the_plain_path_runs_only_that_half_again(kind, checkpoint):
    net, calls = _net(kind, checkpoint), []
    for block in net.blocks:
        block.attention.register_forward_pre_hook(lambda *_: calls.append("attention"))
        block.mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
    with plain_kernels():
        out, _ = net(*_data((2, 6)))
        assert calls == ["attention", "mlp"] * 3
        calls.clear()
        out.sum().backward()
    assert calls == [checkpoint] * 3 if checkpoint else not calls


@pytest.mark.parametrize("checkpoint", HALVES)
@pytest.mark.parametrize("kind", [GATr, AxialGATr])
def test_the_fused_path_runs_only_that_half_again(kind, checkpoint):
    net = _net(kind, checkpoint)
    mv, s = _data((2, 6))
    assert net.obstacle(mv) is None
    names = ["queries", "_attend", "update"]
    with contextlib.ExitStack() as stack:
        spies = [
            stack.enter_context(mock.patch.object(fused, name, wraps=getattr(fused, name)))
            for name in names
        ]
        out, _ = net(mv, s)
        assert [spy.call_count for spy in spies] == [3, 3, 3]
        out.sum().backward()
        again = [spy.call_count - 3 for spy in spies]
        assert again == ([3, 3, 0] if checkpoint == "attention" else [0, 0, 3])


@pytest.mark.parametrize("half", HALVES)
def test_gradients_of_gradients_are_the_same_as_without(half):
    results = []
    for checkpoint in (half, False):
        net = _net(GATr, checkpoint, num_blocks=1)
        mv, s = _data((2, 4))
        (force,) = torch.autograd.grad(net(mv, s)[0].sin().sum(), mv, create_graph=True)
        results.append(torch.autograd.grad(force.square().sum(), net.blocks[0].mlp.linear.weight))
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("checkpoint", [True, False, "block", *HALVES])
def test_the_option_survives_json_and_files(checkpoint, tmp_path):
    config = GATrConfig(**SMALL, checkpoint=checkpoint)
    assert GATrConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.checkpoint is True if checkpoint == "block" else config.checkpoint == checkpoint
    GATr(config).save_pretrained(tmp_path)
    assert GATr.from_pretrained(tmp_path).config == config
    assert GATr.from_original(random_state(), checkpoint=checkpoint).config.checkpoint == (
        config.checkpoint
    )


@pytest.mark.parametrize("wrong", ["blocks", "", 1, None, ["mlp"], ("attention", "mlp")])
def test_other_values_are_refused(wrong):
    with pytest.raises(ValueError, match="True, False, 'block', 'attention' or 'mlp', got"):
        GATr(**SMALL, checkpoint=wrong)
