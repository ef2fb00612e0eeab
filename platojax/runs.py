"""The runs of an experiment: what its config resolves to, and where they are in a workdir."""

import dataclasses
import json
import pathlib

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Run:
    """One arm under one seed.

    Attributes:
      arm: name of the arm.
      config: what `train` needs, complete.
    """

    arm: str
    config: ConfigDict

    @property
    def name(self) -> str:
        """Of the run's folder in the workdir."""
        return f"{self.arm}-seed{self.config.seed}"


def resolve_runs(config: ConfigDict) -> list[Run]:
    """The runs of an experiment, in order: each arm under each of its seeds.

    What an arm does not say itself is as `config.text` or `config.image` has it, by its modality;
    `config.data` is that of all.

    Raises:
      ValueError: if an arm's modality is unknown, or it has no seed.
    """
    runs = []
    for name, arm in config.arms.items():
        if arm.modality not in ("text", "image"):
            raise ValueError(
                f"config.arms.{name}.modality must be 'text' or 'image'; got {arm.modality!r}."
            )
        if arm.seeds < 1:
            raise ValueError(f"config.arms.{name}.seeds must be at least 1; got {arm.seeds}.")
        for seed in range(config.seed, config.seed + arm.seeds):
            resolved = {**config[arm.modality], **arm, "seed": seed, "data": config.data}
            runs.append(Run(name, ConfigDict(resolved)))
    if not runs:
        raise ValueError("config.arms is empty: there is nothing to train.")
    return runs


def read_runs(workdir: pathlib.Path) -> list[Run]:
    """The runs of the experiment in a workdir, by its `config.json`.

    Raises:
      FileNotFoundError: it has none.
      ValueError, AttributeError, KeyError: it is no config of an experiment.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{workdir} is no workdir of an experiment: it has no config.json.")
    return resolve_runs(ConfigDict(json.loads(path.read_text(encoding="utf-8"))))


def find_run(folder: pathlib.Path) -> Run:
    """The run whose folder this is, by the `config.json` of its workdir.

    Raises:
      ValueError: it is no folder of a run.
    """
    path = folder.parent / "config.json"
    try:
        runs = {run.name: run for run in read_runs(folder.parent)}
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise ValueError(
            f"{folder} is no run of an experiment: {path} cannot be used ({error})"
        ) from error
    if folder.name not in runs:
        raise ValueError(f"{path} has no run {folder.name}; it has {', '.join(runs)}")
    return runs[folder.name]
