"""The encoder of one of our own runs, frozen."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from platojax import sharding
from platojax.arm import Params, make_arm
from platojax.checkpoint import Checkpoints
from platojax.data.observations import TextCodec, resize
from platojax.data.sources import load_tokenizer
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import example_views
from platojax.encoders.frozen import Modality
from platojax.hashing import hash_items, hash_tree
from platojax.program import Program, make_program
from platojax.runs import find_run


@dataclasses.dataclass(frozen=True, eq=False)
class RunEncoder:
    """A `FrozenEncoder` over the parameters of a run.

    Attributes:
      name: of the run and its step.
      params: of the arm.
      layers: names of the layers that `encode` returns.
      config: of the run.
      codec: for texts.
      encode_layers: `(params, [B, ...]) -> [B, L', D]`, all L' layers of the arm.
      all_layers: their names.
      batch_size: observations at a time; a multiple of the devices.
      mesh: of the devices that compute.
    """

    name: str
    params: Params
    layers: tuple[str, ...]
    config: ConfigDict
    codec: TextCodec
    encode_layers: Callable[[Params, jax.Array], jax.Array]
    all_layers: tuple[str, ...]
    batch_size: int
    mesh: Mesh

    def at(self, step: int, params: Params, layers: tuple[str, ...]) -> "RunEncoder":
        """The encoder of the same run at another step; compiles nothing again.

        Args:
          step: of `params`.
          params: of the arm, as NumPy or on any devices.
          layers: that `encode` returns.
        """
        return dataclasses.replace(
            self,
            name=f"{self.name}, step {step}",
            params=jax.device_put(params, sharding.replicated(self.mesh)),
            layers=layers,
        )

    @property
    def modality(self) -> Modality:
        """Of the run."""
        return self.config.modality

    @functools.cached_property
    def weights_hash(self) -> str:
        """Of the encoder, its shape and its parameters; the projector does not count."""
        # With the objective, because next-token prediction's encoder is causal.
        fields = {name: v for name, v in self.config.encoder.items() if name != "remat"}
        shape = json.dumps([self.config.objective.name, fields])
        return hash_items([shape, hash_tree(self.params["encoder"])])

    @property
    def width(self) -> int:
        """D."""
        return self.config.encoder.width

    @property
    def dtype(self) -> str:
        """Of the computation."""
        return self.config.dtype

    @property
    def libraries(self) -> tuple[str, ...]:
        """The packages that compute."""
        return ("jax", "flax")

    @property
    def pooling(self) -> str:
        """How tokens or patches become one vector."""
        return "mean over patches or valid tokens; last_token: the last valid one"

    @property
    def preprocessing(self) -> str:
        """What `prepare` does."""
        if self.modality == "text":
            return (
                f"at most {self.config.encoder.max_length} tokens of tokenizer "
                f"{self.codec.tokenizer.hash[:12]}"
            )
        return f"resized to {self.config.encoder.image_size} pixels square, bilinear"

    def prepare(self, observation: Any) -> np.ndarray:
        """A text as padded token ids, an image as uint8 `[size, size, 3]`."""
        if self.modality == "text":
            return self.codec.encode_all([observation])[0]
        return resize(np.asarray(observation), self.config.encoder.image_size)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """See `FrozenEncoder`."""
        missing = self.batch_size - len(batch)
        padded = np.stack([*batch, *[batch[-1]] * missing])
        spread = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
        features = self.encode_layers(self.params, jax.device_put(padded, spread))
        chosen = [self.all_layers.index(name) for name in self.layers]
        return np.asarray(features)[: len(batch), chosen]


def make_run_encoder(
    name: str, config: ConfigDict, tokenizer: Tokenizer, params: Params, *, batch_size: int = 256
) -> RunEncoder:
    """The encoder with all its layers, on the devices of this process; see `RunEncoder.at`."""
    arm = make_arm(config, tokenizer)
    mesh = _local_mesh()
    return RunEncoder(
        name=name,
        params=params,
        layers=arm.layer_names,
        config=config,
        codec=TextCodec(tokenizer, config.encoder.get("max_length", 2)),
        encode_layers=jax.jit(lambda params, batch: arm.encode(params, batch)["layers"]),
        all_layers=arm.layer_names,
        batch_size=-(-batch_size // mesh.size) * mesh.size,
        mesh=mesh,
    )


def load_run_encoder(
    folder: pathlib.Path, *, untrained: int | None = None, batch_size: int = 256
) -> RunEncoder:
    """The encoder of a run at its last checkpoint, on all devices.

    Args:
      folder: `WORKDIR/RUN`.
      untrained: the seed of an encoder before its first step, instead; the run's own seed gives
        the run's own start.
      batch_size: observations at a time.

    Raises:
      ValueError: it is no folder of a run, or the run has no checkpoint that can be read.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    run = find_run(folder)
    tokenizer = load_tokenizer(run.config.data)
    if untrained is not None:
        params = _program(run.config, tokenizer).init(np.uint32(untrained)).params
        name = f"{run.arm}, untrained {untrained}"
    else:
        step, params = restore_params(run.config, tokenizer, folder / "checkpoints")
        name = f"{run.name}, step {step}"
    return make_run_encoder(name, run.config, tokenizer, params, batch_size=batch_size)


def restore_params(
    config: ConfigDict, tokenizer: Tokenizer, checkpoints: pathlib.Path
) -> tuple[int, Params]:
    """The step and the parameters of the last checkpoint, whole on each device.

    Args:
      config: of the run.
      tokenizer: of the run.
      checkpoints: the folder, of which nothing is changed.

    Raises:
      ValueError: it holds no whole checkpoint.
    """
    manager = Checkpoints.to_read(checkpoints.resolve()) if checkpoints.is_dir() else None
    if manager is None or not (steps := manager.steps()):
        raise ValueError(f"{checkpoints} holds no whole checkpoint; train the run to its end")
    program = _program(config, tokenizer)
    try:
        return steps[0], manager.restore(steps[0], program.state).params
    finally:
        manager.close()


def _program(config: ConfigDict, tokenizer: Tokenizer) -> Program:
    """The program of the run, for its state: whole on each device of this process."""
    example = example_views(config.views, config.encoder)
    return make_program(config, tokenizer, example, _local_mesh())


def _local_mesh() -> Mesh:
    # Wherever a run is trained, its frozen encoder is evaluated by one process on its devices.
    return sharding.make_mesh(devices=jax.local_devices())
