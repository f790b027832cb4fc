"""Dropout drops scalars, too, wherever it stands; checkpointing runs every block twice."""

from unittest import mock

import pytest
import torch

from flashgatr import AxialGATr, GATr, functional
from flashgatr.fast import FastBlock
from flashgatr.nn import CrossAttention, GeoMLP, GradeDropout, SelfAttention

SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=3, num_heads=2,
)  # fmt: skip


def _x(items, channels=4, scalars=6):
    return torch.randn(items, channels, 16), torch.randn(items, scalars)


def _dropped(x):
    return (x == 0).double().mean().item()


@pytest.mark.parametrize("p", [0.25, 0.6])
def test_dropout_sets_this_share_of_scalars_and_grades_to_zero_and_scales_the_rest(p):
    mv, s = GradeDropout(p)(torch.ones(4000, 2, 16), torch.ones(4000, 3))
    kept = pytest.approx(1 / (1 - p))
    assert s.unique().tolist() == [0.0, kept]
    assert mv.unique().tolist() == [0.0, kept]
    assert _dropped(s) == pytest.approx(p, abs=0.02)
    for blade in (0, 1, 5, 11, 15):  # one of every grade, each drawn by itself
        assert _dropped(mv[..., blade]) == pytest.approx(p, abs=0.03)
        others = [b for b in (0, 1, 5, 11, 15) if b != blade]
        for other in others:
            assert not torch.equal(mv[..., blade], mv[..., other])
    assert not torch.equal(mv[:, 0, 0], mv[:, 1, 0])


LAYERS = {
    "self-attention": lambda p, x: SelfAttention(4, 6, 2, dropout=p)(*x),
    "cross-attention": lambda p, x: CrossAttention(4, 6, 2, dropout=p)(*x, *x),
    "mlp": lambda p, x: GeoMLP(4, 6, dropout=p)(*x, torch.tensor(0.7)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_drop_multivectors_and_scalars_of_their_output(layer):
    mv, s = LAYERS[layer](0.3, _x(500))
    assert _dropped(s) == pytest.approx(0.3, abs=0.04)
    assert _dropped(mv[..., 0]) == pytest.approx(0.3, abs=0.05)
    mv, s = LAYERS[layer](0.0, _x(500))
    assert _dropped(s) == _dropped(mv) == 0


def test_a_block_drops_after_attention_after_the_bilinear_layer_and_after_the_mlp():
    net = GATr(**SMALL, dropout=0.2)
    with mock.patch.object(functional, "dropout", wraps=functional.dropout) as dropout:
        net(*_x(5, 2, 1))
    widths = [(call.args[0].shape[-2], call.args[1].shape[-1]) for call in dropout.call_args_list]
    assert widths == [(4, 8), (8, 16), (4, 8)] * 3
    assert {call.args[2] for call in dropout.call_args_list} == {0.2}


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("kind", [GATr, AxialGATr])
def test_checkpointed_blocks_run_once_forward_and_once_more_backward(kind, path, checkpoint):
    net = kind(**SMALL, checkpoint=checkpoint)
    mv, s = _x(6, 2, 1)
    if kind is AxialGATr:
        mv, s = mv.unflatten(0, (2, 3)), s.unflatten(0, (2, 3))
    calls = []
    if path == "plain":
        for block in net.blocks:
            block.register_forward_pre_hook(lambda block, _: calls.append(block))
    original = FastBlock.run

    def run(self, *given):
        calls.append(self.block)
        return original(self, *given)

    with mock.patch.object(FastBlock, "run", run):
        out, _ = net(mv, s)
        assert calls == list(net.blocks)
        out.square().sum().backward()
        assert len(calls) == (6 if checkpoint else 3)
        assert {calls.count(block) for block in net.blocks} == {2 if checkpoint else 1}
        calls.clear()
        with torch.no_grad():
            net(mv, s)
        assert calls == list(net.blocks)
