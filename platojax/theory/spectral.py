"""The closed-form optimum of a JEPA in a finite world, and what follows from it.

A JEPA with the identity as predictor minimises E|f(x) - f(x')|^2 over positive pairs, subject to
E f = 0 and E f f^T = I. With Pi the pair law, mu its marginal and T = D_mu^-1/2 Pi D_mu^-1/2, put
F = D_mu^1/2 f: the loss is 2 (d - tr F^T T F) over orthonormal F that are orthogonal to sqrt(mu),
the eigenvector of the constant. Hence the minimiser is spanned by the next d eigenvectors, is
unique up to one rotation where eigenvalue d exceeds eigenvalue d + 1, and has the loss
2 sum(1 - lambda_i). (Ky Fan's maximum principle; as a limit of spectral contrastive learning,
arXiv 2106.04156.)

NumPy float64 throughout. "Whitened" means mean 0 and covariance I under the marginal; features are
equal "up to a rotation" where one orthogonal matrix, reflections allowed, takes one to the other.
"""

import numpy as np
import scipy.linalg

from platojax.theory.world import check_pair_law

# Eigenvalues closer than this are one eigenvalue: rounding of a symmetric eigenproblem of norm 1
# with a few hundred rows stays below 1e-13.
_DEGENERATE = 1e-9


def spectral_optimum(pair_law: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best whitened encoder of a finite world.

    Args:
      pair_law: `[X, X]` symmetric joint law of a positive pair; sums to 1, every observation
        occurs. Read as float64.
      dim: the width d of the encoder.

    Returns:
      `[X, d]` float64, whitened under the marginal; one of the optima, which are all its rotations
      where `is_unique`. And `[X - 1]` float64, all eigenvalues without the constant's, descending.

    Raises:
      ValueError: if `pair_law` is no pair law, or `dim` exceeds the number of directions in which
        the two views of a pair are positively correlated.
    """
    pair_law = np.asarray(pair_law, np.float64)
    check_pair_law(pair_law)
    if dim < 1:
        raise ValueError(f"dim must be at least 1; got {dim}.")
    operator, root = _operator(pair_law)
    # Deflated by 2, the constant's eigenvalue is -1 and sorts last whatever the others are; and a
    # further eigenvalue 1 cannot mix with it.
    values, vectors = np.linalg.eigh(operator - 2 * np.outer(root, root))
    values, vectors = np.clip(values[:0:-1], -1, 1), vectors[:, :0:-1]
    rank = int(np.sum(values > _DEGENERATE))
    if dim > rank:
        raise ValueError(
            f"dim is {dim}, but only {rank} directions other than the constant are positively "
            f"correlated between the views (the rank of pair_law); use dim <= {rank}."
        )
    return vectors[:, :dim] / root[:, None], values


def optimal_loss(eigenvalues: np.ndarray, dim: int) -> float:
    """Returns 2 sum over the first `dim` eigenvalues of (1 - lambda): the least `pair_loss`."""
    return float(2 * np.sum(1 - eigenvalues[:dim]))


def eigengap(eigenvalues: np.ndarray, dim: int) -> float:
    """Returns lambda_d - lambda_{d+1}, of `eigenvalues` as `spectral_optimum` gives them.

    Where d is all there is, the next eigenvalue counts as -1, the least that it could be: the
    optimum is then unique whatever lambda_d.
    """
    following = eigenvalues[dim] if dim < len(eigenvalues) else -1.0
    return float(eigenvalues[dim - 1] - following)


def is_unique(eigenvalues: np.ndarray, dim: int) -> bool:
    """Tells whether all optima are rotations of one another: whether there is an eigengap at d."""
    return eigengap(eigenvalues, dim) > _DEGENERATE


def pair_loss(features: np.ndarray, pair_law: np.ndarray) -> float:
    """Returns E|f(x) - f(x')|^2 over positive pairs, exactly.

    Args:
      features: `[X, d]`, one row per observation.
      pair_law: `[X, X]` symmetric joint law.
    """
    squared = np.sum(pair_law.sum(axis=1)[:, None] * features**2)
    return float(2 * (squared - np.sum(features * (pair_law @ features))))


def whiten(features: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    """Returns the whitened features nearest to `features`: (f - E f) C^-1/2.

    Args:
      features: `[X, d]`.
      marginal: `[X]` how often each observation occurs.

    Raises:
      ValueError: if the features do not span d dimensions.
    """
    features = np.asarray(features, np.float64)
    features = features - marginal @ features
    values, vectors = np.linalg.eigh(features.T @ (marginal[:, None] * features))
    if not values[0] > 1e-12 * values[-1]:
        raise ValueError(
            f"features span fewer than their {features.shape[1]} dimensions (covariance "
            f"eigenvalues {values[0]:.3g} to {values[-1]:.3g}) and cannot be whitened; use a "
            "smaller width."
        )
    return features @ (vectors / np.sqrt(values)) @ vectors.T


def principal_angles(first: np.ndarray, second: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    """Returns the angles between the spaces that two encoders of one modality span.

    Args:
      first: `[X, d]`, centred.
      second: `[X, d]`, centred.
      marginal: `[X]`, the weights of the inner product.

    Returns:
      `[d]` radians, descending; accurate for small angles too (Knyazev and Argentati, 2002).
    """
    root = np.sqrt(marginal)[:, None]
    return scipy.linalg.subspace_angles(root * first, root * second)


def procrustes_residual(
    first: np.ndarray, second: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Returns what is left of two tables of features after the best rotation between them.

    min over orthogonal Q of sum_n w_n |f_n - g_n Q|^2 (Schoenemann, 1966): 0 where they are equal
    up to a rotation, 2 d where whitened features have nothing in common. Features are compared as
    they are; centre them first if their means should not count.

    Args:
      first: `[N, d]`, rows paired with those of `second`.
      second: `[N, d]`.
      weights: `[N]` of the rows, summing to 1; uniform where None.

    Returns:
      The squared residual, summed over dimensions.

    Raises:
      ValueError: if the shapes differ.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            f"procrustes_residual compares two tables [N, d] of one shape; got {first.shape} and "
            f"{second.shape}."
        )
    if weights is None:
        weights = np.full(len(first), 1 / len(first))
    rotation = _best_rotation(second.T @ (weights[:, None] * first))
    # Not by the formula with the sum of singular values: its cancellation hides residuals that
    # are truly below 1e-15.
    return float(np.sum(weights[:, None] * (first - second @ rotation) ** 2))


def observation_residual(first: np.ndarray, second: np.ndarray, cross_law: np.ndarray) -> float:
    """Returns the Procrustes residual between observations of one scene in two modalities.

    min over orthogonal Q of E|f(x) - g(y) Q|^2 over a caption x and a picture y of one scene. It
    counts whatever an encoder says about an observation beyond its scene, and so cannot vanish
    where observations do not reveal their scene.

    Args:
      first: `[X, d]` features of the first modality.
      second: `[Y, d]` features of the second.
      cross_law: `[X, Y]` joint law of the observations, see `World.cross_law`.

    Returns:
      The squared residual, summed over dimensions; exact to about 1e-14.
    """
    rotated = second @ _best_rotation(second.T @ cross_law.T @ first)
    squared = np.sum(cross_law.sum(axis=1)[:, None] * first**2)
    squared += np.sum(cross_law.sum(axis=0)[:, None] * second**2)
    return max(float(squared - 2 * np.sum(first * (cross_law @ rotated))), 0.0)


def scene_residual(
    first: np.ndarray,
    second: np.ndarray,
    first_channel: np.ndarray,
    second_channel: np.ndarray,
    prior: np.ndarray,
) -> float:
    """Returns the Procrustes residual between what two encoders say of each scene on average.

    The mean features E[f(x) | s] shrink where a scene's observations disagree, down to nothing for
    an encoder of a nuisance, so the residual is divided by their mean square: 0 where the tables
    are equal up to a rotation, 2 where they have nothing in common.

    Args:
      first: `[X, d]` features of the first modality.
      second: `[Y, d]` features of the second.
      first_channel: `[S, X]`.
      second_channel: `[S, Y]`.
      prior: `[S]`.
    """
    means = first_channel @ first, second_channel @ second
    size = sum(np.sum(prior[:, None] * mean**2) for mean in means) / 2
    return procrustes_residual(*means, prior) / float(size)


def misalignment_bound(features: np.ndarray, good_law: np.ndarray) -> float:
    """Bounds sum sin^2 of the angles to the good optimum: (L(f) - L*) / (2 eigengap).

    L is the loss on GOOD pairs, whatever pairs the encoder was trained on, and L* its minimum.
    Holds for every whitened encoder: each unit of sin^2 moves weight from an eigenvalue of at
    least lambda_d to one of at most lambda_{d+1}, which costs 2 (lambda_d - lambda_{d+1}).
    Equality where only these two mix.

    Args:
      features: `[X, d]`, whitened.
      good_law: `[X, X]` the law of good pairs.

    Raises:
      ValueError: if the features are not whitened or the good optimum is not unique.
    """
    marginal = good_law.sum(axis=1)
    dim = features.shape[1]
    covariance = features.T @ (marginal[:, None] * features)
    deviation = max(np.abs(covariance - np.eye(dim)).max(), np.abs(marginal @ features).max())
    if deviation > 1e-6:
        raise ValueError(
            f"features must be whitened (mean or covariance is off by {deviation:.3g}); pass "
            "whiten(features, marginal)."
        )
    _, eigenvalues = spectral_optimum(good_law, dim)
    gap = _positive_gap(eigenvalues, dim)
    excess = pair_loss(features, good_law) - optimal_loss(eigenvalues, dim)
    return max(excess, 0.0) / (2 * gap)


def davis_kahan_bound(good_law: np.ndarray, pair_law: np.ndarray, dim: int) -> float:
    """Bounds sum sin^2 between the optima of two pair laws by how much the operators differ.

    (2 min(sqrt(d) |E|_2, |E|_F) / eigengap)^2 with E the difference (Yu, Wang and Samworth, 2015,
    the form of Davis and Kahan's theorem that needs the eigengap of one operator only). It speaks
    of optima alone, and exceeds the trivial bound d already at small nuisance weights.

    Raises:
      ValueError: if the good optimum is not unique.
    """
    _, eigenvalues = spectral_optimum(good_law, dim)
    gap = _positive_gap(eigenvalues, dim)
    difference = _operator(pair_law)[0] - _operator(good_law)[0]
    size = min(np.sqrt(dim) * np.linalg.norm(difference, 2), np.linalg.norm(difference))
    return float((2 * size / gap) ** 2)


def cross_modal_bound(first: float, second: float) -> float:
    """Bounds `observation_residual` of two modalities by each one's bound on sum sin^2.

    Procrustes^2 <= 2 sum sin^2 within a modality (1 - cos <= sin^2), and the distances, not their
    squares, add: (sqrt(2 first) + sqrt(2 second))^2. Needs good optima that agree exactly.
    """
    return float((np.sqrt(2 * first) + np.sqrt(2 * second)) ** 2)


def _operator(pair_law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D_mu^-1/2 Pi D_mu^-1/2 `[X, X]`, symmetric, and sqrt(mu) `[X]`."""
    symmetric = (pair_law + pair_law.T) / 2
    root = np.sqrt(symmetric.sum(axis=1))
    root /= np.linalg.norm(root)
    return symmetric / (root[:, None] * root[None, :]), root


def _best_rotation(covariance: np.ndarray) -> np.ndarray:
    """The orthogonal Q that maximises tr(Q^T covariance)."""
    left, _, right = np.linalg.svd(covariance)
    return left @ right


def _positive_gap(eigenvalues: np.ndarray, dim: int) -> float:
    gap = eigengap(eigenvalues, dim)
    if not is_unique(eigenvalues, dim):
        raise ValueError(
            f"the good pairs have no eigengap at dim={dim} (eigenvalues {eigenvalues[dim - 1]:.6g} "
            f"and {eigenvalues[dim]:.6g}), so their optimum is not unique and nothing bounds the "
            "distance to it; use another dim."
        )
    return gap
