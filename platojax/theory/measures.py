"""One world measured: the closed form, what training reaches, residuals and bounds.

Residuals, bounds and their ceilings are per dimension here, so that worlds of different width
compare: 0 is equal up to a rotation, 2 is nothing in common.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from platojax.theory import spectral, training
from platojax.theory.cases import Case, phase_changes
from platojax.theory.world import World

_ENCODERS = {"tabular": training.tabular_encoder, "mlp": training.mlp_encoder}


def measure(case: Case, seed: int) -> dict[str, Any]:
    """Solves and trains one case.

    Returns:
      JSON-ready numbers. `gap`, `predicted_loss`, `observations` have one entry per modality;
      `trained_loss`, `largest_angle` (degrees) one list over seeds per modality; residuals and
      bounds are the worst over pairs of modalities, where trained with one entry per seed, per
      dimension. `None` where theory says nothing: residual without an eigengap, bound without
      good optima that agree.
    """
    modalities = range(len(case.world.channels))
    laws = [case.world.pair_law(m) for m in modalities]
    optima = [spectral.spectral_optimum(law, case.dim) for law in laws]
    unique = all(spectral.is_unique(values, case.dim) for _, values in optima)
    solved = [features for features, _ in optima]
    raw = [_train(case, m, seed) for m in modalities]
    # [modality][seed] -> [X, d]
    trained = [[spectral.whiten(f, case.world.marginal(m)) for f in raw[m]] for m in modalities]

    row: dict[str, Any] = {
        "name": case.name,
        "encoder": case.encoder,
        "objective": case.objective,
        "num_seeds": case.num_seeds,
        "scenes": len(case.world.prior),
        "observations": [channel.shape[1] for channel in case.world.channels],
        "nuisance_weight": case.world.nuisance_weight,
        "dim": case.dim,
        "gap": [spectral.eigengap(values, case.dim) for _, values in optima],
        "unique": unique,
        "predicted_loss": [spectral.optimal_loss(values, case.dim) for _, values in optima],
        "trained_loss": [[spectral.pair_loss(f, laws[m]) for f in trained[m]] for m in modalities],
        "largest_angle": [
            [float(np.degrees(np.max(_angles(case.world, m, f, solved[m])))) for f in trained[m]]
            for m in modalities
        ],
        "predicted_residual": compare(case.world, solved) if unique else None,
        "trained_residual": [
            compare(case.world, [trained[m][s] for m in modalities]) for s in range(case.num_seeds)
        ],
        "between_seeds": [
            max(
                spectral.procrustes_residual(a, b, case.world.marginal(m)) / case.dim
                for a, b in itertools.combinations(trained[m], 2)
            )
            for m in modalities
        ],
        "predicted_bound": None,
        "trained_bound": None,
    }
    if optima_agree(case.world, case.dim):
        row["good_gap"] = [_good_gap(case.world, m, case.dim) for m in modalities]
        row["predicted_sin2"] = [_sin2(case.world, m, solved[m]) for m in modalities]
        row["sin2_bound"] = [
            spectral.misalignment_bound(solved[m], case.world.good_law(m)) for m in modalities
        ]
        row["predicted_bound"] = bound(case.world, solved)
        row["trained_bound"] = [
            bound(case.world, [trained[m][s] for m in modalities]) for s in range(case.num_seeds)
        ]
    if case.objective == "lejepa":
        row["lejepa"] = [
            _account(raw[m], solved[m], laws[m], case.world.marginal(m), seed) for m in modalities
        ]
    return row


def compare(any_world: World, features: list[np.ndarray]) -> dict[str, float]:
    """Returns the worst residual over pairs of modalities, per dimension, at both levels.

    Args:
      any_world: the world.
      features: for each modality `[X_m, d]`, whitened.

    Returns:
      `{"observation", "scene"}`, each between 0 and 2.
    """
    observation, scene = [], []
    for m, n in itertools.combinations(range(len(features)), 2):
        cross_law = any_world.cross_law(m, n)
        residual = spectral.observation_residual(features[m], features[n], cross_law)
        observation.append(residual / features[m].shape[1])
        channels = any_world.channels[m], any_world.channels[n]
        scene.append(spectral.scene_residual(features[m], features[n], *channels, any_world.prior))
    return {"observation": max(observation), "scene": max(scene)}


def bound(any_world: World, features: list[np.ndarray]) -> float:
    """Returns the bound on `compare`'s observation residual that the losses imply."""
    bounds = [spectral.misalignment_bound(f, any_world.good_law(m)) for m, f in enumerate(features)]
    dim = features[0].shape[1]
    return max(spectral.cross_modal_bound(*two) for two in itertools.combinations(bounds, 2)) / dim


def optima_agree(any_world: World, dim: int) -> bool:
    """Tells whether the good optima of all modalities are unique and equal up to a rotation."""
    optima = [
        spectral.spectral_optimum(any_world.good_law(m), dim)
        for m in range(len(any_world.channels))
    ]
    if not all(spectral.is_unique(values, dim) for _, values in optima):
        return False
    return compare(any_world, [features for features, _ in optima])["observation"] < 1e-9


def nuisance_sweep(entangled: World, dim: int, weights: np.ndarray) -> dict[str, list[float]]:
    """Solves a world at many nuisance weights: residual, our bound and Davis and Kahan's."""
    sweep: dict[str, list[float]] = {"weight": weights.tolist()}
    for name in ("residual", "bound", "davis_kahan"):
        sweep[name] = []
    for weight in weights:
        bad = dataclasses.replace(entangled, nuisance_weight=float(weight))
        modalities = range(len(bad.channels))
        solved = [spectral.spectral_optimum(bad.pair_law(m), dim)[0] for m in modalities]
        sweep["residual"].append(compare(bad, solved)["observation"])
        sweep["bound"].append(bound(bad, solved))
        rival = [
            spectral.davis_kahan_bound(bad.good_law(m), bad.pair_law(m), dim) for m in modalities
        ]
        sweep["davis_kahan"].append(spectral.cross_modal_bound(*rival) / dim)
    return sweep


def phase_sweep(independent: World, dim: int, weights: np.ndarray) -> dict[str, Any]:
    """Solves a world of independent nuisance at many weights: eigenvalues by kind, and residual."""
    modalities = range(len(independent.channels))
    _, scene = spectral.spectral_optimum(independent.good_law(0), dim)
    _, nuisance = spectral.spectral_optimum(independent.nuisance_laws[0], 1)
    residual = []
    for weight in weights:
        bad = dataclasses.replace(independent, nuisance_weight=float(weight))
        solved = [spectral.spectral_optimum(bad.pair_law(m), dim)[0] for m in modalities]
        residual.append(compare(bad, solved)["observation"])
    return {
        "weight": weights.tolist(),
        "residual": residual,
        "changes": phase_changes(independent, dim).tolist(),
        "scene_eigenvalues": scene[: dim + 1].tolist(),
        "nuisance_eigenvalues": nuisance[nuisance > 1e-9].tolist(),
    }


def training_curve(two: World, dim: int, seed: int, num_seeds: int = 3) -> dict[str, Any]:
    """Trains two modalities and follows residual and bound from the first step to the last.

    Returns:
      `{"steps": [R], "residual": [R, seeds], "bound": [R, seeds], "predicted"}`, per dimension.
    """
    records = np.unique(np.geomspace(1, 1000, 28).astype(int)).tolist()
    modalities = range(len(two.channels))
    runs = [
        training.train_whitened(
            training.tabular_encoder(two.channels[m].shape[1], dim),
            two.pair_law(m),
            seeds=_seeds(seed, m, num_seeds),
            records=[0, *records],
        )
        for m in modalities
    ]
    residual, bounds = [], []
    for r, s in itertools.product(range(len(runs[0].steps)), range(num_seeds)):
        features = [spectral.whiten(runs[m].features[r, s], two.marginal(m)) for m in modalities]
        residual.append(compare(two, features)["observation"])
        bounds.append(bound(two, features))
    solved = [spectral.spectral_optimum(two.pair_law(m), dim)[0] for m in modalities]
    shape = (len(runs[0].steps), num_seeds)
    return {
        "steps": runs[0].steps.tolist(),
        "residual": np.reshape(residual, shape).tolist(),
        "bound": np.reshape(bounds, shape).tolist(),
        "predicted": compare(two, solved)["observation"],
    }


def _seeds(seed: int, modality: int, num_seeds: int) -> range:
    """Seeds that no two modalities or seeds of a run share."""
    first = 1000 * seed + 100 * modality
    return range(first, first + num_seeds)


def _train(case: Case, modality: int, seed: int) -> np.ndarray:
    """`[seeds, X, d]` the features that one modality learns, not whitened."""
    encoder = _ENCODERS[case.encoder](case.world.channels[modality].shape[1], case.dim)
    seeds = _seeds(seed, modality, case.num_seeds)
    law = case.world.pair_law(modality)
    if case.objective == "whitening":
        return training.train_whitened(encoder, law, seeds=seeds).final
    return training.train_lejepa(encoder, law, seeds=seeds).final


def _angles(any_world: World, modality: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return spectral.principal_angles(first, second, any_world.marginal(modality))


def _sin2(any_world: World, modality: int, features: np.ndarray) -> float:
    """Sum of sin^2 of the angles to the optimum of good pairs."""
    good, _ = spectral.spectral_optimum(any_world.good_law(modality), features.shape[1])
    return float(np.sum(np.sin(_angles(any_world, modality, features, good)) ** 2))


def _good_gap(any_world: World, modality: int, dim: int) -> float:
    return spectral.eigengap(spectral.spectral_optimum(any_world.good_law(modality), dim)[1], dim)


def _account(
    trained: np.ndarray, solved: np.ndarray, law: np.ndarray, marginal: np.ndarray, seed: int
) -> dict[str, Any]:
    """Why LeJEPA's encoders differ from the closed form: what each costs under LeJEPA's loss.

    The closed form is given the scale that suits the loss best, as LeJEPA may choose its own.
    """
    rescaled = [
        training.lejepa_objective(c * solved, law, seed=seed) for c in np.arange(5, 11) / 10
    ]
    centred = trained - np.einsum("x,sxd->sd", marginal, trained)[:, None]
    covariances = np.einsum("x,sxd,sxe->sde", marginal, centred, centred)
    return {
        "trained": [training.lejepa_objective(f, law, seed=seed) for f in trained],
        "closed_form": min(rescaled, key=lambda parts: parts["loss"]),
        "covariance_eigenvalues": np.linalg.eigvalsh(covariances).tolist(),
    }
