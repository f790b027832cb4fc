"""Symmetry checks for any network, and hypothesis strategies for your own tests."""

from .checks import TOLERANCE as TOLERANCE
from .checks import assert_batch_independent as assert_batch_independent
from .checks import assert_equivariant as assert_equivariant
from .checks import assert_padding_invariant as assert_padding_invariant
from .checks import assert_permutation_equivariant as assert_permutation_equivariant
from .checks import batch_error as batch_error
from .checks import equivariance_error as equivariance_error
from .checks import padding_error as padding_error
from .checks import permutation_error as permutation_error
from .checks import point_equivariance_error as point_equivariance_error
from .strategies import multivectors as multivectors
from .strategies import point_clouds as point_clouds
from .strategies import versors as versors

__all__ = [
    "assert_batch_independent",
    "assert_equivariant",
    "assert_padding_invariant",
    "assert_permutation_equivariant",
    "batch_error",
    "equivariance_error",
    "multivectors",
    "padding_error",
    "permutation_error",
    "point_clouds",
    "point_equivariance_error",
    "versors",
]
