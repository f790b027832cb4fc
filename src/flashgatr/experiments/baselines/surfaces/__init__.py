"""Scales, neighbours and tangent frames of surfaces, for networks that convolve over them."""
