"""One of two processes: its share of the work, compared with the work of one process.

Prints the names of the laws that hold; the first that does not raises an error.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from flashgatr import Processes
from flashgatr.kernels.paths import plain_kernels
from flashgatr.train import distributed

from .networks import VARIANTS, largest_gap, make_data, make_net

ITEMS, FIRST = 11, 6  # items of a sample; how many of them the first process has
INDEX = torch.tensor([[0, 4, 5, 7, 10], [1, 2, 5, 8, 9]])  # of two samples


def loss(out):
    return sum(x.square().sum() for x in out)


def own_part(rank):
    """The rows of a process in every sample, and its anchors' places in INDEX (three and two)."""
    items = slice(FIRST) if rank == 0 else slice(FIRST, ITEMS)
    anchors = slice(3) if rank == 0 else slice(3, 5)
    return items, anchors


def gradients(net, inputs):
    found = [p.grad.clone() for p in [*net.parameters(), *inputs] if p.grad is not None]
    for p in net.parameters():
        p.grad = None
    return found


def packed(x):
    return x.flatten(0, 1)


def compare(processes, name, is_packed, weights):
    """Outputs and gradients of the share, wrapped by DDP, and those of one process."""
    rank, size = processes.rank, processes.size
    torch.manual_seed(3)
    net = make_net(**VARIANTS[name])
    mv, s = (x.requires_grad_() for x in make_data(2, ITEMS))
    expected = net(mv, s, anchors=INDEX, weights=weights)
    loss(expected).backward()
    whole = gradients(net, [])
    items, own = own_part(rank)
    share = [x.detach()[:, items].clone().requires_grad_() for x in (mv, s)]
    index, kept = INDEX[:, own] - items.indices(ITEMS)[0], weights
    kept = None if weights is None else weights[:, own]
    given, options = share, {}
    if is_packed:
        count = share[0].shape[1]
        options = dict(offsets=torch.arange(3) * count)
        index = (index + torch.arange(2)[:, None] * count).flatten()
        given, kept = [packed(x) for x in share], None if kept is None else kept.flatten()
    wrapped = DistributedDataParallel(net)
    out = wrapped(*given, anchors=index, weights=kept, processes=processes, **options)
    part = [x[:, items] for x in expected]
    assert largest_gap(out, [packed(x) for x in part] if is_packed else part) < 1e-10
    (size * loss(out)).backward()  # DDP averages over the processes
    assert largest_gap(gradients(net, []), whole) < 1e-10
    theirs = [x.grad[:, items] for x in (mv, s)]
    assert largest_gap([x.grad / size for x in share], theirs) < 1e-10


def decode(processes):
    """A field's bits are those of one process, however the points are divided."""
    torch.manual_seed(4)
    net = make_net(in_s_channels=0, in_mv_channels=1).float()
    points = torch.randn(37, 3)

    def embed(x):
        from flashgatr import embed_point

        return embed_point(x).unsqueeze(-2)

    with torch.no_grad():
        state = net.encode(embed(points[:5]))
        field = net.field(state, embed, tile=8)
        expected, part = field(points), processes.share(37)
        share = processes.evaluate(field, points)
        together = processes.evaluate(field, points, gather=True)
    for one, mine, everyone in zip(expected, share, together, strict=True):
        assert torch.equal(one[part], mine)
        assert torch.equal(one, everyone)
    batch = torch.randn(2, 9, 3)
    assert torch.equal(processes.evaluate(torch.sin, batch, gather=True), batch.sin())


def refuse(processes):
    """Shares that do not fit are refused by all processes; none waits forever."""
    net, (mv, s) = make_net(), make_data(2 + processes.rank, 4)
    index = torch.zeros(2 + processes.rank, 1, dtype=torch.int64)
    with contextlib.suppress(ValueError):
        net(mv, s, anchors=index, processes=processes)
        raise AssertionError("unequal numbers of samples were accepted")
    mv, s = make_data(2, 4 * processes.rank)
    with contextlib.suppress(ValueError):
        net(mv, s, anchors=index[:2, :0], processes=processes)
        raise AssertionError("a process without items was accepted")
    mv, s = make_data(4)
    offsets = torch.tensor([0, 2, 4] if processes.rank == 0 else [0, 4, 4])
    with contextlib.suppress(ValueError):  # only the first process has items of the second sample
        net(mv, s, anchors=torch.tensor([0]), offsets=offsets, processes=processes)
        raise AssertionError("a sample without anchors was accepted")


def main():
    dist.init_process_group("gloo")
    processes = Processes()
    weights = torch.rand(2, 5, generator=torch.Generator().manual_seed(0)).double() + 0.5
    for path in (contextlib.nullcontext, plain_kernels):
        with path():
            for name in ("default", "reinsert multi-head", "length scale"):
                compare(processes, name, False, weights)
            compare(processes, "default", True, None)
            compare(processes, "default", True, weights)
    decode(processes)
    refuse(processes)
    print(f"process {processes.rank}: all laws hold")
    distributed.leave()


if __name__ == "__main__":
    main()
