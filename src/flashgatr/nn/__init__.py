"""The equivariant layers. Each maps a pair (mv, s) to a pair: mv (..., N, C, 16), s (..., N, S)."""

from .attention import CrossAttention as CrossAttention
from .attention import GeometricAttention as GeometricAttention
from .attention import Heads as Heads
from .attention import SelfAttention as SelfAttention
from .block import GATrBlock as GATrBlock
from .block import Surroundings as Surroundings
from .linear import EquiLinear as EquiLinear
from .mlp import GeometricBilinear as GeometricBilinear
from .mlp import GeoMLP as GeoMLP
from .norm import EquiLayerNorm as EquiLayerNorm
from .norm import GradeDropout as GradeDropout
from .norm import ScalarGate as ScalarGate
