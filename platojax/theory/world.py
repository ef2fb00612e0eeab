"""Finite worlds: scenes, the channels through which modalities observe them, and pair laws.

A scene is one state of the world, an observation is what one modality shows of it, and a pair law
says how often two observations of one modality are made a positive pair. Everything is a finite
table of probabilities, so that the objective of a JEPA is a finite sum with a known minimum (see
`platojax.theory.spectral`). All tables are NumPy float64.

The formulation is this project's own, docs/theory.md says where it follows the paper.
"""

import dataclasses
import functools

import numpy as np

# Tables that arrive in float32 sum to one and are symmetric to about this much.
_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class World:
    """Scenes seen through several modalities, and how positive pairs arise in each.

    Attributes:
      scene_law: `[S, S]` symmetric joint law of the two scenes of a good pair, common to all
        modalities. Diagonal: both observations show one scene.
      channels: for each modality the law P(x | s), `[S, X_m]`, rows sum to 1.
      nuisance_laws: for each modality a pair law `[X_m, X_m]` of pairs that share something else
        than their scene, with the same marginal as the good pairs. Empty where there is none.
      nuisance_weight: the share a of pairs that come from the nuisance law, in [0, 1].
    """

    scene_law: np.ndarray
    channels: tuple[np.ndarray, ...]
    nuisance_laws: tuple[np.ndarray, ...] = ()
    nuisance_weight: float = 0.0

    def __post_init__(self) -> None:
        check_pair_law(self.scene_law, "scene_law")
        for m, channel in enumerate(self.channels):
            check_channel(channel, len(self.scene_law), f"channels[{m}]")
            _check_positive(self.marginal(m), f"the marginal of channels[{m}]")
        if not 0 <= self.nuisance_weight <= 1:
            raise ValueError(f"nuisance_weight must lie in [0, 1]; got {self.nuisance_weight}.")
        if self.nuisance_weight > 0 and not self.nuisance_laws:
            raise ValueError(
                f"nuisance_weight is {self.nuisance_weight} but nuisance_laws is empty; give one "
                "pair law per modality."
            )
        if self.nuisance_laws and len(self.nuisance_laws) != len(self.channels):
            raise ValueError(
                f"nuisance_laws must have one entry per modality ({len(self.channels)}); got "
                f"{len(self.nuisance_laws)}."
            )
        for m, law in enumerate(self.nuisance_laws):
            check_pair_law(law, f"nuisance_laws[{m}]")
            if len(law) != self.channels[m].shape[1] or not np.allclose(
                law.sum(axis=1), self.marginal(m), rtol=0, atol=_TOLERANCE
            ):
                raise ValueError(
                    f"nuisance_laws[{m}] must have the marginal of the good pairs of modality {m}; "
                    "build it with nuisance_pairs(world.marginal(m), ...)."
                )

    @property
    def prior(self) -> np.ndarray:
        """`[S]` how often each scene occurs."""
        return self.scene_law.sum(axis=1)

    def marginal(self, modality: int) -> np.ndarray:
        """`[X]` how often each observation occurs, the same in good and nuisance pairs."""
        return self.prior @ self.channels[modality]

    def good_law(self, modality: int) -> np.ndarray:
        """`[X, X]` pairs of which each observation is drawn from its scene alone."""
        channel = self.channels[modality]
        law = channel.T @ self.scene_law @ channel
        return (law + law.T) / 2

    def pair_law(self, modality: int) -> np.ndarray:
        """`[X, X]` the pairs to train on: (1 - a) good + a nuisance."""
        if not self.nuisance_laws:
            return self.good_law(modality)
        weight = self.nuisance_weight
        return (1 - weight) * self.good_law(modality) + weight * self.nuisance_laws[modality]

    def cross_law(self, first: int, second: int) -> np.ndarray:
        """`[X, Y]` the observations of one scene in two modalities, a caption and its picture.

        Independent given the scene. For evaluation: no encoder trains on these pairs.
        """
        return self.channels[first].T @ (self.prior[:, None] * self.channels[second])


def same_scene(prior: np.ndarray) -> np.ndarray:
    """`[S, S]` scene law of pairs that always show one scene, drawn from `prior` `[S]`.

    Raises:
      ValueError: if the prior is not a distribution or a scene has probability zero.
    """
    prior = np.asarray(prior, np.float64)
    if prior.ndim != 1 or not np.isclose(prior.sum(), 1, rtol=0, atol=_TOLERANCE):
        raise ValueError(
            f"prior must be one row of probabilities that sum to 1; got shape {prior.shape}, sum "
            f"{prior.sum():.6g}. Divide it by its sum."
        )
    _check_positive(prior, "prior")
    return np.diag(prior)


def neighbouring_scenes(positions: np.ndarray, bandwidth: float = 1.0) -> np.ndarray:
    """Scene law that pairs scenes near one another: a Gaussian kernel made doubly stochastic.

    The kernel exp(-|u - v|^2 / (2 bandwidth^2)) is positive definite and Sinkhorn's scaling keeps
    it so: all eigenvalues of good pairs lie in [0, 1]. The prior is uniform.

    Args:
      positions: `[S, K]` where each scene lies.
      bandwidth: in the unit of the positions, above 0.

    Returns:
      `[S, S]` symmetric, sums to 1, rows sum to 1/S.

    Raises:
      ValueError: if `bandwidth` is not positive or the positions are not a table.
    """
    positions = np.asarray(positions, np.float64)
    if positions.ndim != 2 or not bandwidth > 0:
        raise ValueError(
            "neighbouring_scenes needs positions [S, K] and bandwidth > 0; got shape "
            f"{positions.shape} and {bandwidth}."
        )
    squared = np.sum((positions[:, None] - positions[None]) ** 2, axis=-1)
    kernel = np.exp(-squared / (2 * bandwidth**2))
    scale = np.ones(len(kernel))
    # The square root makes the symmetric iteration a contraction; thousands of cheap steps take
    # remote scenes to rounding as well.
    for _ in range(20_000):
        row_sums = scale * (kernel @ scale)
        if np.max(np.abs(row_sums - 1)) < 1e-14:
            break
        scale /= np.sqrt(row_sums)
    law = scale[:, None] * kernel * scale[None, :]
    law = (law + law.T) / 2
    return law / law.sum()


def gaussian_scenes(points: int, dim: int, correlation: float) -> np.ndarray:
    """Scene law of a world as Gaussian as a finite one gets: a grid under a bivariate normal.

    Scenes are the points of a grid on [-3, 3]^dim; the two scenes of a pair follow, on each axis,
    a standard bivariate normal with the given correlation. In the continuum the eigenvalues are
    products of powers of the correlation and the leading eigenfunctions the coordinates themselves
    (Mehler's formula), hence exactly Gaussian.

    Args:
      points: grid points per axis, at least 2.
      dim: axes; the world has points ** dim scenes.
      correlation: in (0, 1).

    Returns:
      `[S, S]` symmetric, sums to 1; the prior is a discretised standard normal.

    Raises:
      ValueError: if an argument is out of range.
    """
    if points < 2 or dim < 1 or not 0 < correlation < 1:
        raise ValueError(
            "gaussian_scenes needs points >= 2, dim >= 1 and correlation in (0, 1); got "
            f"{points}, {dim} and {correlation}."
        )
    x = np.linspace(-3, 3, points)
    quadratic = x[:, None] ** 2 - 2 * correlation * x[:, None] * x[None, :] + x[None, :] ** 2
    axis = np.exp(-quadratic / (2 * (1 - correlation**2)))
    axis /= axis.sum()
    return functools.reduce(np.kron, [axis] * dim)


def revealing_channel(shares: np.ndarray) -> np.ndarray:
    """Channel of a modality whose every observation occurs in one scene only.

    Args:
      shares: `[S, O]` the probabilities of the O observations that belong to each scene.

    Returns:
      `[S, S * O]`; observation s * O + o is the o-th of scene s.
    """
    shares = np.asarray(shares, np.float64)
    check_channel(shares, len(shares), "shares")
    channel = np.zeros((len(shares), shares.size))
    for scene, row in enumerate(shares):
        channel[scene, scene * len(row) : (scene + 1) * len(row)] = row
    return channel


def leaky_channel(rng: np.random.Generator, channel: np.ndarray, leakage: float) -> np.ndarray:
    """Mixes a channel with one that may show any observation in any scene.

    Args:
      rng: draws the other channel, each row uniform on the simplex.
      channel: `[S, X]` P(x | s).
      leakage: the share of observations that come from the other channel, in [0, 1].

    Returns:
      `[S, X]`.

    Raises:
      ValueError: if `leakage` is out of range.
    """
    if not 0 <= leakage <= 1:
        raise ValueError(f"leakage must lie in [0, 1]; got {leakage}.")
    num_scenes, num_observations = channel.shape
    other = rng.dirichlet(np.ones(num_observations), num_scenes)
    return (1 - leakage) * channel + leakage * other


def nuisance_pairs(
    marginal: np.ndarray, nuisance: np.ndarray, law: np.ndarray | None = None
) -> np.ndarray:
    """Pair law of observations that share a nuisance (a photographer, a style) and nothing else.

    Args:
      marginal: `[X]` how often each observation occurs; the pair law keeps it.
      nuisance: `[X]` int in [0, N), the nuisance value that each observation carries.
      law: `[N, N]` symmetric joint law of the two nuisance values of a pair; its marginal must be
        that of `nuisance` under `marginal`. Where None, both are the same value.

    Returns:
      `[X, X]` symmetric, sums to 1.

    Raises:
      ValueError: if a nuisance value never occurs, or the law's marginal is another.
    """
    one_hot = np.eye(int(np.max(nuisance)) + 1)[nuisance]
    frequency = marginal @ one_hot
    _check_positive(frequency, "the frequency of nuisance values")
    law = np.diag(frequency) if law is None else law
    if law.shape != (len(frequency),) * 2 or not np.allclose(
        law.sum(axis=1), frequency, rtol=0, atol=_TOLERANCE
    ):
        raise ValueError(
            "law must be [N, N] with the nuisance's own frequencies as its marginal; got shape "
            f"{law.shape} for {len(frequency)} values of frequencies {np.round(frequency, 4)}."
        )
    given_nuisance = marginal[:, None] * one_hot / frequency
    pairs = given_nuisance @ law @ given_nuisance.T
    return (pairs + pairs.T) / 2


def sample_pairs(rng: np.random.Generator, pair_law: np.ndarray, num_pairs: int) -> np.ndarray:
    """Draws positive pairs to train on.

    Args:
      rng: the source of randomness.
      pair_law: `[X, X]` symmetric, sums to 1.
      num_pairs: how many.

    Returns:
      `[num_pairs, 2]` int32, indices of observations.
    """
    check_pair_law(pair_law)
    cumulative = np.cumsum(pair_law)
    # Scaled by the last entry, so that a sum of 1 - 1e-16 cannot put a draw past the end.
    cells = np.searchsorted(cumulative, rng.random(num_pairs) * cumulative[-1], side="right")
    return np.stack(np.divmod(cells, pair_law.shape[1]), axis=1).astype(np.int32)


def check_channel(channel: np.ndarray, num_scenes: int, name: str = "channel") -> None:
    """Raises ValueError unless `channel` is `[num_scenes, X]` with rows that are distributions."""
    if np.ndim(channel) != 2 or len(channel) != num_scenes:
        raise ValueError(
            f"{name} must be [S, X] with one row for each of the {num_scenes} scenes; got shape "
            f"{np.shape(channel)}."
        )
    _check_nonnegative(channel, name)
    sums = np.sum(channel, axis=1)
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > _TOLERANCE:
        raise ValueError(
            f"{name}: rows must sum to 1; row {worst} sums to {sums[worst]:.6g}. Divide each row "
            "by its sum."
        )


def check_pair_law(pair_law: np.ndarray, name: str = "pair_law") -> None:
    """Raises ValueError unless `pair_law` is a symmetric joint law with a positive marginal."""
    if np.ndim(pair_law) != 2 or pair_law.shape[0] != pair_law.shape[1]:
        raise ValueError(f"{name} must be square, [X, X]; got shape {np.shape(pair_law)}.")
    _check_nonnegative(pair_law, name)
    total = float(np.sum(pair_law))
    if abs(total - 1) > _TOLERANCE:
        raise ValueError(f"{name} must sum to 1; it sums to {total:.6g}. Divide it by its sum.")
    difference = np.abs(pair_law - pair_law.T)
    i, j = np.unravel_index(np.argmax(difference), difference.shape)
    if difference[i, j] > _TOLERANCE * np.max(pair_law):
        raise ValueError(
            f"{name} must be symmetric; [{i}, {j}] is {pair_law[i, j]:.6g} and [{j}, {i}] is "
            f"{pair_law[j, i]:.6g}. The two views of a pair have no order: use (law + law.T) / 2."
        )
    _check_positive(np.sum(pair_law, axis=1), f"the marginal of {name}")


def _check_nonnegative(table: np.ndarray, name: str) -> None:
    # Not `(table < 0).any()`: a NaN must fail as well.
    if not np.all(np.asarray(table) >= 0):
        where = tuple(int(i) for i in np.argwhere(~(np.asarray(table) >= 0))[0])
        raise ValueError(
            f"{name} must hold probabilities, at least 0; entry {where} is {table[where]}."
        )


def _check_positive(probabilities: np.ndarray, name: str) -> None:
    if not np.all(probabilities > 0):
        where = int(np.flatnonzero(~(probabilities > 0))[0])
        raise ValueError(
            f"{name}: entry {where} has probability {probabilities[where]:.6g}, so nothing is "
            "learnt about it; remove it from the world."
        )
