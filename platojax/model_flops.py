"""Model FLOPs of a train step: what model FLOPs utilisation is measured by."""

import jax
from ml_collections import ConfigDict

from platojax.arm import Params, Views, Vocabulary, make_arm
from platojax.flops import count_flops


def model_flops(config: ConfigDict, vocabulary: Vocabulary, params: Params, views: Views) -> int:
    """FLOPs of one forward and one backward pass over a batch, see `flops.count_flops`.

    Whether a run computes things again to save memory (`encoder.remat`, `accumulation_steps`) makes
    no difference: that is work, but no progress.

    Args:
      config: of the run.
      vocabulary: of the text arms.
      params: of the arm, abstract or not.
      views: a whole batch, abstract or not: over all devices.
    """
    config = ConfigDict(config.to_dict())
    if "remat" in config.encoder:
        config.encoder.remat = False
    arm = make_arm(config, vocabulary)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return count_flops(jax.value_and_grad(arm.loss, has_aux=True), params, views, key)
