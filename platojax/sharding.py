"""Where arrays live: one mesh, and rules that place parameters on it."""

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Rules = Sequence[tuple[str, tuple[str | None, ...]]]

# (regular expression on the parameter's path, mesh axis of each dimension). The first that matches
# counts; a parameter that none matches is replicated. The optimiser's moments follow their
# parameters, whose path ends theirs.
RULES: Rules = (
    (r"/(query|key|value)/kernel$", ("fsdp", None, None)),
    (r"/out/kernel$", (None, None, "fsdp")),
    (r"/mlp_in/kernel$", ("fsdp", None)),
    (r"/mlp_out/kernel$", (None, "fsdp")),
    (r"/tokens/embedding$", (None, "fsdp")),
    (r"/patches/kernel$", (None, None, None, "fsdp")),
    (r"projector/dense_\d+/kernel$", (None, "fsdp")),
)


def make_mesh(data: int = -1, fsdp: int = 1) -> Mesh:
    """Makes the mesh with axes `data` and `fsdp` over all devices of all processes.

    The batch is split over both axes, the parameters over `fsdp`.

    Args:
      data: size of the data axis; -1 takes the devices that `fsdp` leaves.
      fsdp: size of the fsdp axis.

    Raises:
      ValueError: if the sizes do not multiply to the number of devices.
    """
    devices = jax.device_count()
    if fsdp < 1 or devices % fsdp:
        raise ValueError(f"mesh.fsdp {fsdp} must divide the {devices} devices.")
    if data == -1:
        data = devices // fsdp
    if data * fsdp != devices:
        raise ValueError(
            f"mesh.data {data} x mesh.fsdp {fsdp} does not equal the {devices} devices; "
            "set mesh.data to -1 or to their quotient."
        )
    # Auto: jax's default since 0.8.1, Explicit, refuses embeddings of a sharded batch.
    return jax.make_mesh((data, fsdp), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For views `[V, N, ...]`: scenes over all devices."""
    return NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))


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
