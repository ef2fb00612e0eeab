"""FLOPs of a function, counted in its jaxpr.

XLA's own count (`cost_analysis`) takes the body of a loop once, whatever its length, so a scanned
layer or an accumulated step would look cheaper than it is. Here a scan counts as often as it runs.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

# Of a matrix product: its operands' dtype, and the precision asked for ("default", "high",
# "highest"). Chips do them at different rates.
Kind = tuple[str, str]


def count_flops(function: Callable[..., Any], *args: Any) -> int:
    """Counts the FLOPs of a function's matrix products and convolutions.

    A multiplication and an addition are two. Everything else (norms, softmax, SIGReg's sines, the
    optimiser) is left out, as is usual in model FLOPs (PaLM, arXiv 2204.02311, appendix B), and so
    is what no output depends on, which XLA does not compute either.

    * Of `jax.value_and_grad(loss)` these are the model FLOPs of a step: forward and backward.
    * Recomputation under `jax.checkpoint` and a first pass of gradient accumulation count where
      they are in the function. For model FLOPs, give a function without them.
    * `scan` counts times its length, `cond` as its dearest branch, `shard_map` on all its devices.
      A `while_loop` counts once: its jaxpr does not say how often it runs.
    * Padding counts: masked tokens are multiplied all the same.

    Args:
      function: to be traced; jitted functions are looked into.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`.

    Returns:
      FLOPs of one call, over all devices together.
    """
    return sum(count_flops_by_kind(function, *args).values())


def count_flops_by_kind(function: Callable[..., Any], *args: Any) -> dict[Kind, int]:
    """As `count_flops`, separately for each dtype of the operands and each precision."""
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return dict(_count(jaxpr))


def _count(jaxpr: Jaxpr) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            total[_kind(eqn)] += _dot_general(eqn)
        elif name == "conv_general_dilated":
            total[_kind(eqn)] += _convolution(eqn)
        elif name == "cond":
            branches = [_count(branch.jaxpr) for branch in eqn.params["branches"]]
            dearest = max(branches, key=lambda branch: branch.total())
            total.update(dearest)
        else:
            times = _times(eqn)
            for inner in jaxprs_in_params(eqn.params):
                total.update({kind: times * flops for kind, flops in _count(inner).items()})
    return total


def _times(eqn: JaxprEqn) -> int:
    """How often the jaxprs inside an equation run, over all devices."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "shard_map":  # its jaxpr is one shard's
        shape = eqn.params["mesh"].shape
        return math.prod(shape[axis] for axis in eqn.params["newly_manual_axes"])
    return 1


def _kind(eqn: JaxprEqn) -> Kind:
    precision = eqn.params["precision"]
    if isinstance(precision, tuple):  # of both operands
        precision = max(precision, key=lambda one: one.value)
    name = "default" if precision is None else getattr(precision, "name", str(precision)).lower()
    return str(eqn.invars[0].aval.dtype), name  # type: ignore[attr-defined]


def _dot_general(eqn: JaxprEqn) -> int:
    (contract, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape  # type: ignore[attr-defined]
    out = eqn.outvars[0].aval.shape  # type: ignore[attr-defined]
    return 2 * math.prod(out) * math.prod(lhs[axis] for axis in contract)


def _convolution(eqn: JaxprEqn) -> int:
    kernel = eqn.invars[1].aval.shape  # type: ignore[attr-defined]
    out = eqn.outvars[0].aval.shape  # type: ignore[attr-defined]
    out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    # Of an input that is spread out with zeros, as in the gradient of a strided convolution, only
    # one element in the product of the spreads is there to be multiplied.
    spread = math.prod(eqn.params["lhs_dilation"])
    return 2 * math.prod(out) * math.prod(kernel) // out_features // spread
