"""Wall shear stress on artery walls (paper, section 4.2). Units: cm, dyn/cm² (0.1 Pa)."""

LABEL_SCALE = 53.836
"""Root mean square of the published training labels. Models predict the stress divided by it."""
