"""DINOv2, DINOv3 and CLIP in JAX, from the weights that their authors publish."""

from platojax.encoders.pretrained.config import MODEL_TYPES
from platojax.encoders.pretrained.encoder import PretrainedEncoder
from platojax.encoders.pretrained.model import Pretrained, load_pretrained, reinitialised

__all__ = [
    "MODEL_TYPES",
    "Pretrained",
    "PretrainedEncoder",
    "load_pretrained",
    "reinitialised",
]
