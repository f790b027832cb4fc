"""Types of objects: does a mirror image's embedding have the sign of the mirrored embedding?

Mirrors turn an embedded point into *minus* the embedded mirror image, and an embedded plane into
the embedded mirror image without that sign. `PARITY` lists the sign of every object as a type, even
or odd. A network that is given these types is E(3)-equivariant from coordinates to coordinates;
without them it is SE(3)-equivariant.
"""

from __future__ import annotations

PARITY = {
    "scalar": "e",
    "pseudoscalar": "e",
    "handed_scalar": "o",
    "handed_pseudoscalar": "o",
    "point": "o",
    "point_reflection": "o",
    "direction": "o",
    "axial_direction": "e",
    "plane": "e",
    "reflection": "e",
    "axial_plane": "o",
    "line": "o",
    "ray": "o",
    "axis": "e",
    "translation": "e",
    "rotation": "e",
    "motor": "e",
    "pose": "oeeo",
    "pose_quaternion": "oeeo",
}
"""The types of objects, one letter per multivector: a motion g with versor u moves the embedding of
an even ("e") object by `versors.apply(u, mv)`, that of an odd ("o") object by det(g) times this.

Most names are those of the `embed_` functions, with polar vectors as coordinates: vectors that a
mirror reflects, such as velocities, forces, normals of surfaces. Axial vectors, such as torques,
spins and cross products of two polar vectors, have the opposite type: "axial_direction",
"axial_plane" (its normal is axial) and "axis" (a line with axial direction, such as that of a
rotation). "handed_scalar" is a number that changes sign under mirrors, embedded with
`embed_scalar`; "handed_pseudoscalar" is one that does not, embedded with `embed_pseudoscalar`;
"motor" is any even versor.
"""


def parity(*objects: str) -> str:
    """The types of channels that hold these objects, as networks take them; see `PARITY`.

    >>> parity("point", "plane", "translation")
    'oee'
    """
    for name in objects:
        if name not in PARITY:
            raise ValueError(f"unknown object {name!r}; expected one of {', '.join(PARITY)}")
    return "".join(PARITY[name] for name in objects)


def check_parity(letters: str, channels: int, name: str) -> str:
    """The types of channels, after checking that there is one letter, "e" or "o", per channel."""
    if not isinstance(letters, str) or set(letters) - {"e", "o"}:
        raise ValueError(
            f'{name} must be a string of the letters "e" (even) and "o" (odd), got {letters!r}; '
            "flashgatr.parity gives the letters of objects"
        )
    if len(letters) != channels:
        raise ValueError(
            f"{name} must have one letter for each of {channels} multivector channels, got "
            f"{letters!r} with {len(letters)}"
        )
    return letters
