"""The search for a rough rotation: matched clusters, judged by how well the items match."""

import dataclasses

import numpy as np

from platojax.evaluation.rotation import polar
from platojax.evaluation.unpaired.clusters import centred_gram, restarts
from platojax.evaluation.unpaired.progress import OnProgress, report
from platojax.evaluation.unpaired.qap import quadratic_assignment
from platojax.evaluation.unpaired.refinement import matched_cosine, refine, unit

# Leading principal axes within which the search runs: the rest is left to the refinement.
_AXES = 64
# Half way to whitening: axes are divided by the fourth root of their variance.
_EQUALISING = -0.25
# Eigenvalues below this share of the largest count as that share.
_LEAST_EIGENVALUE = 1e-6
# A brief refinement: rounds, and the neighbours in a mean as shares of the batch.
_BRIEF_ROUNDS = 4
_BRIEF_SHARES = (1 / 10, 1 / 30)
_BRIEF_ITEMS = 1000
_BRIEF_SHARE = 0.6
# Items that measure a rotation; scipy's assignment of them takes .15 s.
MEASURED = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """One side in its leading principal axes.

    Attributes:
        rows: [N, K] float32, unit rows.
        axes: [D, K] float32, orthonormal columns.
        variances: [K] float64, mean squares along the axes, descending.
    """

    rows: np.ndarray
    axes: np.ndarray
    variances: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A rough rotation.

    Attributes:
        rotation: [Kx, Ky] float32, between leading axes.
        matched_cosine: of up to 1,000 items of both sides.
    """

    rotation: np.ndarray
    matched_cosine: float


def principal(units: np.ndarray) -> Side:
    """Projects unit rows [N, D] on their 64 leading principal axes, all where D is less."""
    values, vectors = np.linalg.eigh((units.T @ units).astype(np.float64) / len(units))
    axes = np.ascontiguousarray(vectors[:, : -_AXES - 1 : -1], np.float32)
    return Side(unit(units @ axes), axes, np.maximum(values[: -_AXES - 1 : -1], 0))


def search(
    x: Side,
    y: Side,
    *,
    num_clusters: int,
    num_restarts: int,
    batch_size: int,
    seed: int,
    rng: np.random.Generator,
    on_progress: OnProgress | None = None,
) -> Candidate:
    """Finds rough rotations from matched clusters, and chooses one without labels.

    Where the spaces agree well, the average over restarts is the best start (arXiv 2610.09411).
    Where they agree less, above all in their spectra, most matchings of clusters are wrong and err
    alike, so that their average is wrong too. Two things help. Clusters are also found, and
    compared, with the square root of the covariance: what two encoders share is not only what is
    largest in both. And each of these restarts makes a rotation of its own. A few rounds of
    refinement on few items set right what is nearly right, and the matched cosine tells good from
    bad.

    Args:
        x: one side.
        y: the other.
        num_clusters: centres per restart.
        num_restarts: pairs of clusterings, with the covariance as it is and with its root.
        batch_size: rows per clustering, at most.
        seed: of the assignments.
        rng: of the rest.
        on_progress: told of each restart, assignment and candidate.

    Returns:
        The best candidate by the matched cosine.
    """
    settings = (num_clusters, num_restarts, batch_size, seed, rng, on_progress)
    plain = _products(x.rows, y.rows, *settings)
    equalised = _products(_equalised(x), _equalised(y), *settings)
    measured_x, measured_y = (
        side.rows[rng.permutation(len(side.rows))[:MEASURED]] for side in (x, y)
    )
    candidates = []
    for product in (plain.sum(axis=0), equalised.sum(axis=0), *equalised):
        rotation = _briefly_refined(x.rows, y.rows, polar(product), rng)
        value = matched_cosine(unit(measured_x @ rotation), measured_y)
        candidates.append(Candidate(rotation, value))
        report(on_progress, "candidates", len(candidates), num_restarts + 2)
    return max(candidates, key=lambda candidate: candidate.matched_cosine)


def _products(
    x: np.ndarray,
    y: np.ndarray,
    num_clusters: int,
    num_restarts: int,
    batch_size: int,
    seed: int,
    rng: np.random.Generator,
    on_progress: OnProgress | None,
) -> np.ndarray:
    """[S, Kx, Ky]: of each restart, the products of the matched centres."""
    centres_x, centres_y = restarts(
        x,
        y,
        num_clusters=num_clusters,
        num_restarts=num_restarts,
        batch_size=batch_size,
        rng=rng,
        on_progress=on_progress,
    )
    matching = quadratic_assignment(centred_gram(centres_x), centred_gram(centres_y), seed=seed)
    report(on_progress, "assignment", 1, 1)
    matched_y = np.take_along_axis(centres_y, matching.permutation[:, :, None], axis=1)
    return centres_x.swapaxes(1, 2) @ matched_y


def _equalised(side: Side) -> np.ndarray:
    """[N, K]: unit rows whose axes differ less in variance."""
    least = _LEAST_EIGENVALUE * side.variances.max()
    return unit((side.rows * np.maximum(side.variances, least) ** _EQUALISING).astype(np.float32))


def _briefly_refined(
    x: np.ndarray, y: np.ndarray, rotation: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    batch_size = min(round(_BRIEF_SHARE * min(len(x), len(y))), _BRIEF_ITEMS)
    for share in _BRIEF_SHARES:
        rotation = refine(
            x,
            y,
            rotation,
            num_rounds=_BRIEF_ROUNDS,
            num_neighbors=max(1, round(share * batch_size)),
            batch_size=batch_size,
            rng=rng,
        )
    return rotation
