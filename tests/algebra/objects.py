"""Every object of the geometry with random coordinates, by name."""

from functools import partial

import torch
from torch.nn.functional import normalize

from flashgatr import geometry
from flashgatr.algebra import BLADES

# What each object is made of: sizes of its coordinates; 4 is a unit quaternion.
OBJECTS = {
    "scalar": (1,),
    "pseudoscalar": (1,),
    "point": (3,),
    "direction": (3,),
    "plane": (3, 3),
    "line": (3, 3),
    "ray": (3, 3),
    "translation": (3,),
    "rotation": (4,),
    "reflection": (3, 3),
    "point_reflection": (3,),
    "pose": (3, 3, 3),
    "pose_quaternion": (3, 4),
}
POSES = ("pose", "pose_quaternion")
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def embed(name, *coordinates):
    return getattr(geometry, f"embed_{name}")(*coordinates)


def extract(name, mv):
    result = getattr(geometry, f"extract_{name}")(mv)
    return result if isinstance(result, tuple) else (result,)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def coordinates(name, shape):
    values = [random(*shape, size, seed=seed) for seed, size in enumerate(OBJECTS[name])]
    return [normalize(x, dim=-1) if x.shape[-1] == 4 else x for x in values]


def multivectors(name, *shape, **options):
    return random(*shape, *(4,) * (name in POSES), BLADES, **options)


def dot(x, y):
    return (x * y).sum(-1)
