"""The worlds of the standard set: which agree, which almost do, and the counter-examples."""

import dataclasses
from typing import Literal

import numpy as np

from platojax.theory import spectral, world
from platojax.theory.world import World

NUM_SCENES = 48
DIM = 6
NUISANCE_WEIGHTS = (0.01, 0.03, 0.1, 0.3)
LEAKAGES = (0.02, 0.1, 0.3)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: a world, the encoders' width, and how they are trained.

    Attributes:
      name: what the table calls it.
      world: all its modalities are trained, separately.
      dim: the width d of the encoders.
      encoder: of every modality.
      objective: the theorem's own, or the product's.
      num_seeds: independent trainings of each modality, at least 2: they are compared.
    """

    name: str
    world: World
    dim: int
    encoder: Literal["tabular", "mlp"] = "tabular"
    objective: Literal["whitening", "lejepa"] = "whitening"
    num_seeds: int = 3


def standard_cases(seed: int) -> list[Case]:
    """Draws the worlds of the standard set."""
    rng = np.random.default_rng(seed)
    positions = rng.standard_normal((NUM_SCENES, 3))
    near = world.neighbouring_scenes(positions)
    common = World(near, tuple(_revealing(rng, NUM_SCENES, n) for n in (3, 5, 9)))
    # Two modalities carry the further worlds: they need a pair, and training is what takes time.
    pair = World(near, common.channels[1:])
    cases = [
        Case("common law", common, DIM),
        Case("common law, MLP", common, DIM, encoder="mlp"),
    ]

    few = World(
        world.same_scene(rng.dirichlet(np.full(8, 5.0))),
        tuple(_revealing(rng, 8, n) for n in (3, 5)),
    )
    cases.append(Case("same scene, d = S - 1", few, 7))

    for leakage in LEAKAGES:
        channels = tuple(world.leaky_channel(rng, c, leakage) for c in pair.channels)
        cases.append(Case(f"leaky {leakage:g}", World(near, channels), DIM))

    entangled = with_entangled_nuisance(rng, pair)
    for weight in NUISANCE_WEIGHTS:
        bad = dataclasses.replace(entangled, nuisance_weight=weight)
        cases.append(Case(f"nuisance {weight:g}", bad, DIM))

    independent = independent_nuisance_world(near)
    change = phase_changes(independent, DIM)[0]
    for factor, side in ((0.9, "below"), (1.1, "above")):
        bad = dataclasses.replace(independent, nuisance_weight=factor * change)
        cases.append(Case(f"independent, {side} {change:.2g}", bad, DIM))

    generic = tuple(rng.dirichlet(np.full(n, 0.1), NUM_SCENES) for n in (144, 240))
    cases.append(
        Case(
            "! no common law",
            World(world.same_scene(np.full(NUM_SCENES, 1 / NUM_SCENES)), generic),
            DIM,
        )
    )
    angles = 2 * np.pi * np.arange(24) / 24
    circle = world.neighbouring_scenes(np.stack([np.cos(angles), np.sin(angles)], axis=1), 0.5)
    ring = World(circle, tuple(_revealing(rng, 24, n) for n in (2, 3)))
    cases += [
        Case("ring, d = 4", ring, 4),
        Case("! no gap: ring, d = 3", ring, 3),
        Case("! same scene, d = 3", few, 3),
    ]

    gaussian = world.gaussian_scenes(11, 2, 0.7)
    grid = World(gaussian, tuple(_revealing(rng, len(gaussian), n) for n in (1, 2)))
    small = World(near, common.channels[:2])
    encoders: tuple[tuple[Literal["tabular", "mlp"], str], ...] = (
        ("tabular", ""),
        ("mlp", ", MLP"),
    )
    for encoder, label in encoders:
        cases += [
            Case(f"LeJEPA, Gaussian grid{label}", grid, 2, encoder, "lejepa", 2),
            Case(f"LeJEPA, common law{label}", small, DIM, encoder, "lejepa", 2),
        ]
    return cases


def with_entangled_nuisance(rng: np.random.Generator, good: World) -> World:
    """Adds a nuisance of 8 values to each modality, dealt to observations at random.

    A scene's observations then differ in which nuisances they carry and how often, so that the
    nuisance says something about the scene, and mixes with it at any weight.
    """
    laws = []
    for modality, channel in enumerate(good.channels):
        nuisance = rng.permutation(np.arange(channel.shape[1]) % 8)
        laws.append(world.nuisance_pairs(good.marginal(modality), nuisance))
    return dataclasses.replace(good, nuisance_laws=tuple(laws))


def independent_nuisance_world(scene_law: np.ndarray) -> World:
    """Each scene shows 4 nuisance values equally often: scene and nuisance are independent.

    The operators then commute. Its nuisances lie on a line, which gives them distinct eigenvalues.
    The second modality shows each scene and nuisance in two ways.
    """
    num_scenes = len(scene_law)
    nuisance_law = world.neighbouring_scenes(np.arange(4.0)[:, None], 0.8)
    channels, laws = [], []
    for copies in (1, 2):
        shares = np.full((num_scenes, 4 * copies), 1 / (4 * copies))
        channel = world.revealing_channel(shares)
        nuisance = np.arange(channel.shape[1]) % 4
        channels.append(channel)
        laws.append(world.nuisance_pairs(scene_law.sum(axis=1) @ channel, nuisance, nuisance_law))
    return World(scene_law, tuple(channels), tuple(laws))


def phase_changes(independent: World, dim: int) -> np.ndarray:
    """Returns the weights at which one more nuisance enters the d leading eigenvalues.

    Where scene and nuisance are independent, the eigenvalues are (1 - a) lambda_i and a nu_j. The
    j-th nuisance displaces the scene direction d + 1 - j at a = lambda / (lambda + nu_j).
    """
    _, scene = spectral.spectral_optimum(independent.good_law(0), dim)
    nuisance_law = independent.nuisance_laws[0]
    _, nuisance = spectral.spectral_optimum(nuisance_law, 1)
    nuisance = nuisance[nuisance > 1e-9][:dim]
    displaced = scene[dim - len(nuisance) : dim][::-1]
    return displaced / (displaced + nuisance)


def _revealing(rng: np.random.Generator, num_scenes: int, observations: int) -> np.ndarray:
    """A channel that reveals the scene, its observations' shares uniform on the simplex."""
    return world.revealing_channel(rng.dirichlet(np.ones(observations), num_scenes))
