"""Readers of data sets in the formats that their authors publish, one module each.

A reader is a function that yields `RawScene`s and, for whatever it cannot use, `Rejected`s. It
knows nothing of how scenes are kept or trained on.
"""
