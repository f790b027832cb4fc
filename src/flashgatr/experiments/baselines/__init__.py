"""The networks that the paper compares GATr with."""

from .gem_cnn import GemCNN as GemCNN
from .mlp import MLP as MLP
from .pointnet2 import PointNet2 as PointNet2
from .transformer import AxialTransformer as AxialTransformer
from .transformer import Transformer as Transformer
from .unet import TemporalUNet as TemporalUNet
