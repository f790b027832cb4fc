"""The `flashgatr` command. It knows no experiment by name; each one is an `EXPERIMENT`.

application     the command with its subcommands; errors to exit codes
commands        the subcommands that are the same for every experiment
per_experiment  `data` and `predict`, whose options each experiment declares
presets         `parameters`: the paper's networks
"""

from .application import application as application
from .application import main as main
