"""Compiled blocks: what is compiled, and copies that leave the model as it is."""

import copy
import pickle

import pytest
import torch
from torch import nn

from flashgatr import GATr
from flashgatr.experiments.baselines import GCAGNN, SEGNN, SE3Transformer
from flashgatr.experiments.baselines.tensor_field import Fiber
from flashgatr.experiments.baselines.transformer import Transformer
from flashgatr.train.compiled import blocks, compiled_copy

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the compiler

NETS = {
    "gatr": lambda: GATr(num_blocks=1, in_mv_channels=2, out_mv_channels=1),
    "transformer": lambda: Transformer(5, 3, 8, num_blocks=2, num_heads=2),
    "segnn": lambda: SEGNN(8, 2),
    "se3_transformer": lambda: SE3Transformer(Fiber(1, 1, 1), Fiber(2, 1, 1), 4, 1, 1),
    "gca_gnn": lambda: GCAGNN(1, 1, 3, 4, 5, steps=2),
}


@pytest.fixture
def graphs(monkeypatch):
    """Compile with a backend that runs graphs as they are; the numbers of their nodes."""
    found, plain = [], nn.Module.compile

    def backend(graph, inputs):
        found.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda m, **how: plain(m, backend=backend, **how))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def attributes(net):
    """Which objects the attributes of every module are."""
    return [{name: id(x) for name, x in module.__dict__.items()} for module in net.modules()]


@pytest.mark.parametrize("name", NETS)
def test_every_network_has_blocks(name):
    net = NETS[name]()
    assert blocks(net)
    assert all(isinstance(block, nn.Module) for block in blocks(net))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", NETS)
def test_a_compiled_copy_shares_the_tensors_and_leaves_the_model_as_it_is(name):
    net = NETS[name]()
    net.register_forward_hook(print)
    keys, about = list(net.state_dict()), attributes(net)
    compiled = compiled_copy(net)
    for kind in ("parameters", "buffers"):
        ours, theirs = (dict(getattr(x, f"named_{kind}")()) for x in (net, compiled))
        assert ours.keys() == theirs.keys()
        assert all(ours[key] is theirs[key] for key in ours)
    assert keys == list(net.state_dict()) == list(compiled.state_dict())
    assert about == attributes(net)
    assert list(net._forward_hooks.values()) == list(compiled._forward_hooks.values()) == [print]
    for own in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert list(own.state_dict()) == keys
        assert not {id(p) for p in own.parameters()} & {id(p) for p in net.parameters()}


def test_a_compiled_copy_follows_the_weights(graphs):
    net, x = NETS["transformer"](), torch.randn(2, 4, 5)
    compiled = compiled_copy(net)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), net(x))
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.5)
    assert graphs


def test_a_model_whose_blocks_are_compiled_has_a_copy_too(graphs):
    net, x = NETS["transformer"](), torch.randn(2, 4, 5)
    for block in blocks(net):
        block.compile()
    expected, before = net(x), len(graphs)
    torch.testing.assert_close(compiled_copy(net)(x), expected)
    assert before
    net(x)
    assert torch.equal(net(x), expected)


def test_copies_of_a_model_share_what_was_compiled(graphs):
    """A planner makes a copy; planning again must not compile again."""
    net, x = NETS["transformer"](), torch.randn(2, 4, 5)
    compiled_copy(net)(x)
    before = len(graphs)
    compiled_copy(net)(x)
    assert len(graphs) == before > 0
