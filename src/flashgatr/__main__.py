"""`python -m flashgatr` is the `flashgatr` command."""

from .experiments.cli import main

main()
