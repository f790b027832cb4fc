"""A vessel's flow as a file, sample_0000.safetensors: the coefficients of velocity and pressure.

    velocity   (P, n, 3)          float64, cm/s at all nodes
    pressure   (layers + 1, m)    float64, dyn/cm² at the vertices, relative to the outlet

The header holds the settings of the sample, its vessel and its fluid. They determine the grid,
which is made again when the file is read. A SHA-256 covers everything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ....io.files import Header
from ..data.arrays import ArrayFile, PathLike, readable
from ..data.mesh import ArteryError
from .flow import Flow, Fluid
from .grid import section, sweep
from .tube import Stenosis, Tube

FILE = ArrayFile(
    what="the solution of a vessel's flow",
    key="artery_solution",
    format=1,
    header=dict(number=int, settings=dict, tube=dict, fluid=dict, residual=float, steps=int),
    dtypes={"velocity": "F64", "pressure": "F64"},
)


@dataclass(frozen=True)
class Solution:
    """Sample `number`: its vessel and its flow."""

    number: int
    tube: Tube
    flow: Flow


def write_solution(path: PathLike, solution: Solution, settings: dict[str, Any]) -> None:
    """Write a solution atomically. `settings` has the `mesh` and whatever else made the sample."""
    flow = solution.flow
    header: Header = {
        "number": solution.number,
        "settings": settings,
        "tube": asdict(solution.tube),
        "fluid": asdict(flow.fluid),
        "residual": flow.residual,
        "steps": flow.steps,
    }
    FILE.write(path, header, {"velocity": flow.velocity, "pressure": flow.pressure})


def read_solution(path: PathLike) -> Solution:
    """Read and check a solution, and make its grid."""
    header, arrays = FILE.read(path)
    with readable(path, FILE.what):
        core, ring, axial = header["settings"]["mesh"]
        velocity, pressure = arrays["velocity"], arrays["pressure"]
        # The sizes are compared before anything of these sizes is made.
        nodes = (2 * core + 1) ** 2 + 16 * core * ring
        if not all(type(x) is int and x >= 1 for x in (core, ring, axial)) or velocity.shape != (
            2 * axial + 1,
            nodes,
            3,
        ):
            raise ArteryError(
                f"velocity has shape {velocity.shape}, which does not fit the mesh "
                f"{(core, ring, axial)}"
            )
        expected = (axial + 1, len(section(core, ring).vertex))
        if pressure.shape != expected:
            raise ArteryError(f"pressure has shape {pressure.shape}, expected {expected}")
        tube = _tube(header["tube"])
        grid, fluid = sweep(tube, (core, ring, axial)), Fluid(**header["fluid"])
        flow = Flow(grid, fluid, velocity, pressure, header["residual"], header["steps"])
        return Solution(header["number"], tube, flow)


def _tube(parameters: dict[str, Any]) -> Tube:
    """A vessel from the parameters that `asdict` gives."""
    bend = tuple((float(y), float(z)) for y, z in parameters["bend"])
    stenoses = tuple(Stenosis(**x) for x in parameters["stenoses"])
    return Tube(**{**parameters, "bend": bend, "stenoses": stenoses})
