"""Where arrays live: one mesh, and rules that place parameters on it."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Rules = Sequence[tuple[str, tuple[str | None, ...]]]

# (regular expression on the parameter's path, mesh axis of each dimension). The first that matches
# counts; a parameter that none matches is replicated. The optimiser's moments follow their
# parameters, whose path ends theirs.
RULES: Rules = (
    (r"/(query|key|value)/kernel$", ("fsdp", "model", None)),
    (r"/(query|key|value)/bias$", ("model", None)),
    (r"/out/kernel$", ("model", None, "fsdp")),
    (r"/(mlp_in|mlp_gate)/kernel$", ("fsdp", "model")),
    (r"/(mlp_in|mlp_gate)/bias$", ("model",)),
    (r"/mlp_out/kernel$", ("model", "fsdp")),
    (r"/tokens/embedding$", ("model", "fsdp")),
    (r"/patches/kernel$", (None, None, None, "fsdp")),
    (r"projector/dense_\d+/kernel$", (None, "fsdp")),
)
BATCH_AXES = ("data", "fsdp")


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    model: int = 1,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Makes the mesh with axes `data`, `fsdp` and `model`.

    The batch is split over `data` and `fsdp`, the parameters over `fsdp` and, by heads, hidden
    units and vocabulary, over `model`.

    Args:
      data: size of the data axis; -1 takes the devices that the others leave.
      fsdp: size of the fsdp axis.
      model: size of the model axis; the devices of one process must hold it.
      devices: all devices of all processes where None.

    Raises:
      ValueError: if the sizes do not multiply to the number of devices, or the model axis spans
        processes.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if fsdp < 1 or model < 1 or count % (fsdp * model):
        raise ValueError(
            f"mesh.fsdp {fsdp} x mesh.model {model} must be positive and divide the {count} "
            "devices."
        )
    if data == -1:
        data = count // (fsdp * model)
    if data * fsdp * model != count:
        raise ValueError(
            f"mesh.data {data} x mesh.fsdp {fsdp} x mesh.model {model} does not equal the {count} "
            "devices; set mesh.data to -1 or to their quotient."
        )
    # Auto: jax's default since 0.8.1, Explicit, refuses embeddings of a sharded batch.
    mesh = jax.make_mesh(
        (data, fsdp, model),
        ("data", "fsdp", "model"),
        axis_types=(AxisType.Auto,) * 3,
        devices=devices,
    )
    check_model_axis(mesh.devices.reshape(-1, model))
    return mesh


def check_model_axis(groups: np.ndarray) -> None:
    """Raises ValueError where devices that share scenes are of several processes.

    Each process makes its own scenes of a batch.

    Args:
      groups: `[data * fsdp, model]` devices.
    """
    for group in groups:
        if len({device.process_index for device in group}) > 1:
            raise ValueError(
                f"mesh.model {len(group)} spans several processes; the devices of one process must "
                "hold it. Lower mesh.model, or use mesh.fsdp."
            )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For views `[V, N, ...]`: scenes over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on each device."""
    return NamedSharding(mesh, PartitionSpec())


def tree_shardings(tree: Any, mesh: Mesh) -> Any:
    """Gives each array of a tree (a train state, say) its sharding by `RULES`.

    A dimension that its mesh axis does not divide stays whole.

    Args:
      tree: of arrays or `jax.ShapeDtypeStruct`.
      mesh: from `make_mesh`.

    Returns:
      The same tree of `NamedSharding`.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, axes in RULES:
            if re.search(pattern, name) and len(axes) == len(leaf.shape):
                fits = (
                    axis if axis and size % mesh.shape[axis] == 0 else None
                    for axis, size in zip(axes, leaf.shape, strict=True)
                )
                return NamedSharding(mesh, PartitionSpec(*fits))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, tree)
