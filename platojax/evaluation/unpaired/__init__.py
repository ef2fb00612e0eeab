"""Rotations and matchings between spaces without pairs."""

from platojax.evaluation.unpaired.blind_match import BlindMatch, Kernel, blind_match
from platojax.evaluation.unpaired.mini_vec2vec import mini_vec2vec
from platojax.evaluation.unpaired.progress import OnProgress
from platojax.evaluation.unpaired.qap import Assignment, quadratic_assignment
from platojax.evaluation.unpaired.rosetta import Settings, UnpairedRotation, unpaired_rotation

__all__ = [
    "Assignment",
    "BlindMatch",
    "Kernel",
    "OnProgress",
    "Settings",
    "UnpairedRotation",
    "blind_match",
    "mini_vec2vec",
    "quadratic_assignment",
    "unpaired_rotation",
]
