"""Lists and arrays where a tensor is expected are refused in a sentence."""

import inspect

import pytest

from flashgatr import geometry

FUNCTIONS = [x for x in vars(geometry) if x.startswith(("embed_", "extract_"))]
FUNCTIONS += ["quaternion_to_matrix", "matrix_to_quaternion"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_are_refused_in_a_sentence(name):
    function = getattr(geometry, name)
    needed = [
        x for x in inspect.signature(function).parameters.values() if x.default is inspect._empty
    ]
    with pytest.raises(TypeError, match=r"must be a tensor, got list; .*torch\.tensor\("):
        function(*([1.0, 2.0, 3.0] for _ in needed))
