import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.encoders.image import ImageEncoder
from platojax.encoders.projector import Projector
from platojax.encoders.text import TextEncoder
from platojax.encoders.transformer import masked_mean, sincos_positions

SHAPE = dict(width=16, depth=2, num_heads=2, mlp_dim=32)


def text_encoder(**changes):
    fields = dict(vocab_size=50, max_length=8, causal=False, pad_id=0, **SHAPE) | changes
    encoder = TextEncoder(**fields)
    params = jax.jit(encoder.init)(jax.random.key(0), jnp.ones((1, 8), jnp.int32))
    return encoder, jax.jit(lambda tokens: encoder.apply(params, tokens))


TOKENS = jnp.array([[2, 7, 8, 3, 0, 0, 0, 0], [2, 9, 10, 11, 12, 13, 14, 3]])


def test_text_shapes_and_names():
    encoder, apply = text_encoder()
    out = apply(TOKENS)
    assert out["embedding"].shape == (2, 16)
    assert out["layers"].shape == (2, len(encoder.layer_names()), 16)
    assert out["logits"].shape == (2, 8, 50)
    at = encoder.layer_names().index("embedding")
    np.testing.assert_array_equal(out["layers"][:, at], out["embedding"])


@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing(causal):
    _, apply = text_encoder(causal=causal)
    short = apply(TOKENS[:1, :4])
    padded = apply(TOKENS[:1])
    np.testing.assert_allclose(short["layers"], padded["layers"], atol=1e-5)


def test_causal_logits_do_not_see_the_future_and_bidirectional_ones_do():
    changed = TOKENS.at[:, 3].set(20)
    for causal in (True, False):
        _, apply = text_encoder(causal=causal)
        one, two = apply(TOKENS)["logits"][:, :3], apply(changed)["logits"][:, :3]
        assert np.allclose(one, two, atol=1e-5) == causal


def test_last_token_is_the_last_valid_one():
    encoder, apply = text_encoder(causal=True)
    full = apply(TOKENS)["layers"][0, encoder.layer_names().index("last_token")]
    cut = apply(TOKENS[:1, :4])["layers"][0, encoder.layer_names().index("last_token")]
    np.testing.assert_allclose(full, cut, atol=1e-5)


def test_a_row_of_padding_is_finite():
    _, apply = text_encoder()
    assert np.all(np.isfinite(apply(jnp.zeros((1, 8), jnp.int32))["layers"]))


def test_sequences_that_are_too_long_are_refused():
    encoder, _ = text_encoder()
    with pytest.raises(ValueError, match=r"sequences of 9 tokens exceed encoder.max_length 8"):
        encoder.init(jax.random.key(0), jnp.ones((1, 9), jnp.int32))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="width 16 is not a multiple of num_heads 3"):
        text_encoder(num_heads=3)


def test_image_takes_any_whole_number_of_patches():
    encoder = ImageEncoder(patch_size=8, **SHAPE)
    images = jax.random.randint(jax.random.key(0), (2, 16, 24, 3), 0, 256).astype(jnp.uint8)
    params = encoder.init(jax.random.key(0), images)
    for size in ((16, 24), (8, 8)):
        out = encoder.apply(params, images[:, : size[0], : size[1]])
        assert out["layers"].shape == (2, len(encoder.layer_names()), 16)
        np.testing.assert_array_equal(out["layers"][:, -1], out["embedding"])
    with pytest.raises(ValueError, match="12 x 24 pixels are not a whole number of patches of 8"):
        encoder.init(jax.random.key(0), images[:, :12])


def test_bfloat16_keeps_parameters_and_outputs_in_float32():
    encoder = ImageEncoder(patch_size=8, dtype=jnp.bfloat16, **SHAPE)
    images = jnp.full((2, 16, 16, 3), 99, jnp.uint8)
    params = encoder.init(jax.random.key(0), images)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    half = encoder.apply(params, images)["embedding"]
    full = ImageEncoder(patch_size=8, **SHAPE).apply(params, images)["embedding"]
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, full, atol=0.05)


def test_projector_statistics_are_those_of_all_views_and_samples():
    projector = Projector((16,), 4)
    x = 5 + 3 * jax.random.normal(jax.random.key(0), (2, 64, 8))
    params = projector.init(jax.random.key(1), x)
    whole = projector.apply(params, x)
    assert whole.shape == (2, 64, 4)
    # Shift and scale of the whole batch vanish; those of one view alone do not.
    np.testing.assert_allclose(projector.apply(params, 2 * x), whole, atol=0.1)
    shifted = projector.apply(params, x.at[0].add(10.0))
    assert not np.allclose(shifted, whole, atol=0.5)


def test_masked_mean_ignores_padding_and_empty_rows_are_zero():
    x = jnp.array([[[1.0], [3.0], [100.0]], [[1.0], [1.0], [1.0]]])
    mask = jnp.array([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(masked_mean(x, mask), [[2.0], [0.0]])


def test_positions_are_distinct_and_span_the_same_range_at_every_size():
    small, large = sincos_positions(2, 2, 16), sincos_positions(4, 4, 16)
    assert len(np.unique(large, axis=0)) == 16
    assert small.shape == (4, 16)
    with pytest.raises(ValueError, match=r"multiple of 4 .* got 18"):
        sincos_positions(2, 2, 18)
