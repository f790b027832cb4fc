"""The formulas of the network's layers as functions on tensors.

Multivectors are (..., C, 16), auxiliary scalars (..., S). The modules in `flashgatr.nn` add
parameters and checks, the kernels compute the same functions faster, and you can build your own
layers on them.
"""

from .attention import attend as attend
from .features import LogitWeights as LogitWeights
from .features import attention_scale as attention_scale
from .features import key_features as key_features
from .features import query_features as query_features
from .linear import LinearWeights as LinearWeights
from .linear import linear as linear
from .linear import masked as masked
from .norm import ACTIVATIONS as ACTIVATIONS
from .norm import dropout as dropout
from .norm import gate as gate
from .norm import layer_norm as layer_norm
from .products import bilinear as bilinear
from .products import join as join
from .products import product as product
from .rotary import rotate as rotate
