"""platojax: train encoders that agree on one representation, and measure the agreement."""

__version__ = "0.1.0"
