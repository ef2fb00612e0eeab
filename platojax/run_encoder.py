"""The encoder of one of our own runs, frozen."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from platojax import sharding
from platojax.arm import Params, make_arm
from platojax.checkpoint import Checkpoints
from platojax.data.observations import TextCodec, resize
from platojax.data.pipeline import stack_views
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, load_emoji
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import make_views
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
      placement: of a batch on the devices.
    """

    name: str
    params: Params
    layers: tuple[str, ...]
    config: ConfigDict
    codec: TextCodec
    encode_layers: Callable[[Params, jax.Array], jax.Array]
    all_layers: tuple[str, ...]
    batch_size: int
    placement: NamedSharding

    @property
    def modality(self) -> Modality:
        """Of the run."""
        return self.config.modality

    @functools.cached_property
    def weights_hash(self) -> str:
        """Of the encoder, its shape and its parameters; the projector does not count."""
        # With the objective, because next-token prediction's encoder is causal.
        shape = json.dumps([self.config.objective.name, self.config.encoder.to_dict()])
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
            return self.codec.pad(self.codec.ids([observation]))
        return resize(np.asarray(observation), self.config.encoder.image_size)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """See `FrozenEncoder`."""
        missing = self.batch_size - len(batch)
        padded = np.stack([*batch, *[batch[-1]] * missing])
        features = self.encode_layers(self.params, jax.device_put(padded, self.placement))
        chosen = [self.all_layers.index(name) for name in self.layers]
        return np.asarray(features)[: len(batch), chosen]


def make_run_encoder(
    name: str, config: ConfigDict, tokenizer: Tokenizer, params: Params, *, batch_size: int = 256
) -> RunEncoder:
    """The encoder with all its layers.

    For another step of the same run use `dataclasses.replace` of `name` and `params`, which
    compiles nothing again.
    """
    arm = make_arm(config, tokenizer)
    mesh = sharding.make_mesh(**config.mesh)
    return RunEncoder(
        name=name,
        params=params,
        layers=arm.layer_names,
        config=config,
        codec=TextCodec(tokenizer, config.encoder.get("max_length", 2)),
        encode_layers=jax.jit(lambda params, batch: arm.encode(params, batch)["layers"]),
        all_layers=arm.layer_names,
        batch_size=-(-batch_size // mesh.size) * mesh.size,
        placement=NamedSharding(mesh, PartitionSpec(mesh.axis_names)),
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
    # Wherever it was trained, it is evaluated on the devices that are there.
    config = ConfigDict({**run.config, "mesh": {"data": -1, "fsdp": 1, "model": 1}})
    tokenizer = Tokenizer(EMOJI_TOKENIZER)
    scene = load_emoji("train")[0]
    if untrained is not None:
        params = _program(config, tokenizer, scene).init(np.uint32(untrained)).params
        name = f"{run.arm}, untrained {untrained}"
    else:
        step, params = restore_params(config, tokenizer, scene, folder / "checkpoints")
        name = f"{run.name}, step {step}"
    return make_run_encoder(name, config, tokenizer, params, batch_size=batch_size)


def restore_params(
    config: ConfigDict, tokenizer: Tokenizer, scene: Scene, checkpoints: pathlib.Path
) -> tuple[int, Params]:
    """The step and the parameters of the last checkpoint, whole on each device.

    Args:
      config: of the run.
      tokenizer: of the run.
      scene: any of the run's; only what its views look like matters.
      checkpoints: the folder, of which nothing is changed.

    Raises:
      ValueError: it holds no whole checkpoint.
    """
    manager = Checkpoints.to_read(checkpoints.resolve()) if checkpoints.is_dir() else None
    step = manager.latest_step() if manager is not None else None
    if manager is None or not step:
        raise ValueError(f"{checkpoints} holds no whole checkpoint; train the run to its end")
    program = _program(config, tokenizer, scene)
    try:
        return step, manager.restore(step, program.state).params
    finally:
        manager.close()


def _program(config: ConfigDict, tokenizer: Tokenizer, scene: Scene) -> Program:
    """The program of the run, for its state."""
    views = make_views(config.views, config.encoder, tokenizer)
    example = stack_views([views(scene, np.random.default_rng(config.seed))])
    return make_program(config, tokenizer, example, sharding.make_mesh(**config.mesh))
