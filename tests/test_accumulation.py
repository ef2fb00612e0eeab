import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.accumulation import loss_and_gradient
from platojax.arm import make_arm
from platojax.data.packing import Packing
from platojax.data.pipeline import stack_views
from platojax.data.scenes import load_emoji
from platojax.data.views import make_views
from tests import tiny


def an_arm(config, num_scenes=16, packing=None):
    tokenizer = tiny.tokenizer()
    policy = make_views(config.views, config.encoder, tokenizer)
    rng = np.random.default_rng(0)
    views = stack_views([policy(scene, rng) for scene in load_emoji("train")[:num_scenes]])
    arm = make_arm(config, tokenizer)
    example = jax.tree.map(lambda x: jnp.asarray(x[:, :1]), views)
    params = arm.init(jax.random.key(0), example)
    return arm, params, views if packing is None else packing.pack(views, tokenizer.pad_id)


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("text_good", None),
        ("text_good", Packing(group_size=2, rows=1, row_length=20)),
        ("text_next_token", None),
        ("image_good", None),
        ("image_multi_crop", None),
    ],
)
@pytest.mark.parametrize("steps", [2, 8])
def test_micro_batches_give_the_large_batchs_loss_metrics_and_gradient(name, packing, steps):
    arm, params, views = an_arm(tiny.arm_config(name), packing=packing)
    run = jax.jit(functools.partial(loss_and_gradient, arm), static_argnames="steps")
    whole = run(params, views, jax.random.key(1), steps=1)
    parts = run(params, views, jax.random.key(1), steps=steps)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), parts[1:], whole[1:]
    )
    norm = float(jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(whole[2]))))
    assert norm > 0.01


def test_the_mean_of_small_batches_is_another_objective():
    arm, params, views = an_arm(tiny.arm_config())
    whole, _ = arm.loss(params, views, jax.random.key(1))
    halves = [arm.loss(params, part, jax.random.key(1))[0] for part in np.split(views, 2, axis=1)]
    assert abs(float(np.mean(halves) - whole)) > 1e-3


def test_memory_grows_with_the_micro_batch_only():
    config = tiny.arm_config()
    config.encoder.width, config.encoder.mlp_dim, config.encoder.depth = 64, 256, 3
    arm, params, _ = an_arm(config, 1)
    run = jax.jit(functools.partial(loss_and_gradient, arm), static_argnames="steps")

    def temporaries(num_scenes, steps):
        views = jax.ShapeDtypeStruct((2, num_scenes, 12), "int32")
        compiled = run.lower(params, views, jax.random.key(0), steps=steps).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    large, larger = temporaries(512, 1), temporaries(1024, 1)
    small, fourfold = temporaries(512, 8), temporaries(2048, 32)
    assert larger > 1.8 * large  # what is measured does see the batch
    assert small < large / 4
    # Four times the scenes in micro-batches of the same 64: embeddings and projections only.
    assert fourfold < 2 * small
