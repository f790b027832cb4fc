"""Synthetic vessels in the published layout: swept tubes with steady Navier-Stokes flow.

    tube.py       the vessel: centreline, radius, stenoses and their random distribution
    grid.py       hexahedra in the vessel, and the triangles of its surface
    elements.py   shape functions, and the integrals over one layer of hexahedra
    equations.py  the discrete equations and their direct solution
    flow.py       the flow and the stress on the wall
    solution.py   the coefficients of a flow, as a file
    generate.py   many samples, in parallel, resumable
    workers.py    jobs in parallel processes
    field.py      the flow as a function of the position in its elements
    points.py     random points, uniform in volume or in area
    locate.py     the elements that hold given positions
    field_files.py    points of many vessels, in parallel, resumable
    field_picture.py  the speed on a slice, the stress on the wall

Samples are labelled `synthetic = true` and are not the data of any paper. Units: cm, g, s.
"""
