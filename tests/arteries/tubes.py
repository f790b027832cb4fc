"""A closed, bent tube with flat caps, triangulated as evenly as the published vessels: enough
geometry for the tests.
"""

import numpy as np
from safetensors.numpy import save_file

from flashgatr.experiments.arteries.data.raw import RawMesh


def tube(
    around=36, length=7.0, radius=0.16, bend=1.0, index=0, seed=0, jitter=0.15, labels=True
) -> RawMesh:
    """Rings of `around` nodes (a multiple of 6), turned by half a node from one to the next;
    about 5,000 nodes at 24, 10,000 at 36.
    """
    chance = np.random.default_rng([seed, index])
    step = 2 * np.pi * radius / around
    rings = max(2, round(length / (step * np.sqrt(3) / 2)))
    along = np.linspace(0, length, rings + 1)
    centre, _ = _centreline(along, bend)
    wobble = jitter * step * chance.uniform(-0.5, 0.5, (2, rings + 1, around))
    wobble[:, [0, -1]] = 0  # rims stay round
    angle = 2 * np.pi * (np.arange(around) + 0.5 * (np.arange(rings + 1) % 2)[:, None]) / around
    angle = angle + wobble[0] / radius
    moved, sideways = _centreline(along[:, None] + wobble[1], bend)
    up = np.array([0.0, 0.0, 1.0])
    wall = moved + radius * (
        np.cos(angle)[..., None] * sideways + np.sin(angle)[..., None] * up
    )  # (rings + 1, around, 3)
    nodes, faces = [wall.reshape(-1, 3)], [_wall_faces(rings, around)]
    inlet = [np.arange(around)]
    for ring, sign in ((0, -1), (rings, 1)):
        first = sum(map(len, nodes))
        extra, cap = _cap(wall[ring], centre[ring], first, ring * around)
        nodes.append(extra)
        faces.append(cap if sign > 0 else cap[:, ::-1])
        if ring == 0:
            inlet.append(first + np.arange(len(extra)))
    position = np.concatenate(nodes).astype(np.float32)
    stress = np.concatenate([np.zeros((len(position), 1)) + 15, 0 * position[:, :2]], 1)
    stress = stress + chance.normal(size=stress.shape)
    return RawMesh(
        name=f"sample_{index:04d}",
        index=index,
        position=position,
        face=np.concatenate(faces),
        inlet=np.concatenate(inlet),
        wss=stress.astype(np.float32) if labels else None,
        pressure=(133322 - position[:, 0]).astype(np.float32) if labels else None,
    )


def _centreline(along, bend):
    """Points of a planar curve of unit speed and the unit vectors across it, in the plane."""
    turn = bend * np.sin(along)  # angle against the x axis
    fine = np.linspace(0, max(np.max(along), 1e-9) * 1.01 + 0.2, 4000) - 0.1
    heading = bend * np.sin(fine)
    steps = np.diff(fine)
    point = [
        np.concatenate([[0], np.cumsum(steps * (f(heading)[1:] + f(heading)[:-1]) / 2)])
        for f in (np.cos, np.sin)
    ]
    x, y = (np.interp(along, fine, p) for p in point)
    zero = np.zeros_like(x)
    return np.stack([x, y, zero], -1), np.stack([-np.sin(turn), np.cos(turn), zero], -1)


def _wall_faces(rings, around):
    ring, k = np.meshgrid(np.arange(rings), np.arange(around), indexing="ij")
    a, b = ring * around + k, ring * around + (k + 1) % around
    c, d = a + around, b + around
    even = (ring % 2 == 0)[..., None]
    first = np.where(even, np.stack([a, b, c], -1), np.stack([a, b, d], -1))
    second = np.where(even, np.stack([b, d, c], -1), np.stack([a, d, c], -1))
    return np.concatenate([first.reshape(-1, 3), second.reshape(-1, 3)])


def _cap(rim, centre, first, rim_first):
    """Nodes inside a rim of 6L nodes, in rings of 6(L-1) ... 6 and the centre, and faces that
    look along the rim's order.
    """
    layers = len(rim) // 6
    nodes, faces = [], []
    outer, start = rim_first + np.arange(len(rim)), first
    across, up = rim[0] - centre, rim[len(rim) // 4] - centre
    up = up - across * (up @ across) / (across @ across)
    up *= np.linalg.norm(across) / np.linalg.norm(up)
    for layer in range(layers - 1, 0, -1):
        angle = np.arange(6 * layer)[:, None] * np.pi / (3 * layer)
        nodes.append(centre + layer / layers * (np.cos(angle) * across + np.sin(angle) * up))
        inner = start + np.arange(6 * layer)
        faces.append(_band(outer, inner))
        outer, start = inner, start + 6 * layer
    faces.append(np.stack([outer, np.roll(outer, -1), np.full(6, start)], -1))
    return np.concatenate([*nodes, centre[None]]), np.concatenate(faces)


def _band(outer, inner):
    """Triangles between two closed rings that begin at the same angle."""
    i = j = 0
    faces = []
    while i < len(outer) or j < len(inner):
        a, b = outer[i % len(outer)], inner[j % len(inner)]
        if j == len(inner) or (i < len(outer) and (i + 1) / len(outer) <= (j + 1) / len(inner)):
            faces.append((a, outer[(i + 1) % len(outer)], b))
            i += 1
        else:
            faces.append((a, inner[(j + 1) % len(inner)], b))
            j += 1
    return np.array(faces)


def compact(path, meshes):
    """Write meshes as the compact copies are: 16 bits a number, no faces, no metadata."""
    offsets = np.cumsum([0, *(mesh.nodes for mesh in meshes)])
    tensors = {
        "index": np.array([mesh.index for mesh in meshes], np.int32),
        "offsets": offsets.astype(np.int64),
        "inlet_diameter": np.array([mesh.inlet_diameter for mesh in meshes], np.float32),
        "normal": np.concatenate([mesh.normal for mesh in meshes]).astype(np.float16),
        "wss": np.concatenate([mesh.wss for mesh in meshes]).astype(np.float16),
    }
    for name in ("position", "geodesic"):
        low = np.stack([getattr(mesh, name).min(axis=0) for mesh in meshes])
        high = np.stack([getattr(mesh, name).max(axis=0) for mesh in meshes])
        scale = np.maximum((high - low) / 65535, 1e-9).astype(np.float32)
        parts = [
            np.clip(np.round((getattr(mesh, name) - low[m]) / scale[m]), 0, 65535)
            for m, mesh in enumerate(meshes)
        ]
        tensors[name] = np.concatenate(parts).astype(np.uint16)
        tensors[f"{name}_origin"], tensors[f"{name}_scale"] = low.astype(np.float32), scale
    save_file(tensors, path)
