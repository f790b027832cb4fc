"""Files: saved networks, weights converted from the authors' code, and atomic, hashed files."""

from .hub import local_folder as local_folder
from .networks import CONFIG as CONFIG
from .networks import WEIGHTS as WEIGHTS
from .networks import LoadError as LoadError
from .networks import fill as fill
from .networks import load as load
from .networks import save as save
