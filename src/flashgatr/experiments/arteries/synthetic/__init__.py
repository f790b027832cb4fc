"""Synthetic vessels in the published layout: swept tubes with steady Navier-Stokes flow.

    tube.py       the vessel: centreline, radius, stenoses and their random distribution
    grid.py       hexahedra in the vessel, and the triangles of its surface
    elements.py   shape functions, and the integrals over one layer of hexahedra
    equations.py  the discrete equations and their direct solution
    flow.py       the flow and the stress on the wall
    generate.py   many samples, in parallel, resumable

Samples are labelled `synthetic = true` and are not the data of any paper. Units: cm, g, s.
"""
