"""The memory of a field does not depend on the number of points."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, resource, sys
import torch
from flashgatr import AnchoredGATr, embed_point

torch.set_num_threads(1)
net = AnchoredGATr(in_mv_channels=1, in_s_channels=0, out_mv_channels=1, out_s_channels=1,
                   hidden_mv_channels=4, hidden_s_channels=8, num_blocks=2, num_heads=2).eval()
peaks = []
with torch.no_grad():
    state = net.encode(embed_point(torch.rand(32, 1, 3)))
    field = net.field(state, lambda x: embed_point(x).unsqueeze(-2), tile=4096,
                      extract=lambda mv, s: s[:, 0])
    for points in map(int, sys.argv[1:]):
        total = field(torch.rand(points, 3)).sum()
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(peaks))
"""
BYTES = 4 * (3 + 1)
"""Per point: its position and its value."""
NOISE = 24  # MiB, of the allocator


def peaks(*points):
    """Peak memory of one process in MiB, after each of these evaluations."""
    command = [sys.executable, "-c", PROGRAM, *map(str, points)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_memory_grows_by_the_points_and_their_values_alone():
    few, many = 20_000, 160_000
    first, second = peaks(few, many)
    assert second - first <= (many - few) * BYTES / 2**20 + NOISE


@pytest.mark.slow
def test_a_million_points_need_no_more_than_they_are():
    first, second = peaks(20_000, 1_000_000)
    assert second - first <= 1e6 * BYTES / 2**20 + NOISE
