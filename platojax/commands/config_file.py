"""Config files, as commands read them without training."""

import ast
import importlib.util
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from platojax.runs import Run, resolve_runs


def load_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The config of an experiment.

    Args:
      path: of a file in configs/, with `:ARGUMENT` where it takes one.
      overrides: `field.of.the.config=value`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an override is impossible.
    """
    name, _, argument = path.partition(":")
    spec = importlib.util.spec_from_file_location("platojax_config", name)
    if spec is None or spec.loader is None or not pathlib.Path(name).is_file():
        raise FileNotFoundError(f"--config {name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(argument) if argument else module.get_config()
    config.lock()
    for override in overrides:
        _override(config, override)
    return config


def arms_of(config: ConfigDict) -> dict[str, Run]:
    """The first run of each arm, by the arm's name.

    Raises:
      ValueError: see `runs.resolve_runs`.
    """
    arms: dict[str, Run] = {}
    for run in resolve_runs(config):
        arms.setdefault(run.arm, run)
    return arms


def check_arms(wanted: Sequence[str], arms: Sequence[str]) -> None:
    """Raises ValueError where an arm that is asked for is not in the config."""
    if unknown := [arm for arm in wanted if arm not in arms]:
        raise ValueError(f"--arm {unknown[0]!r} is not in the config; there are {', '.join(arms)}.")


def _override(config: ConfigDict, override: str) -> None:
    field, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"--set {override!r} must be FIELD=VALUE, such as text.batch_size=4096.")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text  # a word without quotation marks
    try:
        config.update_from_flattened_dict({field: value})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--set {override}: {error}") from error
