"""Files: saved networks, the authors' weights converted, and the atomic, hashed files that all of it uses."""

from .networks import CONFIG as CONFIG
from .networks import WEIGHTS as WEIGHTS
from .networks import LoadError as LoadError
from .networks import fill as fill
from .networks import load as load
from .networks import save as save
