"""How alignment grows with training samples, and how many fewer samples one arm needs.

Both take scores of finished runs, each trained to the end of its own learning rate schedule: a run
that is stopped on its way is worse than one that was meant to be that long. Several runs of one
size (seeds) are several entries with the same number of samples.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import scipy.optimize
import scipy.special
import sklearn.isotonic
from numpy.typing import ArrayLike, NDArray

Form = Literal["power", "logistic", "log_linear"]
Bound = Literal["", "at least", "at most"]
Floats = NDArray[np.float64]

# Of a power law: below, it is a straight line in log n over any range that one could train; above,
# it has arrived before the second budget.
_MIN_EXPONENT, _MAX_EXPONENT = 0.02, 4.0
_LOGISTIC_SIZES = 4  # that determine a logistic curve
_OUTLIER = 1.5  # residuals beyond so many standard deviations count linearly (Huber)


@dataclasses.dataclass(frozen=True)
class ScalingLaw:
    """Alignment as a function of the number of training samples.

    Attributes:
      form: "power": `limit - gap * (n / n0) ** -exponent`; "logistic" in the logarithm of n:
        `floor + (ceiling - floor) / (1 + exp(-rate * (log(n / n0) - middle)))`; or "log_linear":
        `level + slope * log(n / n0)`, which two numbers of samples determine.
      parameters: of the form; `n0` is the smallest number of samples.
      fitted: the smallest and the largest number of samples of the fit.
      residual: root mean square of the means' residuals, weighted by the runs of each.
      spread: standard deviation of runs of one size, pooled; None where each size has one run.
      held_out_error: of each form that was tried: mean magnitude of its errors at sizes that it
        was not fitted to, see `fit_scaling_law`. The form with the smallest was chosen; empty where
        there were too few sizes to choose.
    """

    form: Form
    parameters: Mapping[str, float]
    fitted: tuple[float, float]
    residual: float
    spread: float | None
    held_out_error: Mapping[str, float]

    def predict(self, samples: ArrayLike) -> Floats:
        """The scores at these numbers of samples, float64 of their shape.

        Outside of `fitted` this is extrapolation.

        Raises:
          ValueError: a number of samples is not positive.
        """
        n = np.asarray(samples, np.float64)
        if not (n > 0).all():
            raise ValueError(f"samples must be positive; got {n.min():g}.")
        form = _FORMS[self.form]
        x = np.log(n / self.parameters["n0"])
        return form.curve(x, *(self.parameters[name] for name in form.names))

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows."""
        return dataclasses.asdict(self)


def fit_scaling_law(samples: ArrayLike, scores: ArrayLike) -> ScalingLaw:
    """Fits how scores grow with samples (Huber loss, several starts).

    A power law with a limit (arXiv 2001.08361 with an irreducible part), and a logistic curve in
    the logarithm of the samples; whichever predicts better is then fitted to all. Predicted is each
    size after the fourth, from all that are smaller: one such prediction is often right by luck.
    With five sizes there is one such size; with four a power law is all that is tried, and told how
    far off the fourth is; with fewer there is nothing to tell forms apart by: three determine a
    power law, two a straight line in the logarithm.

    Args:
      samples: `[n]` positive, training samples of each run.
      scores: `[n]` its score.

    Raises:
      ValueError: the arrays do not fit each other, a value is not finite or not positive, or all
        runs have the same number of samples.
    """
    runs = _Runs.of(samples, scores)
    if len(runs.sizes) < 2:
        raise ValueError(
            f"samples are {runs.sizes[0]:g} in all runs; a law needs two sizes at least, and four "
            "to be more than a guess."
        )
    if len(runs.sizes) < 4:
        return _fit("log_linear" if len(runs.sizes) == 2 else "power", runs, {})
    enough = len(runs.sizes) > _LOGISTIC_SIZES
    forms: tuple[Form, ...] = ("power", "logistic") if enough else ("power",)
    held_out = range(min(_LOGISTIC_SIZES, len(runs.sizes) - 1), len(runs.sizes))
    errors: dict[str, float] = {
        form: float(np.mean([_error(form, runs, at) for at in held_out])) for form in forms
    }
    return _fit(min(forms, key=lambda form: errors[form]), runs, errors)


@dataclasses.dataclass(frozen=True)
class SampleRatio:
    """How many times the samples of arm a arm b needs for the same alignment.

    Attributes:
      ratio: samples of b over samples of a; where `bound` is not empty, a bound of it.
      bound: "at least" or "at most" where one arm is above the alignment with its fewest samples,
        or below it with its most; else empty.
      low: lower end of the interval of the ratio, by a bootstrap over runs of one size. Of few runs
        it is too narrow: by a fifth where there are three (sqrt(2 / 3)), empty where there is one.
      high: upper end; infinite where resampled arms do not reach the alignment.
      at: the alignment.
      samples_a: that a needs, or the end of its range where that is all that is known.
      samples_b: that b needs, likewise.
    """

    ratio: float
    bound: Bound
    low: float
    high: float
    at: float
    samples_a: float
    samples_b: float

    def __str__(self) -> str:
        bound = f"{self.bound} " if self.bound else ""
        return f"{bound}{self.ratio:.3g} [{self.low:.3g}, {self.high:.3g}] at {self.at:.3f}"

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows; infinity is null."""
        fields = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in fields.items()
        }


def sample_ratio(
    samples_a: ArrayLike,
    scores_a: ArrayLike,
    samples_b: ArrayLike,
    scores_b: ArrayLike,
    *,
    at: float | None = None,
    level: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> SampleRatio:
    """Compares how many samples two arms need to reach one alignment.

    Each arm's mean scores are made monotone (isotonic regression, weighted by the runs), and read
    between two sizes by linear interpolation in the logarithm of the samples. Nothing is
    extrapolated: where the alignment is outside of an arm's range, the ratio is a bound.

    Args:
      samples_a: `[n]` positive, training samples of the runs of arm a.
      scores_a: `[n]` their scores.
      samples_b: `[m]`, of arm b.
      scores_b: `[m]`, of arm b.
      at: the alignment; by default what the weaker arm ends with.
      level: of the interval.
      num_resamples: of the bootstrap.
      seed: of the bootstrap.

    Raises:
      ValueError: the arrays do not fit each other or a value is not finite or not positive; or
        nothing can be said, as neither arm's range holds the alignment, or both are on the same
        side of it.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1); got {level}.")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1; got {num_resamples}.")
    if at is not None and not math.isfinite(at):
        raise ValueError(f"at must be finite; got {at}.")
    a, b = _Runs.of(samples_a, scores_a), _Runs.of(samples_b, scores_b)
    where, ends_a, ends_b = _needs(a, b, at)
    smallest, largest = _quotients(ends_a, ends_b)
    if smallest == 0 and largest == math.inf:
        raise ValueError(
            f"at {where:g} neither arm is within its range: the mean scores of a's sizes are "
            f"{_listed(a.means)}, of b's {_listed(b.means)}; choose another at, or train other "
            "sizes."
        )
    rng = np.random.default_rng(seed)
    # What the weaker arm ends with is itself of these runs: each resample has its own.
    resampled = (_needs(a.resample(rng), b.resample(rng), at) for _ in range(num_resamples))
    lows, highs = np.array([_quotients(*needs) for _, *needs in resampled]).T
    tail = (1 - level) / 2
    bound: Bound = "" if smallest == largest else "at least" if largest == math.inf else "at most"
    return SampleRatio(
        ratio=float(largest if bound == "at most" else smallest),
        bound=bound,
        # Of values that may be infinite no mean must be taken.
        low=float(np.quantile(lows, tail, method="lower")),
        high=float(np.quantile(highs, 1 - tail, method="higher")),
        at=where,
        samples_a=_known(ends_a),
        samples_b=_known(ends_b),
    )


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Scores of runs, by their size.

    Attributes:
      sizes: `[s]` ascending, all different.
      groups: the scores at each size.
    """

    sizes: Floats
    groups: tuple[Floats, ...]

    @classmethod
    def of(cls, samples: ArrayLike, scores: ArrayLike) -> "_Runs":
        n, values = np.asarray(samples, np.float64), np.asarray(scores, np.float64)
        if n.ndim != 1 or n.shape != values.shape or not len(n):
            raise ValueError(
                "samples and scores must be of one length, a number for each run; got shapes "
                f"{n.shape} and {values.shape}."
            )
        for name, array in (("samples", n), ("scores", values)):
            if not np.isfinite(array).all():
                run = int(np.flatnonzero(~np.isfinite(array))[0])
                raise ValueError(f"{name}[{run}] is {array[run]}; leave out runs without a score.")
        if not (n > 0).all():
            raise ValueError(
                f"samples must be positive; got {n.min():g}. An untrained encoder has no place on "
                "a logarithmic axis; leave it out."
            )
        sizes = np.unique(n)
        return cls(sizes, tuple(values[n == size] for size in sizes))

    @property
    def means(self) -> Floats:
        return np.array([group.mean() for group in self.groups])

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.array([len(group) for group in self.groups])

    @property
    def spread(self) -> float | None:
        """Pooled standard deviation within sizes."""
        freedom = int((self.counts - 1).sum())
        if not freedom:
            return None
        squares = sum(((group - group.mean()) ** 2).sum() for group in self.groups)
        return float(math.sqrt(squares / freedom))

    def up_to(self, count: int) -> "_Runs":
        return _Runs(self.sizes[:count], self.groups[:count])

    def resample(self, rng: np.random.Generator) -> "_Runs":
        return _Runs(self.sizes, tuple(rng.choice(group, len(group)) for group in self.groups))


def _monotone(runs: _Runs) -> Floats:
    """Means that nowhere fall."""
    return np.asarray(sklearn.isotonic.isotonic_regression(runs.means, sample_weight=runs.counts))


def _needs(
    a: _Runs, b: _Runs, at: float | None
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """The alignment, and what each arm needs for it."""
    curves = _monotone(a), _monotone(b)
    where = float(min(curve[-1] for curve in curves)) if at is None else at
    needs_a, needs_b = (_needed(r.sizes, c, where) for r, c in zip((a, b), curves, strict=True))
    return where, needs_a, needs_b


def _needed(sizes: Floats, curve: Floats, at: float) -> tuple[float, float]:
    """Between which numbers of samples the curve reaches the alignment: equal where known."""
    if at > curve[-1]:
        return sizes[-1], math.inf
    if at < curve[0]:
        return 0.0, sizes[0]
    right = int(np.searchsorted(curve, at))  # the first that is not below
    if right == 0 or curve[right] == at:
        return sizes[right], sizes[right]
    share = (at - curve[right - 1]) / (curve[right] - curve[right - 1])
    n = float(sizes[right - 1] * (sizes[right] / sizes[right - 1]) ** share)
    return n, n


def _quotients(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """The least and the largest that b over a can be."""
    return b[0] / a[1], b[1] / a[0] if a[0] else math.inf


def _listed(values: Floats) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _known(ends: tuple[float, float]) -> float:
    return float(ends[0] if math.isinf(ends[1]) else ends[1])


@dataclasses.dataclass(frozen=True)
class _Form:
    """A curve over x = log(n / n0), and where to look for its parameters.

    Attributes:
      names: of the parameters.
      curve: `(x, *parameters) -> scores`.
      starts: of the parameters, for x and scores.
      limits: lower and upper bounds of the parameters.
    """

    names: tuple[str, ...]
    curve: Callable[..., Floats]
    starts: Callable[[Floats, Floats], Sequence[Sequence[float]]]
    limits: tuple[tuple[float, ...], tuple[float, ...]]


def _power(x: Floats, limit: float, gap: float, exponent: float) -> Floats:
    return limit - gap * np.exp(-exponent * x)


def _power_starts(x: Floats, y: Floats) -> Sequence[Sequence[float]]:
    starts = []
    for exponent in (0.05, 0.15, 0.4, 1.0, 2.0):
        # Given the exponent, the rest is linear.
        basis = np.stack([np.ones_like(x), -np.exp(-exponent * x)], axis=1)
        limit, gap = np.linalg.lstsq(basis, y, rcond=None)[0]
        starts.append((limit, max(gap, 0.0), exponent))
    return starts


def _logistic(x: Floats, floor: float, ceiling: float, middle: float, rate: float) -> Floats:
    return floor + (ceiling - floor) * scipy.special.expit(rate * (x - middle))


def _logistic_starts(x: Floats, y: Floats) -> Sequence[Sequence[float]]:
    low, height = y.min(), np.ptp(y)
    places = itertools.product((0.25, 0.5, 1.0), (1.0, 3.0), (1.0, 2.0))
    return [
        (low - 0.1 * height, low + room * height, x.max() * middle, steepness)
        for middle, steepness, room in places
    ]


def _line(x: Floats, level: float, slope: float) -> Floats:
    return level + slope * x


_FREE = math.inf
_FORMS: Mapping[Form, _Form] = {
    "power": _Form(
        ("limit", "gap", "exponent"),
        _power,
        _power_starts,
        ((-_FREE, 0.0, _MIN_EXPONENT), (_FREE, _FREE, _MAX_EXPONENT)),
    ),
    "logistic": _Form(
        ("floor", "ceiling", "middle", "rate"),
        _logistic,
        _logistic_starts,
        ((-_FREE, -_FREE, -_FREE, 0.05), (_FREE, _FREE, _FREE, 20.0)),
    ),
    "log_linear": _Form(
        ("level", "slope"),
        _line,
        lambda x, y: [(y[0], (y[-1] - y[0]) / x[-1])],
        ((-_FREE, -_FREE), (_FREE, _FREE)),
    ),
}


def _error(form: Form, runs: _Runs, at: int) -> float:
    """How far off the size of this index is when predicted from all smaller ones."""
    return abs(float(_fit(form, runs.up_to(at), {}).predict(runs.sizes[at])) - runs.means[at])


def _fit(name: Form, runs: _Runs, held_out_error: Mapping[str, float]) -> ScalingLaw:
    form, n0 = _FORMS[name], float(runs.sizes[0])
    x, y = np.log(runs.sizes / n0), runs.means
    weights = np.sqrt(runs.counts / runs.counts.mean())
    # Scores are of any size; the solver's tolerances and the loss's bend are of order one.
    scale = max(float(np.ptp(y)), 1e-12)
    noise = max(runs.spread or 0.0, 0.01 * scale)

    def residuals(parameters: Floats) -> Floats:
        return weights * (form.curve(x, *parameters) - y) / noise

    best = None
    for start in form.starts(x, y):
        found = scipy.optimize.least_squares(
            residuals,
            np.clip(start, *form.limits),
            bounds=form.limits,
            x_scale="jac",
            loss="huber",
            f_scale=_OUTLIER,
            max_nfev=2000,
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    parameters = dict(zip(form.names, map(float, best.x), strict=True))
    errors = form.curve(x, *best.x) - y
    return ScalingLaw(
        form=name,
        parameters={**parameters, "n0": n0},
        fitted=(n0, float(runs.sizes[-1])),
        residual=float(math.sqrt(np.average(errors**2, weights=runs.counts))),
        spread=runs.spread,
        held_out_error=held_out_error,
    )
