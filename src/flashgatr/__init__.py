"""flashgatr: the Geometric Algebra Transformer, from geometric objects to GATr and back."""

__version__ = "0.1.0"

from . import nn as nn
from . import ops as ops
from . import versors as versors
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
from .io import LoadError as LoadError
from .model import GATr as GATr
from .model import GATrBlock as GATrBlock
