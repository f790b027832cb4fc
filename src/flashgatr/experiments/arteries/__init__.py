"""Wall shear stress on artery walls (paper, section 4.2 and appendix C.2). Units: cm, dyn/cm² (0.1 Pa)."""

LABEL_SCALE = 53.836
"""Root mean square of the labels over the published training meshes; models predict stress divided by it."""
