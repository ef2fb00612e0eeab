"""Gradients of a large batch from small ones, exact for losses that couple the whole batch.

Adding up the losses of micro-batches is another objective: SIGReg and batch norm are statistics of
the batch. Here only what belongs to single scenes is computed in micro-batches (the idea of
GradCache, arXiv 2101.06983): a first pass keeps each scene's outputs, the embeddings say; the
objective and its gradient with respect to them see the whole batch at once; a second pass runs each
micro-batch again and pulls that gradient back to the parameters. One more forward pass is the
price. Activations grow with the micro-batch only; what grows with the batch are the outputs, some
numbers a scene.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from platojax.arm import Arm, Metrics, Outputs, Params, Views


def loss_and_gradient(
    arm: Arm, params: Params, views: Views, key: jax.Array, *, steps: int
) -> tuple[jax.Array, Metrics, Params]:
    """The loss of a batch, its metrics and its gradient, computed in `steps` micro-batches.

    Args:
      arm: of the run.
      params: of the arm.
      views: leaves `[V, N, ...]`; N is a multiple of `steps`, and under sharding N / steps one of
        the devices that share the batch.
      key: of the step.
      steps: 1 computes all at once.

    Returns:
      The scalar loss, the metrics, and the gradient, shaped as `params`. But for rounding they do
      not depend on `steps`.
    """
    if steps == 1:
        (loss, metrics), gradient = jax.value_and_grad(arm.loss, has_aux=True)(params, views, key)
        return loss, metrics, gradient
    micro_batches = _split(views, steps)
    outputs = _merge(jax.lax.map(lambda part: arm.per_scene(params, part), micro_batches))
    (loss, metrics), (gradient, cotangents) = jax.value_and_grad(
        arm.objective, argnums=(0, 1), has_aux=True
    )(params, outputs, key)

    pulled_back = _pull_back(arm, params, micro_batches, _split(cotangents, steps))
    return loss, metrics, jax.tree.map(jnp.add, gradient, pulled_back)


def _pull_back(arm: Arm, params: Params, micro_batches: Views, cotangents: Outputs) -> Params:
    """The gradient of the parameters from that of each scene's outputs, `[steps, V, N, ...]`."""

    def accumulate(params: Params, micro_batches: Views, cotangents: Outputs) -> Params:
        def add(total: Params, part: tuple[Views, Outputs]) -> tuple[Params, None]:
            micro_batch, cotangent = part
            _, pull_back = jax.vjp(lambda params: arm.per_scene(params, micro_batch), params)
            return jax.tree.map(jnp.add, total, pull_back(cotangent)[0]), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(add, zeros, (micro_batches, cotangents))[0]

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["data"] < mesh.size or mesh.size == 1:
        return accumulate(params, micro_batches, cotangents)

    # Data-parallel: each device adds up its own share of all micro-batches, and only then devices
    # add up theirs. Left to itself, XLA sums every micro-batch's gradient over all devices. It is
    # left to itself above, where parameters are split too, for there its partitioner fails on a
    # program that is manual over one axis of several.
    def of_one_device(params: Params, micro_batches: Views, cotangents: Outputs) -> Params:
        params = jax.lax.pcast(params, "data", to="varying")
        return jax.lax.psum(accumulate(params, micro_batches, cotangents), "data")

    scenes = PartitionSpec(None, None, "data")
    return jax.shard_map(
        of_one_device,
        in_specs=(PartitionSpec(), scenes, scenes),
        out_specs=PartitionSpec(),
        axis_names={"data"},
    )(params, micro_batches, cotangents)


def _split(tree: Any, steps: int) -> Any:
    """Leaves `[V, N, ...]` -> `[steps, V, N / steps, ...]`.

    Each micro-batch takes every `steps`-th scene, so a device that holds a run of scenes holds an
    equal share of each micro-batch, and none moves.
    """
    return jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(x.shape[0], -1, steps, *x.shape[2:]), 2, 0), tree
    )


def _merge(tree: Any) -> Any:
    """Undoes `_split`."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(x.shape[1], -1, *x.shape[3:]), tree)
