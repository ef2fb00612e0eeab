import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from platojax.arm import make_arm
from platojax.optimizer import learning_rate_schedule, make_optimizer
from tests import tiny


def test_schedule_warms_up_and_decays_to_a_thousandth():
    config = tiny.arm_config().optimizer
    schedule = learning_rate_schedule(config, 100)
    assert schedule(0) == 0
    np.testing.assert_allclose(schedule(20), 1e-3, rtol=1e-6)
    np.testing.assert_allclose(schedule(100), 1e-6, rtol=1e-5)
    config.warmup_fraction = 1.0
    with pytest.raises(ValueError, match=r"warmup_fraction must lie in \[0, 1\); got 1.0"):
        learning_rate_schedule(config, 100)


def test_weight_decay_reaches_kernels_and_token_embeddings_and_nothing_else():
    config = tiny.arm_config()
    config.optimizer.weight_decay = 0.5
    optimizer = make_optimizer(config.optimizer, optax.constant_schedule(1e-3))
    views = jnp.zeros((2, 1, 12), jnp.int32)
    params = make_arm(config, tiny.tokenizer()).init(jax.random.key(0), views)
    params = jax.tree.map(jnp.ones_like, params)
    opt_state = optimizer.init(params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    for _ in range(2):
        updates, opt_state = optimizer.update(zeros, opt_state, params)
        params = optax.apply_updates(params, updates)
    decayed = {
        path[-1].key: bool(jnp.all(leaf < 1))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    assert {name for name, smaller in decayed.items() if smaller} == {"kernel", "embedding"}
    assert decayed.keys() == {"kernel", "embedding", "bias", "scale", "positions"}
