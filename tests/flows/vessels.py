"""Files of points of made-up vessels: straight tubes with the flow that they have by theory."""

import numpy as np

from flashgatr.experiments.arteries.data.field_points import FieldPoints, write_field

LUMEN, WALL, LENGTH = 260, 200, 3.0


def tube(number, lumen=LUMEN, wall=WALL):
    """Poiseuille's flow in a tube of its own radius and direction."""
    draw = np.random.default_rng(number)
    axis, across, third = np.linalg.qr(draw.normal(size=(3, 3)))[0].T
    radius = draw.uniform(0.15, 0.3)
    angle, along = 2 * np.pi * draw.random(lumen + wall), LENGTH * draw.random(lumen + wall)
    r = radius * np.sqrt(np.concatenate([draw.random(lumen), np.ones(wall)]))
    outward = np.cos(angle)[:, None] * across + np.sin(angle)[:, None] * third
    speed = 30 * (1 - (r[:lumen] / radius) ** 2)[:, None] * axis
    stress = np.tile(4 * 30 * 0.04 / radius * axis, (wall, 1))
    float32 = {
        "position": along[:, None] * axis + r[:, None] * outward,
        "distance": along,
        "pressure": -along,
        "target": np.concatenate([speed, stress]),
        "normal": outward[lumen:],
    }
    return FieldPoints(
        name=f"sample_{number:04d}",
        **{name: x.astype(np.float32) for name, x in float32.items()},
        inlet_diameter=2 * radius,
        span=(0.0, LENGTH),
        volume=np.pi * radius**2 * LENGTH,
        area=2 * np.pi * radius * LENGTH,
        settings={},
    )


def write_tubes(folder, count=10, **sizes):
    for number in range(count):
        write_field(folder / f"sample_{number:04d}.safetensors", tube(number, **sizes))
    return folder
