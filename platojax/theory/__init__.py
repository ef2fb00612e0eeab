"""The theorem in numbers: finite worlds, their closed-form optima, and JEPAs trained in them."""

from platojax.theory.spectral import procrustes_residual, spectral_optimum

__all__ = ["procrustes_residual", "spectral_optimum"]
