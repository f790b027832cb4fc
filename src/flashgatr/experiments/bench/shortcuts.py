"""What each shortcut past torch and Triton (see `flashgatr.shortcuts`) is worth.

Small sets: eager forward and backward of the n-body network, where Python's overhead dominates.
Large sets (GPU only): forward and backward of the artery network on padded and on packed sets,
where attention dominates. All variants of a workload take turns in one process; `worth` is the time
without the shortcut divided by the time with all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch

from ... import shortcuts
from ...shortcuts import Shortcut
from . import timing, workload
from .nbody_step import BATCH, BODIES, Case, RandomSystems, training_step
from .timing import CaseReport, Found, Step

SMALL = (shortcuts.DIRECT_CALLS, shortcuts.BLOCK_NODE, shortcuts.FLAT_TENSORS)
MESHES, NODES = 4, 16384
ROUNDS = 30
PATIENCE = 30_000.0
"""Milliseconds for all rounds of a workload."""


def workloads(device: torch.device) -> Iterator[tuple[dict[str, Any], Step, tuple[Shortcut, ...]]]:
    """Settings and step of a workload, and the shortcuts that it uses."""
    settings: dict[str, Any] = {"work": "small sets", "sets": BATCH, "items": BODIES}
    step = training_step(Case("gatr", "float32"), device)
    yield {**settings, "work": "training step"}, step, (shortcuts.MANY_TENSORS,)
    small = RandomSystems("gatr", device).gradients
    if device.type != "cuda":
        yield settings, small, SMALL
        return
    yield settings, small, (*SMALL, shortcuts.TRITON_LAUNCH)
    settings = {"sets": MESHES, "items": NODES}
    work = workload.gatr("arteries", device)
    padded = work.sample(MESHES, NODES)
    yield (
        {"work": "large sets", **settings},
        lambda: work.step(padded),
        (shortcuts.CUDNN_ATTENTION,),
    )
    sizes = torch.linspace(NODES // 2, NODES, MESHES).long()
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).to(device)
    packed = work.sample(int(sizes.sum()), offsets=offsets, max_items=int(sizes.max()))
    used = (shortcuts.PACKED_ATTENTION,)
    yield {"work": "packed sets", **settings}, lambda: work.step(packed), used


def without(shortcut: Shortcut, step: Step) -> Step:
    def call() -> None:
        with shortcut.off():
            step()

    return call


def run() -> None:
    device = timing.pick_device()
    report = CaseReport("shortcuts", keep=True)
    for settings, step, used in workloads(device):
        steps = [step, *(without(shortcut, step) for shortcut in used)]
        found = timing.in_turn(steps, device, repeats=ROUNDS, patience=PATIENCE)
        everything, *others = (statistics.median(times) for times in found)
        report.add("gatr", {**settings, "without": "nothing"}, Found({"time": everything}))
        for shortcut, value in zip(used, others, strict=True):
            found_without = Found({"time": value, "worth": value / everything})
            report.add("gatr", {**settings, "without": shortcut.name}, found_without)
    report.show()
