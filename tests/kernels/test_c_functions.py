"""The C kernels' exponential, error function and tanh, swept against float64.

Only this part of rows.c is compiled, with the flags of the whole.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch

from flashgatr.kernels.cpu import library as c_library

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
FUNCTIONS = ("exponential", "error_function", "hyperbolic_tangent")


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """The three functions on arrays of float32."""
    folder = tmp_path_factory.mktemp("c")
    text = c_library._text()
    own = text[text.index("/* ---- functions ---- */") : text.index("#define EXP exponential")]
    head = "#include <math.h>\n#include <string.h>\n#include <stddef.h>\n#define IS_FLOAT 1\n"
    head += "#define INLINE static inline __attribute__((always_inline))\n"
    loops = "".join(
        f"void all_{name}(ptrdiff_t n, const float *restrict x, float *restrict y) "
        f"{{ for (ptrdiff_t i = 0; i < n; i++) y[i] = {name}(x[i]); }}\n"
        for name in FUNCTIONS
    )
    (folder / "f.c").write_text(f"{head}{own}#endif\n{loops}")
    files = str(folder / "f.c"), "-o", str(folder / "f.so"), "-lm"
    subprocess.run([COMPILER, *c_library._FLAGS, "-shared", "-fPIC", *files], check=True)
    loaded = ctypes.CDLL(str(folder / "f.so"))

    def on_arrays(name):
        def f(x):
            x = np.ascontiguousarray(x, np.float32)
            y = np.empty_like(x)
            pointers = (a.ctypes.data_as(ctypes.c_void_p) for a in (x, y))
            getattr(loaded, f"all_{name}")(ctypes.c_ssize_t(len(x)), *pointers)
            return y.astype(np.float64)

        return f

    return {name: on_arrays(name) for name in FUNCTIONS}


def _sweep(low, high, count=2_000_000):
    """Numbers of float32 from low to high, as evenly as rounding allows."""
    return np.linspace(low, high, count).astype(np.float32)


def test_the_exponential_is_within_one_unit_in_the_last_place(functions):
    x = _sweep(-87.3, 88.0)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(functions["exponential"](x) / exact - 1)
    assert error.max() < EXP_BOUND
    near = _sweep(-1, 1)
    error = np.abs(functions["exponential"](near) / np.exp(near.astype(np.float64)) - 1)
    assert error.max() < EXP_BOUND


EXP_BOUND = 1.2e-7
"""Relative: the spacing of float32. Measured on a Xeon: 0.83e-7."""


def test_the_exponential_ends_in_zero_and_infinity_and_passes_nan_on(functions):
    x = np.array([-np.inf, -1000, -87.4, 88.1, 1000, np.inf, 0.0])
    assert functions["exponential"](x).tolist() == [0, 0, 0, np.inf, np.inf, np.inf, 1]
    assert np.isnan(functions["exponential"](np.array([np.nan]))).all()


def test_the_error_function_and_tanh_are_within_a_few_units_in_the_last_place(functions):
    x = _sweep(-12, 12)
    exact = torch.from_numpy(x).double()
    erf = functions["error_function"](x) - torch.erf(exact).numpy()
    tanh = functions["hyperbolic_tangent"](x) - torch.tanh(exact).numpy()
    assert np.abs(erf).max() < 1.2e-7
    assert np.abs(tanh).max() < 1.2e-7
    small = _sweep(-1e-3, 1e-3, 100_000)
    small = small[np.abs(small) > 1e-30]
    exact = torch.from_numpy(small).double()
    for name, f in (("error_function", torch.erf), ("hyperbolic_tangent", torch.tanh)):
        assert np.abs(functions[name](small) / f(exact).numpy() - 1).max() < 3e-7


def test_gelu_has_the_error_that_the_source_claims(functions):
    """At most 5e-7 up to |x| = 12, computed from the error function in float32."""
    x = _sweep(-12, 12)
    erf = functions["error_function"](x * np.float32(0.5**0.5)).astype(np.float32)
    found = np.float32(0.5) * x * (np.float32(1) + erf)
    assert found.dtype == np.float32
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    ours = np.abs(found - exact).max()
    assert ours <= 5e-7
