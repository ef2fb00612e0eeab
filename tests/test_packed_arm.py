"""Packing changes what is computed on, and nothing that comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax import sharding
from platojax.arm import make_arm
from platojax.data.packing import Packing, make_packing
from platojax.data.pipeline import make_pipeline, stack_views
from platojax.data.scenes import load_emoji
from platojax.data.views import make_views
from platojax.program import make_program
from tests import tiny

PACKING = dict(group_size=8, rows=5, row_length=16)


def emoji_views(config, num_scenes):
    policy = make_views(config.views, config.encoder, tiny.tokenizer())
    rng = np.random.default_rng(0)
    return stack_views([policy(scene, rng) for scene in load_emoji("train")[:num_scenes]])


@pytest.mark.parametrize("name", ["text_good", "text_next_token"])
def test_loss_metrics_and_gradient_are_those_of_padded_views(name):
    config = tiny.arm_config(name)
    config.encoder.max_length = 10
    tokenizer = tiny.tokenizer()
    lengths = np.random.default_rng(1).integers(3, 11, (2, 16, 1))
    padded = np.where(np.arange(10) < lengths, emoji_views(config, 16), tokenizer.pad_id)
    packed = Packing(**PACKING).pack(padded, tokenizer.pad_id)
    assert not packed["cut"].any()
    arm = make_arm(config, tokenizer)
    params = arm.init(jax.random.key(0), jnp.asarray(padded[:, :1]))
    run = jax.jit(jax.value_and_grad(arm.loss, has_aux=True))
    (want, want_metrics), want_gradient = run(params, padded, jax.random.key(1))
    (got, metrics), gradient = run(params, packed, jax.random.key(1))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert metrics.pop("tokens_cut") == 0
    assert metrics.keys() == want_metrics.keys()
    for metric in metrics:
        np.testing.assert_allclose(metrics[metric], want_metrics[metric], rtol=1e-4, err_msg=metric)
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want_gradient))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(want_gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * largest)


def test_tokens_that_were_cut_are_in_the_metrics():
    config = tiny.arm_config()
    padded = emoji_views(config, 8)
    packed = Packing(group_size=8, rows=3, row_length=16).pack(padded, tiny.tokenizer().pad_id)
    arm = make_arm(config, tiny.tokenizer())
    params = arm.init(jax.random.key(0), jnp.asarray(padded[:, :1]))
    metrics = arm.loss(params, packed, jax.random.key(1))[1]
    assert metrics["tokens_cut"] == packed["cut"].sum() > 0
    assert metrics["tokens"] + metrics["tokens_cut"] == (padded != tiny.tokenizer().pad_id).sum()


def test_the_pipelines_batches_are_what_the_program_expects_and_it_learns_from_them():
    config = tiny.arm_config(packing=PACKING, batch_size=16)
    config.encoder.max_length = 10
    tokenizer = tiny.tokenizer()
    packing = make_packing(config)
    data = make_pipeline(
        load_emoji("train"),
        make_views(config.views, config.encoder, tokenizer),
        batch_size=16,
        seed=0,
        finish=lambda batch: packing.pack(batch, tokenizer.pad_id),
    )
    example = jax.ShapeDtypeStruct((2, 1, 10), "int32")
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    program = make_program(config, tokenizer, example, mesh)
    expected = program.batch(16)
    batch = next(data)
    data.close()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), batch) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )
    state, metrics = program.step(program.init(np.uint32(0)), batch)
    assert np.isfinite(metrics["loss"])
    assert int(state.skipped) == 0


@pytest.mark.parametrize(
    ("arm", "packing", "message"),
    [
        ("image_good", PACKING, "packing is for text; modality is 'image'"),
        ("text_good", dict(PACKING, rows=30), r"packing.rows must lie in \[2, 6\] .* got 30"),
        ("text_good", dict(rows=3), r"packing needs the fields .*'row_length'.*; got \['rows'\]"),
    ],
)
def test_an_impossible_packing_is_refused(arm, packing, message):
    with pytest.raises(ValueError, match=message):
        make_packing(tiny.arm_config(arm, packing=packing))


@pytest.mark.parametrize("arm", ["text_good", "image_good"])
def test_configs_pack_nothing_of_themselves(arm):
    assert make_packing(tiny.arm_config(arm)) is None
