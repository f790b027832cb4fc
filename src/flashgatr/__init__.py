"""flashgatr: the Geometric Algebra Transformer, from geometric objects to GATr and back.

The names below are imported on first use, so that `flashgatr --help` needs no torch. They are
written twice: as imports for type checkers and editors, and as the table that Python reads.
"""

from .version import __version__ as __version__

TYPE_CHECKING = False  # type checkers take it as true; the module typing is not needed
if TYPE_CHECKING:
    from . import nn as nn
    from . import ops as ops
    from . import versors as versors
    from .anchored import AnchoredGATr as AnchoredGATr
    from .anchors import cell_weights as cell_weights
    from .anchors import choose_anchors as choose_anchors
    from .axial import AxialGATr as AxialGATr
    from .batch import Sets as Sets
    from .batch import from_pyg as from_pyg
    from .batch import pack as pack
    from .batch import packed_to_padded as packed_to_padded
    from .batch import pad as pad
    from .batch import padded_to_packed as padded_to_packed
    from .batch import readout as readout
    from .batch import unpack as unpack
    from .batch import unpad as unpad
    from .config import GATrConfig as GATrConfig
    from .encoded import Anchors as Anchors
    from .geometry import embed_direction as embed_direction
    from .geometry import embed_line as embed_line
    from .geometry import embed_plane as embed_plane
    from .geometry import embed_point as embed_point
    from .geometry import embed_point_reflection as embed_point_reflection
    from .geometry import embed_pose as embed_pose
    from .geometry import embed_pose_quaternion as embed_pose_quaternion
    from .geometry import embed_pseudoscalar as embed_pseudoscalar
    from .geometry import embed_ray as embed_ray
    from .geometry import embed_reflection as embed_reflection
    from .geometry import embed_rotation as embed_rotation
    from .geometry import embed_scalar as embed_scalar
    from .geometry import embed_translation as embed_translation
    from .geometry import extract_direction as extract_direction
    from .geometry import extract_line as extract_line
    from .geometry import extract_plane as extract_plane
    from .geometry import extract_point as extract_point
    from .geometry import extract_point_reflection as extract_point_reflection
    from .geometry import extract_pose as extract_pose
    from .geometry import extract_pose_quaternion as extract_pose_quaternion
    from .geometry import extract_pseudoscalar as extract_pseudoscalar
    from .geometry import extract_ray as extract_ray
    from .geometry import extract_reflection as extract_reflection
    from .geometry import extract_rotation as extract_rotation
    from .geometry import extract_scalar as extract_scalar
    from .geometry import extract_translation as extract_translation
    from .geometry import parity as parity
    from .io import LoadError as LoadError
    from .model import GATr as GATr
    from .model import GATrBlock as GATrBlock
    from .processes import Processes as Processes

_NAMES = {
    "anchored": ["AnchoredGATr"],
    "anchors": ["cell_weights", "choose_anchors"],
    "axial": ["AxialGATr"],
    "batch": [
        "Sets",
        "from_pyg",
        "pack",
        "packed_to_padded",
        "pad",
        "padded_to_packed",
        "readout",
        "unpack",
        "unpad",
    ],
    "config": ["GATrConfig"],
    "encoded": ["Anchors"],
    "geometry": [
        "embed_direction",
        "embed_line",
        "embed_plane",
        "embed_point",
        "embed_point_reflection",
        "embed_pose",
        "embed_pose_quaternion",
        "embed_pseudoscalar",
        "embed_ray",
        "embed_reflection",
        "embed_rotation",
        "embed_scalar",
        "embed_translation",
        "extract_direction",
        "extract_line",
        "extract_plane",
        "extract_point",
        "extract_point_reflection",
        "extract_pose",
        "extract_pose_quaternion",
        "extract_pseudoscalar",
        "extract_ray",
        "extract_reflection",
        "extract_rotation",
        "extract_scalar",
        "extract_translation",
        "parity",
    ],
    "io": ["LoadError"],
    "model": ["GATr", "GATrBlock"],
    "processes": ["Processes"],
}
_SOURCE = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = [
    *("algebra", "anchored", "anchors", "arguments", "axial", "batch", "cells", "config"),
    *("constants", "encoded", "fast", "frame", "functional", "geometry", "io", "kernels"),
    *("model", "nn", "object_types", "ops", "precision", "processes", "shortcuts", "versors"),
]  # attributes of the package without an import of their own

if not TYPE_CHECKING:  # type checkers see the imports alone and refuse other names
    __all__ = ["nn", "ops", "versors", *_SOURCE]  # no `io`: that is a standard module

    def __getattr__(name: str) -> object:
        """Import a name of the tables when it is used for the first time."""
        from importlib import import_module

        if name in _SOURCE:
            value = getattr(import_module(f"{__name__}.{_SOURCE[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        globals()[name] = value  # the next use finds it without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_SOURCE, *_MODULES} - {"TYPE_CHECKING"})
