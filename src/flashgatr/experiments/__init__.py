"""The experiments of the paper. The library never imports this package."""
