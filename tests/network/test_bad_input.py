"""Invalid inputs raise an error with one clear sentence; unusual ones have a defined result."""

import json

import numpy as np
import pytest
import torch

from flashgatr import AxialGATr, GATr, GATrConfig

OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=4,
    num_blocks=1, num_heads=2,
)  # fmt: skip
MV, S = torch.randn(2, 5, 2, 16), torch.randn(2, 5, 1)
NOT_A_NUMBER = MV.clone()
NOT_A_NUMBER[0, 0, 0, 0] = torch.nan

CALLS = {
    "wrong last dimension": ((MV[..., :15], S), {}, ValueError, "N, 2, 16"),
    "channels and blades swapped": ((MV.mT, S), {}, ValueError, "N, 2, 16"),
    "wrong channels": ((MV[..., :1, :], S), {}, ValueError, "N, 2, 16"),
    "no item axis": ((MV[0, 0], S[0, 0]), {}, ValueError, "N, 2, 16"),
    "missing scalars": (
        (MV,),
        {},
        ValueError,
        r"in_s_channels=1 but the call has no scalars; pass s of shape \(2, 5, 1\)",
    ),
    "coordinates": ((MV[..., :3], S), {}, ValueError, r"got \(2, 5, 2, 3\); embed coordinates"),
    "no channel axis": (
        (MV[..., 0, :], S),
        {},
        ValueError,
        r"got \(2, 5, 16\); channels are the axis before the last: mv\.unsqueeze\(-2\)",
    ),
    "an array": ((MV.numpy(), S), {}, TypeError, r"got ndarray; convert it with torch\.tensor\("),
    "a frame that is a tensor": (
        (MV, S),
        dict(frame=torch.zeros(3)),
        TypeError,
        r"frame must be a Frame, such as net\.frame\(mv\) returns, got Tensor",
    ),
    "wrong scalar channels": ((MV, S.expand(2, 5, 3)), {}, ValueError, r"\(2, 5, 1\)"),
    "scalars of other items": ((MV, S[:, :3]), {}, ValueError, r"\(2, 3, 1\)"),
    "integers": ((MV.int(), S), {}, TypeError, "int32"),
    "double input": ((MV.double(), S), {}, TypeError, r"mv\.to\(torch\.float32\)"),
    "double scalars": ((MV, S.double()), {}, TypeError, "s has dtype"),
    "another device": ((MV.to("meta"), S.to("meta")), {}, ValueError, "is on meta"),
    "mask of wrong shape": ((MV, S), dict(mask=torch.ones(2, 4).bool()), ValueError, r"\(2, 5\)"),
    "mask of wrong rank": ((MV, S), dict(mask=torch.ones(5).bool()), ValueError, r"\(2, 5\)"),
    "mask of numbers": ((MV, S), dict(mask=torch.ones(2, 5)), TypeError, "boolean"),
    "mask and offsets": (
        (MV[0], S[0]),
        dict(mask=torch.ones(5).bool(), offsets=torch.tensor([0, 5])),
        ValueError,
        "both",
    ),
    "attention mask of wrong shape": (
        (MV, S),
        dict(attention_mask=torch.ones(4, 5).bool()),
        ValueError,
        "5 x 5",
    ),
    "attention mask of wrong rank": (
        (MV, S),
        dict(attention_mask=torch.ones(1, 1, 2, 5, 5)),
        ValueError,
        "heads",
    ),
    "attention mask of wrong heads": (
        (MV, S),
        dict(attention_mask=torch.ones(2, 3, 5, 5)),
        ValueError,
        "2 heads",
    ),
    "attention mask of integers": (
        (MV, S),
        dict(attention_mask=torch.ones(5, 5).int()),
        TypeError,
        "boolean",
    ),
    "attention mask of packed sets": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0, 5]), attention_mask=torch.ones(5, 5).bool()),
        ValueError,
        "padded",
    ),
    "offsets that do not end": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0, 4])),
        ValueError,
        "rise from 0",
    ),
    "offsets that fall": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0, 4, 2, 5])),
        ValueError,
        "rise from 0",
    ),
    "offsets of numbers": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0.0, 5.0])),
        ValueError,
        "integer",
    ),
    "offsets with a batch": ((MV, S), dict(offsets=torch.tensor([0, 5])), ValueError, "one axis"),
    "max_items without offsets": ((MV, S), dict(max_items=5), ValueError, "goes with offsets"),
    "unknown reference": ((MV, S), dict(join_reference="origin"), ValueError, "'canonical'"),
    "reference of wrong shape": ((MV, S), dict(join_reference=torch.ones(3)), ValueError, "16"),
    "center of wrong shape": ((MV, S), dict(center=torch.ones(2)), ValueError, r"\(..., 3\)"),
    "reference of other samples": (
        (MV, S),
        dict(join_reference=torch.ones(3, 16)),
        ValueError,
        r"broadcastable to \(2, 16\), got \(3, 16\)",
    ),
    "reference per item": (
        (MV, S),
        dict(join_reference=torch.ones(2, 5, 16)),
        ValueError,
        r"broadcastable to \(2, 16\), got \(2, 5, 16\)",
    ),
    "center of other samples": (
        (MV, S),
        dict(center=torch.ones(3, 3)),
        ValueError,
        r"broadcastable to \(2, 3\), got \(3, 3\)",
    ),
    "center as a list": ((MV, S), dict(center=[0.0] * 3), TypeError, "center must be a tensor"),
    "attention mask of another batch": (
        (MV, S),
        dict(attention_mask=torch.ones(3, 5, 5).bool()),
        ValueError,
        r"batch shape \(2,\).*got \(3, 5, 5\)",
    ),
    "attention mask as a list": (
        (MV, S),
        dict(attention_mask=[[0.0]]),
        TypeError,
        "attention_mask must be a tensor, got list",
    ),
    "max_items too small": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0, 4, 5]), max_items=3),
        ValueError,
        "max_items=3, but the largest set has 4 items",
    ),
    "mask on another device": (
        (MV, S),
        dict(mask=torch.ones(2, 5, device="meta").bool()),
        ValueError,
        "mask is on meta",
    ),
    "offsets on another device": (
        (MV[0], S[0]),
        dict(offsets=torch.tensor([0, 5], device="meta")),
        ValueError,
        "offsets is on meta",
    ),
    "multivectors as a list": ((MV.tolist(), S), {}, TypeError, "mv must be a tensor, got list"),
    "scalars as a list": ((MV, S.tolist()), {}, TypeError, "s must be a tensor, got list"),
    "mask as a list": ((MV, S), dict(mask=[[True]]), TypeError, "mask must be a tensor, got list"),
    "offsets as a list": (
        (MV[0], S[0]),
        dict(offsets=[0, 5]),
        TypeError,
        "offsets must be a tensor, got list",
    ),
    "unknown keyword": ((MV, S), dict(msk=None), TypeError, "msk"),
}


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_a_wrong_call_is_refused_in_one_sentence(case):
    args, options, error, text = CALLS[case]
    with pytest.raises(error, match=text) as caught:
        GATr(**OPTIONS)(*args, **options)
    assert "\n" not in str(caught.value)


def test_nan_is_refused_when_asked_to_check():
    net = GATr(**OPTIONS)
    out, _ = net(NOT_A_NUMBER, S)
    assert out[0].isnan().any()
    assert out[1].isfinite().all()  # samples never mix, not even NaN
    net.check_finite = True
    with pytest.raises(ValueError, match="mv has NaN or infinite"):
        net(NOT_A_NUMBER, S)
    with pytest.raises(ValueError, match="s has NaN or infinite"):
        net(MV, S / 0)
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[0, 0] = False
    net(NOT_A_NUMBER, S, mask=valid)  # padding may hold anything


CONFIGS = {
    "typo": (dict(num_block=3), TypeError, "did you mean 'num_blocks'"),
    "unknown": (dict(colour="red"), TypeError, "unknown GATr option 'colour'"),
    "zero heads": (dict(num_heads=0), ValueError, "num_heads must be an integer of at least 1"),
    "negative width": (dict(hidden_mv_channels=-1), ValueError, "hidden_mv_channels"),
    "fraction": (dict(num_blocks=1.5), ValueError, "num_blocks"),
    "boolean count": (dict(num_blocks=True), ValueError, "num_blocks"),
    "count as flag": (dict(multi_query=1), TypeError, "multi_query must be True or False"),
    "no input": (dict(in_mv_channels=0, in_s_channels=0), ValueError, "no input"),
    "no output": (dict(out_mv_channels=0), ValueError, "no output"),
    "dropout": (dict(dropout=1.0), ValueError, "dropout"),
    "activation": (dict(activation="tanh"), ValueError, "gelu, relu, sigmoid"),
    "weights": (dict(learned_weights="some"), ValueError, "none, distance, all"),
    "epsilon": (dict(norm_epsilon=0.0), ValueError, "norm_epsilon must be a positive number"),
    "scale": (dict(length_scale=float("nan")), ValueError, "length_scale"),
    "rotary without scalars": (dict(rotary=True, hidden_s_channels=0), ValueError, "rotary"),
    "rotary axis without scalars": (
        dict(rotary=(True, False), hidden_s_channels=0),
        ValueError,
        "rotary.*scalar",
    ),
    "rotary with a number": (dict(rotary=(True, 1)), TypeError, "rotary"),
    "rotary of three": (dict(rotary=(True, True, True)), TypeError, "rotary"),
    "rotary pair in GATr": (dict(rotary=(True, False)), ValueError, "AxialGATr"),
    "channel out of range": (dict(reinsert_mv_channels=(2,)), ValueError, "0 to 1"),
    "channel twice": (dict(reinsert_mv_channels=(0, 0)), ValueError, "distinct"),
    "one channel, not a list": (dict(reinsert_mv_channels=0), TypeError, r"\(0,\)"),
    "channel of another kind": (dict(reinsert_mv_channels=("0",)), ValueError, "distinct indices"),
    "dropout as text": (dict(dropout="a"), TypeError, "dropout must be a number, got 'a'"),
    "no scale": (dict(length_scale=None), TypeError, "length_scale must be a number, got None"),
    "flag as epsilon": (dict(distance_epsilon=True), TypeError, "distance_epsilon"),
    "activation of another kind": (dict(activation=[]), ValueError, "gelu, relu, sigmoid"),
}


@pytest.mark.parametrize("case", CONFIGS, ids=str)
def test_a_wrong_configuration_is_refused_in_one_sentence(case):
    options, error, text = CONFIGS[case]
    with pytest.raises(error, match=text) as caught:
        GATr(**{**OPTIONS, **options})
    assert "\n" not in str(caught.value)


def test_integers_and_numbers_of_numpy_are_accepted():
    config = GATrConfig(
        in_mv_channels=np.int64(2),
        out_mv_channels=np.int32(1),
        reinsert_mv_channels=[np.int64(1)],
        length_scale=np.float32(2),
    )
    assert json.loads(json.dumps(config.to_dict()))["reinsert_mv_channels"] == [1]
    assert config == GATrConfig(
        in_mv_channels=2, out_mv_channels=1, reinsert_mv_channels=(1,), length_scale=2.0
    )


def test_required_options_and_mixed_forms():
    with pytest.raises(TypeError, match="needs in_mv_channels"):
        GATr(out_mv_channels=1)
    with pytest.raises(TypeError, match="got both; put num_blocks into the GATrConfig"):
        GATr(GATrConfig(**OPTIONS), num_blocks=2)
    with pytest.raises(TypeError, match=r"one GATrConfig .* got dict; .* as \*\*options"):
        GATr(OPTIONS)
    with pytest.raises(ValueError, match="unknown preset 'n-body'"):
        GATr.from_preset("n-body")
    with pytest.raises(ValueError, match="AxialGATr"):
        GATr.from_preset("kuka")
    with pytest.raises(ValueError, match="N1, N2, 2, 16"):
        AxialGATr(**OPTIONS)(MV[0, 0], S[0, 0])


@pytest.mark.parametrize(
    "options",
    [
        dict(in_s_channels=0),
        dict(in_s_channels=None),
        dict(in_mv_channels=0),
        dict(hidden_s_channels=0, in_s_channels=0),
        dict(out_mv_channels=0, out_s_channels=2),
        dict(out_mv_channels=0, out_s_channels=2, hidden_s_channels=0),
    ],
    ids=str,
)
def test_zero_channels_are_legal_everywhere(options):
    net = GATr(**{**OPTIONS, **options})
    c = net.config
    mv = torch.randn(2, 5, c.in_mv_channels, 16)
    s = torch.randn(2, 5, c.in_s_channels)
    reference = "data" if c.in_mv_channels else "canonical"
    out, t = net(mv, s, join_reference=reference)
    assert out.shape == (2, 5, c.out_mv_channels, 16)
    assert t.shape == (2, 5, c.out_s_channels)
    (out.sum() + t.sum()).backward()
    if c.in_s_channels == 0:
        again, _ = net(mv, join_reference=reference)
        assert torch.equal(again, out)
