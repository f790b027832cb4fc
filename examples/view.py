"""Draw points, planes, lines and directions, and write docs/images/view.png.

python examples/view.py [file]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch

from flashgatr import embed_direction, embed_plane, embed_point, embed_ray
from flashgatr.view import draw

corners = torch.tensor(
    [[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 1.6]]
)
up = torch.tensor([0.0, 0.0, 1.0])
apex = corners[-1]

scene = torch.cat(
    [
        embed_point(corners),
        embed_plane(up, torch.zeros(1, 3)),  # the floor
        embed_plane(torch.tensor([0.0, -1.0, 0.0]), torch.tensor([[0.0, 1.4, 0.0]])),  # a wall
        embed_ray(corners[:2], apex - corners[:2]),  # two edges, as lines
        embed_direction(torch.tensor([[1.0, -0.5, 0.3], [-0.6, -0.2, 0.0]])),  # two velocities
    ]
)

ax = draw(scene)
ax.view_init(elev=18, azim=-62)
ax.legend(loc="upper left", frameon=False)
file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/view.png")
file.parent.mkdir(parents=True, exist_ok=True)
ax.figure.savefig(file, dpi=120, bbox_inches="tight")
print(f"wrote {file}")
