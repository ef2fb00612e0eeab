"""A packed text gets what it would get alone in a row of padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.data.packing import Packing
from platojax.encoders.text import TextEncoder

LENGTHS = [[10, 3, 5, 7, 2, 4, 10, 1], [3, 3, 0, 9, 6, 4, 8, 10]]  # one text is empty


def encoder(causal=False, **changes):
    shape = dict(width=16, depth=2, num_heads=2, mlp_dim=32) | changes
    return TextEncoder(vocab_size=50, max_length=10, causal=causal, pad_id=0, **shape)


def batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, (2, 8, 10))
    tokens = np.where(np.arange(10) < np.asarray(LENGTHS)[..., None], tokens, 0).astype(np.int32)
    packed = Packing(group_size=4, rows=2, row_length=16).pack(tokens, 0)
    assert not packed["cut"].any()
    return tokens, packed


def encode_padded(module, params, tokens):
    return jax.vmap(module.apply, in_axes=(None, 0))(params, tokens)


def encode_packed(module, params, packed):
    return jax.vmap(lambda t, s: module.apply(params, t, s, 4))(
        packed["tokens"], packed["segments"]
    )


def assert_close(got, want):
    """To 1e-5 of the largest gradient: that of the keys' biases is zero but for rounding."""
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("causal", [False, True])
def test_embeddings_of_all_layers_are_those_of_padded_texts(causal):
    tokens, packed = batch()
    module = encoder(causal)
    params = module.init(jax.random.key(0), tokens[0])
    want = jax.jit(encode_padded, static_argnums=0)(module, params, tokens)
    got = jax.jit(encode_packed, static_argnums=0)(module, params, packed)
    assert got["embedding"].shape == (2, 8, 16)
    assert got["logits"].shape == (2, 2, 2, 16, 50)
    np.testing.assert_allclose(got["embedding"], want["embedding"], atol=1e-5)
    assert not got["embedding"][1, 2].any()  # the empty text
    some = np.asarray(LENGTHS) > 0
    np.testing.assert_allclose(got["layers"][some], want["layers"][some], atol=1e-5)


def test_gradients_are_those_of_padded_texts():
    tokens, packed = batch()
    module = encoder()
    params = module.init(jax.random.key(0), tokens[0])
    direction = jax.random.normal(jax.random.key(1), (2, 8, 16))

    def gradient(encode, texts):
        return jax.jit(
            jax.grad(lambda p: (encode(module, p, texts)["embedding"] * direction).sum())
        )(params)

    want, got = gradient(encode_padded, tokens), gradient(encode_packed, packed)
    assert_close(got, want)


def test_a_text_does_not_see_its_neighbours_in_the_row():
    _, packed = batch()
    module = encoder()
    params = module.init(jax.random.key(0), batch()[0][0])
    changed = np.where(packed["segments"] == 1, 7, packed["tokens"])
    one = encode_packed(module, params, packed)["embedding"].reshape(2, 2, 4, 16)
    two = encode_packed(module, params, {**packed, "tokens": changed})["embedding"]
    same = np.isclose(one, two.reshape(one.shape), atol=1e-6).all(axis=-1)
    assert same[:, :, [0, 2, 3]].all()
    assert not same[:, :, 1].any()


def test_bfloat16_means_are_summed_in_float32():
    from platojax.encoders.text import segment_means

    x = jnp.concatenate([jnp.full((1, 1, 1), 256.0), jnp.ones((1, 511, 1))], axis=1)
    mean = segment_means(x.astype(jnp.bfloat16), jnp.zeros((1, 512), jnp.int32), 1)
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, [[767 / 512]], rtol=1e-6)


def test_rematerialisation_keeps_less_for_the_backward_pass_and_changes_nothing_else():
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 50, (64, 10)), jnp.int32)
    plain, again = encoder(depth=6), encoder(depth=6, remat=True)
    params = plain.init(jax.random.key(0), tokens)
    assert jax.tree.structure(params) == jax.tree.structure(again.init(jax.random.key(0), tokens))

    def loss(module, params):
        return (module.apply(params, tokens)["embedding"] ** 2).sum()

    def kept(module):
        backward = jax.vjp(functools.partial(loss, module), params)[1]
        return sum(x.nbytes for x in jax.tree.leaves(backward))

    gradient = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
    assert_close(gradient(again, params), gradient(plain, params))
    # Not the compiled program's memory: XLA's CPU scheduler computes the blocks again too early.
    assert kept(again) < 0.2 * kept(plain)
