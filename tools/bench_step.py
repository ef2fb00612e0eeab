"""A whole LeJEPA training step side by side with the same step in PyTorch, on the same cores.

    taskset -c 0,1 python tools/bench_step.py [--case text|image] [--quick]
        [--captions FIRST.gz SECOND.gz]

Forward, loss, backward, clipping and AdamW. The PyTorch model below is ours: it starts from our
parameters, and its first losses must equal ours before anything is timed. Its attention is fused
(scaled_dot_product_attention) and so is its AdamW. Text is also timed packed; the lengths of the
texts are drawn around 20 tokens, or those of real captions: two files whose lines i describe the
same image. Prints a Markdown table, medians of interleaved rounds; and how long the matrix products
alone take at the fastest rate of any that either library reaches here, which no step can go below.
The memory allocator matters: LD_PRELOAD=libtcmalloc_minimal.so.4 is another one. Needs torch.
"""

import argparse
import contextlib
import gzip
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from ml_collections import ConfigDict
from torch import nn

from platojax import sharding
from platojax.data.observations import TextCodec
from platojax.data.packing import Packing
from platojax.data.tokenizer import Tokenizer, train_tokenizer
from platojax.flops import count_flops
from platojax.objectives.sigreg import random_directions
from platojax.optimizer import learning_rate_schedule
from platojax.program import make_program, total_steps

VOCABULARY = 8192
OPTIMIZER = dict(learning_rate=1e-3, warmup_fraction=0.1, weight_decay=0.05, clip_norm=1.0, b2=0.95)
LEJEPA = dict(name="lejepa", lam=0.05, num_slices=1024, projector_dim=64)
PACKING = dict(group_size=256, rows=60, row_length=96)
CASES = {
    "text": dict(
        modality="text",
        batch_size=256,
        encoder=dict(width=256, depth=6, num_heads=4, mlp_dim=1024, max_length=32),
        objective=dict(projector_hidden=(256,), **LEJEPA),
    ),
    "image": dict(
        modality="image",
        batch_size=64,
        encoder=dict(width=384, depth=12, num_heads=6, mlp_dim=1536, patch_size=16, image_size=64),
        objective=dict(projector_hidden=(384,), **LEJEPA),
    ),
}


class Vocabulary:
    """What our encoder asks of a tokenizer."""

    vocab_size = VOCABULARY
    pad_id = 0


class Block(nn.Module):
    """The pre-norm block."""

    def __init__(self, width: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention, self.norm_mlp = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, mlp_dim), nn.Linear(mlp_dim, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """`[B, T, D]` -> `[B, T, D]`."""
        heads = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_mlp(x))))


class TorchModel(nn.Module):
    """Our encoder and projector, with the parameters given."""

    def __init__(self, config: ConfigDict, params: dict[str, Any]) -> None:
        super().__init__()
        shape, encoder = config.encoder, params["encoder"]
        self.width = shape.width
        if config.modality == "text":
            self.tokens = nn.Embedding(VOCABULARY, shape.width)
            fill(self.tokens.weight, encoder["tokens"]["embedding"])
            self.positions = nn.Parameter(torch.from_numpy(np.array(encoder["positions"])))
        else:
            from platojax.encoders.transformer import sincos_positions

            side = shape.image_size // shape.patch_size
            self.patches = nn.Conv2d(3, shape.width, shape.patch_size, shape.patch_size)
            fill(self.patches.weight, encoder["patches"]["kernel"].transpose(3, 2, 0, 1))
            fill(self.patches.bias, encoder["patches"]["bias"])
            grid = torch.from_numpy(sincos_positions(side, side, shape.width))
            self.register_buffer("grid", grid)
        transformer = encoder["transformer"]
        self.blocks = nn.ModuleList()
        for i in range(shape.depth):
            block, ours = (
                Block(shape.width, shape.num_heads, shape.mlp_dim),
                transformer[f"block_{i}"],
            )
            for name in ("norm_attention", "norm_mlp"):
                copy_norm(getattr(block, name), ours[name])
            for name in ("out", "mlp_in", "mlp_out"):
                copy_dense(getattr(block, name), ours[name])
            parts = [ours[name] for name in ("query", "key", "value")]
            kernels = [part["kernel"].reshape(shape.width, -1) for part in parts]
            fill(block.qkv.weight, np.concatenate(kernels, axis=1).T)
            fill(block.qkv.bias, np.concatenate([part["bias"].reshape(-1) for part in parts]))
            self.blocks.append(block)
        self.norm = nn.LayerNorm(shape.width, eps=1e-6)
        copy_norm(self.norm, transformer["norm"])
        hidden = config.objective.projector_hidden[0]
        self.hidden, self.projection = nn.Linear(shape.width, hidden), nn.Linear(hidden, 64)
        copy_dense(self.hidden, params["projector"]["dense_0"])
        copy_dense(self.projection, params["projector"]["out"])
        self.batch_norm = nn.BatchNorm1d(hidden, eps=1e-5, track_running_stats=False)
        copy_norm(self.batch_norm, params["projector"]["norm_0"])

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """`[V, N, ...]` views -> `[V, N, 64]` projections."""
        x, mask = views.flatten(0, 1), None
        if views.ndim == 3:
            valid = x != Vocabulary.pad_id
            x, mask = self.tokens(x) + self.positions, valid[:, None, None]
        else:
            pixels = x.permute(0, 3, 1, 2).float() / 127.5 - 1
            x = self.patches(pixels).flatten(2).transpose(1, 2) + self.grid
            valid = torch.ones(x.shape[:2], dtype=torch.bool)
        for block in self.blocks:
            x = block(x, mask)
        weights = valid[..., None].float()
        pooled = (self.norm(x).float() * weights).sum(1) / weights.sum(1)
        z = F.gelu(self.batch_norm(self.hidden(pooled)), approximate="tanh")
        return self.projection(z).float().unflatten(0, views.shape[:2])


def fill(parameter: torch.Tensor, value: np.ndarray) -> None:
    """Copies an array of the same shape."""
    with torch.no_grad():
        assert parameter.shape == value.shape
        parameter.copy_(torch.from_numpy(np.array(value)))


def copy_norm(module: Any, ours: dict[str, Any]) -> None:
    """Copies scale and bias."""
    fill(module.weight, ours["scale"])
    fill(module.bias, ours["bias"])


def copy_dense(module: nn.Linear, ours: dict[str, Any]) -> None:
    """Copies a dense layer, from or to several heads or not."""
    fill(module.weight, ours["kernel"].reshape(-1, module.out_features).T)
    fill(module.bias, ours["bias"])


def torch_loss(z: torch.Tensor, directions: torch.Tensor, lam: float) -> torch.Tensor:
    """LeJEPA's loss as it is written (arXiv 2511.08544)."""
    prediction = (z - z.mean(0)).square().mean()
    t = torch.linspace(0, 3, 17)
    weights = torch.full((17,), 3 / 8)
    weights[[0, -1]] /= 2
    normal = torch.exp(-(t**2) / 2)
    angles = (z @ directions)[..., None] * t
    error = (angles.cos().mean(1) - normal) ** 2 + angles.sin().mean(1) ** 2
    sigreg = (error @ (weights * normal)).mean() * z.shape[1]
    return (1 - lam) * prediction + lam * sigreg


def torch_step(
    config: ConfigDict, params: dict[str, Any], views: np.ndarray
) -> Callable[..., float]:
    """The step in PyTorch: `directions=None -> loss`, drawing its own where None."""
    model = TorchModel(config, params)
    decayed = [
        m.weight for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding | nn.Conv2d)
    ]
    rest = [p for p in model.parameters() if not any(p is d for d in decayed)]
    groups = [
        dict(params=decayed, weight_decay=config.optimizer.weight_decay),
        dict(params=rest, weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, config.optimizer.b2), fused=True)
    schedule = learning_rate_schedule(config.optimizer, total_steps(config))
    rates = [float(schedule(step)) for step in range(100)]
    batch, count = torch.from_numpy(views), 0
    half = config.dtype == "bfloat16"

    def step(directions: np.ndarray | None = None) -> float:
        nonlocal count
        if directions is None:
            drawn = F.normalize(torch.randn(64, config.objective.num_slices), dim=0)
        else:
            drawn = torch.from_numpy(directions)
        with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
            z = model(batch)
        loss = torch_loss(z, drawn, config.objective.lam)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rates[count]
        optimizer.step()
        count += 1
        return loss.item()

    return step


class OurStep:
    """Our step: the program that `train` runs."""

    def __init__(self, config: ConfigDict, example: np.ndarray, views: Any) -> None:
        mesh = sharding.make_mesh()
        self.program = make_program(config, Vocabulary(), example, mesh)
        self.state = self.program.init(np.uint32(0))
        self.views = jax.device_put(views, sharding.batch_sharding(mesh))

    def __call__(self) -> float:
        """One step; its loss."""
        self.state, metrics = self.program.step(self.state, self.views)
        return float(jax.block_until_ready((self.state, metrics))[1]["loss"])

    def directions(self, config: ConfigDict) -> np.ndarray:
        """Those of the next step."""
        key = jax.random.fold_in(self.state.key, self.state.step)
        return np.array(random_directions(key, 64, config.objective.num_slices))


def make_views(config: ConfigDict, captions: Sequence[str] | None) -> np.ndarray:
    """Two views of a batch: noise, as only sizes matter, or real captions."""
    rng, n = np.random.default_rng(0), config.batch_size
    if config.modality == "image":
        size = config.encoder.image_size
        return rng.integers(0, 256, (2, n, size, size, 3)).astype(np.uint8)
    length = config.encoder.max_length
    if captions is None:
        lengths = np.clip(rng.normal(20, 5.5, (2, n, 1)).round(), 3, length)
        tokens = rng.integers(1, VOCABULARY, (2, n, length))
        return np.where(np.arange(length) < lengths, tokens, Vocabulary.pad_id).astype(np.int32)
    texts = [
        gzip.decompress(pathlib.Path(path).read_bytes()).decode().splitlines() for path in captions
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.model"
        train_tokenizer([text for side in texts for text in side], path, vocab_size=VOCABULARY)
        codec = TextCodec(Tokenizer(path), length)
    return np.stack([codec.encode_all(side[:n]) for side in texts])


def fastest_product() -> float:
    """FLOPs a second of the fastest float32 matrix product, in either library."""
    best = 0.0
    for m, k, n in ((2048, 2048, 2048), (2048, 384, 1536), (16384, 1024, 256)):
        ours = jax.jit(jnp.matmul), jnp.ones((m, k)), jnp.ones((k, n))
        theirs = torch.matmul, torch.ones(m, k), torch.ones(k, n)
        for multiply, a, b in (ours, theirs):
            for _ in range(10):
                start = time.perf_counter()
                jax.block_until_ready(multiply(a, b))
                best = max(best, 2 * m * k * n / (time.perf_counter() - start))
    return best


def bench(name: str, rounds: int, captions: Sequence[str] | None) -> None:
    """One case: compares the first losses, then times all sides in turns."""
    base = dict(CASES[name], optimizer=OPTIMIZER, accumulation_steps=1, num_samples=2**16)
    full, half = (ConfigDict(dict(base, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    views = make_views(full, captions)
    sides: dict[str, Any] = {}
    for label, config in (("float32", full), ("bfloat16", half)):
        ours = OurStep(config, views[:, :1], views)
        theirs = torch_step(config, jax.device_get(ours.state.params), views)
        losses = []
        for _ in range(3):  # ours first compiles; the directions are those that it will draw
            directions = ours.directions(config)
            losses.append((ours(), theirs(directions)))
        tolerance = 1e-4 if config is full else 3e-2
        np.testing.assert_allclose(*zip(*losses, strict=True), rtol=tolerance)
        print(f"First losses, {label}, ours and PyTorch's: {losses}", flush=True)
        sides[f"platojax, {label}"], sides[f"PyTorch, {label}"] = ours, theirs
    if name == "text":
        packing = Packing(**PACKING)
        packed = packing.pack(views, Vocabulary.pad_id)
        config = ConfigDict(dict(base, dtype="float32", packing=PACKING))
        sides["platojax, float32, packed"] = OurStep(config, views[:, :1], packed)
        sides["platojax, float32, packed"]()
        used, valid = packed["tokens"][0].size / views[0].size, (views != 0).mean()
        print(f"Texts fill {valid:.0%} of their rows; packed they take {used:.0%} of the tokens,")
        print(f"and {packed['cut'].sum()} of {(views != 0).sum()} tokens are cut: {packing}.")
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, step in sides.items():
            start = time.perf_counter()
            step()
            times[side].append(time.perf_counter() - start)
    median = {side: 1e3 * statistics.median(values) for side, values in times.items()}
    print(
        f"\n| {name}, {full.batch_size} scenes, 2 views | median, ms | minimum, ms "
        "| PyTorch of that dtype / this |"
    )
    print("|---|---|---|---|")
    for side in sides:
        reference = median["PyTorch, " + side.split(", ")[1]]
        print(
            f"| {side} | {median[side]:.0f} | {1e3 * min(times[side]):.0f} "
            f"| {reference / median[side]:.2f} |",
            flush=True,
        )
    print()
    rate = fastest_product()
    for side in ("platojax, float32", "platojax, float32, packed"):
        if side in sides:
            ours = sides[side]
            flops = count_flops(ours.program.step, ours.state, ours.views)
            print(
                f"{side}: {flops / 1e9:.0f} GFLOP of matrix products, {1e3 * flops / rate:.0f} ms "
                f"at the {rate / 1e9:.0f} GFLOP/s of the fastest one here."
            )


def main() -> None:
    """Prints a table for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=list(CASES), help="one of them only")
    parser.add_argument("--captions", nargs=2, metavar="FILE", help="gzip, one caption a line")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    print(f"{threads} cores and as many threads for each library; {platform.machine()}, ", end="")
    rounds = 2 if arguments.quick else 9
    print(
        f"jax {jax.__version__}, torch {torch.__version__}; {rounds} interleaved rounds; ", end=""
    )
    print(f"LD_PRELOAD={os.environ.get('LD_PRELOAD', '')!r}.\n")
    for name in [arguments.case] if arguments.case else CASES:
        bench(name, rounds, arguments.captions)


if __name__ == "__main__":
    main()
