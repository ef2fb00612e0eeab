import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from platojax.arm import make_arm
from platojax.data.views import example_views
from platojax.flops import count_flops, count_flops_by_kind
from platojax.model_flops import model_flops
from tests import tiny


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_dense_layers_backward_pass_is_twice_its_forward_pass():
    def loss(w, x):
        return jnp.sum((x @ w) ** 2)

    w, x = array(16, 32), array(8, 16)
    forward = 2 * 8 * 16 * 32
    assert count_flops(loss, w, x) == forward
    assert count_flops(jax.jit(jax.value_and_grad(loss)), w, x) == 2 * forward  # of the weights
    assert count_flops(jax.value_and_grad(loss, argnums=(0, 1)), w, x) == 3 * forward


@pytest.mark.parametrize(("remat", "passes"), [(False, 3), (True, 4)])
def test_a_scanned_layer_counts_each_time_it_runs(remat, passes):
    def layer(x, w):
        return jax.nn.relu(x @ w), None

    def loss(ws, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, ws)[0])

    flops = count_flops(jax.value_and_grad(loss), array(5, 16, 16), array(8, 16))
    assert flops == passes * 5 * 2 * 8 * 16 * 16


def test_attention_counts_scores_and_the_sum_of_values():
    batch, length, heads, dim = 2, 8, 3, 4
    q = array(batch, length, heads, dim)
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=True)
    product = 2 * batch * heads * length * length * dim
    assert count_flops(attend, q, q, q) == 2 * product  # masked scores are computed, too


@pytest.mark.parametrize("manual", [{"data"}, {"data", "model"}])
def test_a_program_of_one_shard_counts_on_all_devices(manual):
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    whole = jax.shard_map(
        lambda x, w: x @ w,
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec(None, *(manual - {"data"}))),
        out_specs=PartitionSpec("data", *(manual - {"data"})),
        axis_names=manual,
    )
    assert count_flops(whole, array(8, 16), array(16, 32)) == 2 * 8 * 16 * 32


def test_what_no_output_needs_is_not_counted():
    def function(w, x):
        unused = (x @ w) @ w.T
        return jnp.sum(x) + 0 * unused.shape[0]

    assert count_flops(function, array(16, 32), array(8, 16)) == 0


def test_the_dearest_branch_of_a_condition_counts():
    def function(condition, x):
        return jax.lax.cond(condition, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert count_flops(function, array(dtype=jnp.bool_), array(4, 4)) == 2 * 2 * 4**3


def test_a_custom_gradient_is_looked_into():
    @jax.custom_vjp
    def product(w, x):
        return x @ w

    product.defvjp(
        lambda w, x: (product(w, x), (w, x)), lambda saved, g: (saved[1].T @ g, g @ saved[0].T)
    )

    def loss(w, x):
        return jnp.sum(product(w, x))

    flops = count_flops(jax.grad(loss, argnums=(0, 1)), array(16, 32), array(8, 16))
    assert flops == 2 * 2 * 8 * 16 * 32  # a sum's gradient does not need the product itself


@pytest.mark.parametrize(("argnum", "products"), [(0, 2), (1, 2)])
def test_a_strided_convolutions_gradients_cost_what_it_costs(argnum, products):
    def loss(kernel, x):
        y = jax.lax.conv_general_dilated(
            x, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y**2)

    kernel, x = array(4, 4, 3, 8), array(2, 16, 16, 3)
    forward = 2 * 2 * (16 // 4) ** 2 * 8 * 4 * 4 * 3
    assert count_flops(loss, kernel, x) == forward
    assert count_flops(jax.grad(loss, argnums=argnum), kernel, x) == products * forward


def test_kinds_are_dtype_and_precision():
    def function(w, x):
        return (
            x @ w,
            jnp.matmul(x.astype(jnp.float32), w.astype(jnp.float32), precision="highest"),
        )

    counts = count_flops_by_kind(
        function, array(16, 32, dtype=jnp.bfloat16), array(8, 16, dtype=jnp.bfloat16)
    )
    flops = 2 * 8 * 16 * 32
    assert counts == {("bfloat16", "default"): flops, ("float32", "highest"): flops}


def test_a_lejepa_step_of_the_text_encoder_costs_what_its_shape_says():
    config = tiny.arm_config("text_good")
    arm = make_arm(config, tiny.tokenizer())
    scenes = 8
    views = jax.tree.map(
        lambda x: array(x.shape[0], scenes, *x.shape[2:], dtype=x.dtype),
        example_views(config.views, config.encoder),
    )
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(arm.init, key, views)
    flops = model_flops(config, tiny.tokenizer(), params, views)

    e, o = config.encoder, config.objective
    texts = 2 * scenes
    tokens = texts * e.max_length
    block = 2 * tokens * (4 * e.width**2 + 2 * e.width * e.mlp_dim)
    block += 2 * 2 * tokens * e.max_length * e.width  # scores, and the sum of values
    hidden = o.projector_hidden[0]
    projector = 2 * texts * (e.width * hidden + hidden * o.projector_dim)
    directions = 2 * texts * o.projector_dim * o.num_slices
    pooling = 2 * tokens * e.width  # a product with ones and zeros, which get no gradient
    health = 2 * scenes * e.width**2  # the covariance of one view, without a gradient
    # Forward, and backward to inputs and weights; the directions get no gradient.
    assert flops == 3 * (e.depth * block + projector) + 2 * (pooling + directions) + health
