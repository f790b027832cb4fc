"""A process leaves its group when nothing holds the group any more, also no cycle of objects."""

import weakref

import torch.distributed as dist

from flashgatr.train import distributed


class Wrapped:
    """A model that holds the group, in a cycle with its trainer."""

    def __init__(self):
        self.trainer = self


def test_what_holds_the_group_is_freed_before_the_process_leaves_it(monkeypatch):
    alive = []
    held = weakref.ref(Wrapped())
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: alive.append(held()))
    distributed.leave()
    assert alive == [None]


def test_a_process_alone_has_nothing_to_leave(monkeypatch):
    monkeypatch.setattr(dist, "destroy_process_group", lambda: 1 / 0)
    distributed.leave()
