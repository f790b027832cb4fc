"""Steady flow of an incompressible Newtonian fluid through a tube, and the wall shear stress.

    ρ(u·∇)u = −∇p + μΔu,   ∇·u = 0
    u = 0 on the wall, given at the inlet;   μ ∂u/∂n = p n at the outlet

The stress that the fluid exerts on the wall is τ = −(σn − (n·σn)n) with n outward. It points along
the flow, as in the published data. Newton's method diverges when it starts from rest. The solver
therefore takes Picard steps before Newton steps, and solves for 3, 1.8 and 1.3 times the viscosity
first. It does this on a coarse grid; the result is the start on the fine grid.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..data.mesh import Array
from .elements import NODE_POINTS, ON_WALL, face_shape, gradients, shape
from .equations import Equations, FlowError
from .grid import Grid, MeshSize, interpolate, sweep
from .tube import Tube

CONTINUATION = (3.0, 1.8, 1.3, 1.0)  # factors of the viscosity, in this order
PICARD = 3  # largest number of Picard steps for each factor
MAX_STEPS = 20
TOLERANCE = 1e-5  # relative size of the last Newton step; the remaining error is below 1e-6
MAX_RESIDUAL = 1e-6
MIN_COARSE = 30  # fewest layers of a coarse grid; with fewer the flow often does not converge


@dataclass(frozen=True)
class Fluid:
    viscosity: float = 0.035  # g/(cm s)
    density: float = 1.06  # g/cm³
    speed: float = 20.0  # mean over the inlet, cm/s
    outlet_pressure: float = 133_322.0  # dyn/cm²


@dataclass
class Flow:
    """Velocities (P, n, 3), pressures relative to the outlet (layers + 1, m), and their
    residual.
    """

    grid: Grid
    fluid: Fluid
    velocity: Array
    pressure: Array
    residual: float = np.inf  # relative to the forces on wall and inlet
    steps: int = 0


def solve(
    tube: Tube,
    mesh: MeshSize,
    fluid: Fluid = Fluid(),  # noqa: B008 (frozen)
    *,
    parabolic: bool = False,
) -> Flow:
    """The flow in a tube with a plug profile (or a parabola) of mean speed `fluid.speed` at the
    inlet.
    """
    equations = Equations(sweep(tube, mesh))
    core, ring, axial = mesh
    coarse = (min(core, 2), min(ring, 2), axial // 2)
    if coarse[2] >= MIN_COARSE:
        with suppress(FlowError):  # the fine grid may converge without it
            start = initial(tube, sweep(tube, coarse), fluid, parabolic)
            _continue(Equations(start.grid), start, 1e-2)
            flow = initial(tube, equations.grid, fluid, parabolic)
            inside = (slice(1, None), slice(equations.free))
            flow.velocity[inside] = interpolate(start.grid, flow.grid, start.velocity)[inside]
            _iterate(equations, flow, 1.0, TOLERANCE, picard=0)
            return _finished(equations, flow)
    flow = initial(tube, equations.grid, fluid, parabolic)
    _continue(equations, flow, TOLERANCE)
    return _finished(equations, flow)


def initial(tube: Tube, grid: Grid, fluid: Fluid, parabolic: bool = False) -> Flow:
    """The fluid at rest, except at the inlet."""
    cross = grid.section
    velocity = np.zeros_like(grid.node)
    radius = np.linalg.norm(cross.node[: cross.free], axis=1)
    profile = 1 - radius**2 if parabolic else np.ones_like(radius)
    velocity[0, : cross.free] = profile[:, None] * tube.centreline(grid.s)[1][0]
    velocity *= np.pi * tube.radius**2 * fluid.speed / flux(grid, velocity, 0)
    return Flow(grid, fluid, velocity, np.zeros((grid.layers + 1, len(cross.vertex))))


def _continue(equations: Equations, flow: Flow, tolerance: float) -> None:
    """Solve for larger viscosities first."""
    for factor in CONTINUATION:
        _iterate(equations, flow, factor, tolerance if factor == 1 else 1e-2, PICARD)


def _iterate(
    equations: Equations, flow: Flow, factor: float, tolerance: float, picard: int
) -> None:
    """Iterate with `factor` times the viscosity until a step changes less than `tolerance`."""
    mu, rho = factor * flow.fluid.viscosity, flow.fluid.density
    size, steps = np.inf, 0
    for steps in range(1, MAX_STEPS + 1):
        try:
            with np.errstate(all="ignore"):  # divergence is an error below
                newton = steps > picard or size < 1e-2
                change = equations.step(flow.velocity, flow.pressure, mu, rho, newton)
        except np.linalg.LinAlgError:
            break
        flow.velocity += change[0]
        flow.pressure += change[1]
        flow.steps += 1
        size = float(np.linalg.norm(change[0]) / np.linalg.norm(flow.velocity))
        if size < tolerance:
            return
        if not np.isfinite(size) or (steps > picard + 4 and size > 0.5):
            break
    raise FlowError(
        f"the flow did not converge at {factor} times the viscosity: step {steps} changed the "
        f"velocity by {size:.1e} of its size, "
        f"expected less than {tolerance:.0e}; use a finer mesh or milder stenoses"
    )


def _finished(equations: Equations, flow: Flow) -> Flow:
    fluid = flow.fluid
    parts = equations.residual(flow.velocity, flow.pressure, fluid.viscosity, fluid.density)
    flow.residual = parts[1]
    if not flow.residual < MAX_RESIDUAL:
        raise FlowError(
            f"the flow's residual is {flow.residual:.1e}, expected less than {MAX_RESIDUAL:.0e}; "
            "use a finer mesh"
        )
    return flow


def flux(grid: Grid, velocity: Array, plane: int) -> float:
    """∫ u·n over a plane of nodes in cm³/s; n points along the tube."""
    nodes = grid.node[plane][grid.section.quad].reshape(-1, 9, 3)
    u = velocity[plane][grid.section.quad].reshape(-1, 9, 3)
    value, slope, weight = face_shape()
    along = np.einsum("eia,qib->eqab", nodes, slope)
    area = np.cross(along[..., 0], along[..., 1])
    return float(np.einsum("qi,eia,eqa,q->", value, u, area, weight, optimize=True))


def nodal_pressure(flow: Flow) -> Array:
    """The absolute pressure at all nodes (P, n)."""
    cross = flow.grid.section
    linear = np.array([1.0, 0.5, 0.0])
    weight = np.stack([linear, linear[::-1]], axis=1)  # (3 nodes, 2 vertices)
    planes = np.empty((len(flow.pressure), len(cross.node)))
    corners = flow.pressure[:, cross.quad_vertex]  # (layers + 1, e, 2, 2)
    planes[:, cross.quad] = np.einsum("ia,jb,keab->keij", weight, weight, corners)
    between_planes = (planes[1:] + planes[:-1]) / 2
    found = np.empty((len(flow.grid.s), len(cross.node)))
    found[::2], found[1::2] = planes, between_planes
    return found + flow.fluid.outlet_pressure


def wall_stress(flow: Flow) -> Array:
    """The shear stress at the nodes of the wall (P, w, 3)."""
    return shear_stress(*wall_gradient(flow), flow.fluid.viscosity)


def wall_gradient(flow: Flow) -> tuple[Array, Array]:
    """∂u_a/∂x_b (P, w, 3, 3) and outward unit normals (P, w, 3) at the nodes of the wall, averaged
    over the elements of a node.
    """
    grid = flow.grid
    cross = grid.section
    n = len(cross.node)
    outer = cross.outer
    _, slope = shape(NODE_POINTS[ON_WALL])
    total = np.zeros((len(grid.s) * n, 3, 3))
    normal = np.zeros((len(grid.s) * n, 3))
    count = np.zeros(len(grid.s) * n)
    for k in range(grid.layers):
        nodes = grid.element_nodes(k)[outer]
        u = flow.velocity[2 * k : 2 * k + 3].reshape(-1, 3)[grid.hexahedra[outer]]
        derivative = np.einsum("eqib,eia->eqab", gradients(nodes, slope)[0], u, optimize=True)
        along = np.einsum("eia,qib->eqab", nodes, slope, optimize=True)
        outward = np.cross(along[..., 1], along[..., 2])
        outward /= np.linalg.norm(outward, axis=-1, keepdims=True)
        where = grid.hexahedra[outer][:, ON_WALL] + 2 * k * n
        np.add.at(total, where, derivative)
        np.add.at(normal, where, outward)
        np.add.at(count, where, 1)
    keep = (np.arange(len(grid.s))[:, None] * n + np.arange(cross.free, n)).ravel()
    slope_at, outward = total[keep] / count[keep, None, None], normal[keep]
    outward /= np.linalg.norm(outward, axis=1, keepdims=True)
    wall = (len(grid.s), cross.wall)
    return slope_at.reshape(*wall, 3, 3), outward.reshape(*wall, 3)


def shear_stress(slope: Array, outward: Array, viscosity: float) -> Array:
    """The stress (…, 3) on a wall with the gradient (…, 3, 3) of the velocity and the outward unit
    normal (…, 3): minus the tangential part of the traction. The pressure has no such part.
    """
    strain = slope + slope.swapaxes(-1, -2)
    traction = viscosity * np.einsum("...ab,...b->...a", strain, outward)
    normal_part = np.einsum("...a,...a->...", traction, outward)
    return np.asarray(-(traction - normal_part[..., None] * outward))
