"""The standard set: the numbers of docs/theory.md."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from platojax.theory import cases, measures


def run_standard_set(
    seed: int, on_row: Callable[[dict[str, Any]], None] = lambda row: None
) -> dict[str, Any]:
    """Solves, trains and measures the standard set.

    Args:
      seed: draws the worlds and starts the trainings.
      on_row: called with each row as it is done, see `measure`.

    Returns:
      JSON-ready: `rows`, `nuisance_sweep`, `phase_sweep`, `training` and how it was run.
    """
    start = time.perf_counter()
    standard = cases.standard_cases(seed)
    rows = []
    for case in standard:
        rows.append(measures.measure(case, seed))
        on_row(rows[-1])
    by_name = {case.name: case.world for case in standard}
    entangled = by_name[f"nuisance {cases.NUISANCE_WEIGHTS[-1]:g}"]
    independent = cases.independent_nuisance_world(entangled.scene_law)
    curves = {
        f"{weight:g}": measures.training_curve(
            dataclasses.replace(entangled, nuisance_weight=weight), cases.DIM, seed
        )
        for weight in (0.0, 0.1, 0.3)
    }
    return {
        "seed": seed,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "rows": rows,
        "nuisance_sweep": measures.nuisance_sweep(
            entangled, cases.DIM, np.geomspace(0.003, 0.8, 40)
        ),
        "phase_sweep": measures.phase_sweep(independent, cases.DIM, np.linspace(0.0, 0.8, 161)),
        "training": curves,
        "seconds": time.perf_counter() - start,
    }
