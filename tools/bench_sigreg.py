"""SIGReg side by side with its plain formulations in PyTorch and JAX, on the same cores.

    taskset -c 0,1 python tools/bench_sigreg.py [--quick]

Value and gradient with respect to the embeddings. Prints a Markdown table: medians of interleaved
rounds, ratios, the memory each needs beside its inputs, and how far ours is from its floor: two
matrix products, and one cosine and one sine per sample and slice. Needs torch.
"""

import argparse
import ctypes
import itertools
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from platojax.objectives.sigreg import random_directions, sigreg

T_MAX, KNOTS = 3.0, 17


def plain_torch(z: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The Epps-Pulley statistic as it is written (arXiv 2511.08544): a cosine and a sine a knot."""
    t = torch.linspace(0, T_MAX, KNOTS)
    weights = torch.full((KNOTS,), 2 * T_MAX / (KNOTS - 1))
    weights[[0, -1]] /= 2
    normal = torch.exp(-(t**2) / 2)
    angles = (z @ directions)[..., None] * t
    error = (angles.cos().mean(0) - normal) ** 2 + angles.sin().mean(0) ** 2
    return (error @ (weights * normal)).mean() * len(z)


def plain_jax(z: jax.Array, directions: jax.Array) -> jax.Array:
    """The same in JAX."""
    t = jnp.linspace(0, T_MAX, KNOTS)
    weights = jnp.full(KNOTS, 2 * T_MAX / (KNOTS - 1)).at[jnp.array([0, -1])].divide(2)
    normal = jnp.exp(-(t**2) / 2)
    angles = (z @ directions)[..., None] * t
    error = (jnp.cos(angles).mean(0) - normal) ** 2 + jnp.sin(angles).mean(0) ** 2
    return (error @ (weights * normal)).mean() * len(z)


def sides(n: int, dim: int, num_slices: int) -> dict[str, Callable[[], Any]]:
    """What is timed: each call computes to its end; the first three return value and gradient."""
    z = jax.random.normal(jax.random.key(0), (n, dim))
    directions = random_directions(jax.random.key(1), dim, num_slices)
    ours = jax.jit(jax.value_and_grad(lambda z, a: sigreg(z, a).mean()))
    plain = jax.jit(jax.value_and_grad(plain_jax))
    torch_z = torch.from_numpy(np.array(z)).requires_grad_()
    torch_directions = torch.from_numpy(np.array(directions))

    def theirs() -> tuple[Any, Any]:
        torch_z.grad = None
        value = plain_torch(torch_z, torch_directions)
        value.backward()
        return value.item(), torch_z.grad

    u = z @ directions
    forward = jax.jit(lambda z, a: z @ a)
    backward = jax.jit(lambda u, a: u @ a.T)
    waves = jax.jit(lambda u: (jnp.cos(u).sum(0), jnp.sin(u).sum(0)))
    return {
        "platojax": lambda: jax.block_until_ready(ours(z, directions)),
        "PyTorch": theirs,
        "plain JAX": lambda: jax.block_until_ready(plain(z, directions)),
        "products": lambda: jax.block_until_ready(
            (forward(z, directions), backward(u, directions))
        ),
        "waves": lambda: jax.block_until_ready(waves(u)),
    }


def interleaved_seconds(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Times every side once a round, so that other work on the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def extra_bytes(run: Callable[[], Any]) -> int:
    """By how much the process grows at most while `run` runs; Linux with glibc."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs freed and the allocator kept
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size again
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if field in line).split()[1]) * 1024


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    rounds = 3 if parser.parse_args().quick else 15
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    print(f"{threads} cores and as many threads for each library; {platform.machine()}, ", end="")
    print(f"jax {jax.__version__}, torch {torch.__version__}; median (minimum) of {rounds}.\n")
    print(
        "| N, D, slices | platojax, ms | PyTorch, ms | plain JAX, ms | ratio to PyTorch | to JAX ",
        end="",
    )
    print("| memory, MiB: ours, PyTorch, JAX | times the floor |")
    print("|---|---|---|---|---|---|---|---|")
    for n, dim, num_slices in itertools.product((256, 2048), (64, 256), (256, 1024)):
        runs = sides(n, dim, num_slices)
        results = {name: run() for name, run in runs.items()}  # compiles, and warms the caches
        for name in ("PyTorch", "plain JAX"):
            for got, want in zip(results["platojax"], results[name], strict=True):
                want = np.asarray(want)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
        memory = [extra_bytes(runs[name]) / 2**20 for name in ("platojax", "PyTorch", "plain JAX")]
        times = interleaved_seconds(runs, rounds)
        median = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        cells = [f"{median[m]:.2f} ({1e3 * min(times[m]):.2f})" for m in list(runs)[:3]]
        ratios = [median[name] / median["platojax"] for name in ("PyTorch", "plain JAX")]
        floor = median["products"] + median["waves"]
        cells += [f"{ratio:.1f}" for ratio in ratios]
        cells += [", ".join(f"{m:.0f}" for m in memory), f"{median['platojax'] / floor:.1f}"]
        print(f"| {n}, {dim}, {num_slices} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
