"""The networks that the paper compares GATr with."""

from .gca import GCAGNN as GCAGNN
from .gca import GCAMLP as GCAMLP
from .gem_cnn import GemCNN as GemCNN
from .mlp import MLP as MLP
from .pointnet2 import PointNet2 as PointNet2
from .se3_transformer import FusedSE3Transformer as FusedSE3Transformer
from .se3_transformer import SE3Transformer as SE3Transformer
from .segnn import SEGNN as SEGNN
from .transformer import AxialTransformer as AxialTransformer
from .transformer import Transformer as Transformer
from .unet import TemporalUNet as TemporalUNet
