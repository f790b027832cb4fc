"""The networks that the paper compares GATr with."""

from .mlp import MLP as MLP
from .segnn import SEGNN as SEGNN
from .transformer import AxialTransformer as AxialTransformer
from .transformer import Transformer as Transformer
from .unet import TemporalUNet as TemporalUNet
