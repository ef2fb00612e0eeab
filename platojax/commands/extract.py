"""`platojax extract`: features of a frozen encoder, extracted once."""

import dataclasses
import hashlib
import importlib.util
import json
import pathlib
import time
from collections.abc import Iterator

from ml_collections import ConfigDict
from rich.console import Console

import platojax
from platojax.data.items import Items, load_items
from platojax.evaluation.extraction import describe, extract
from platojax.evaluation.features import FeatureMeta, read_features, read_meta
from platojax.evaluation.mapped import MapFile, read_map
from platojax.evaluation.rotation import hash_map
from platojax.open_encoder import EncoderOptions, open_encoder, stamp
from platojax.terminal import count_line


def run(
    encoder: pathlib.Path,
    data: str,
    out: pathlib.Path,
    *,
    options: EncoderOptions,
    observations: int | None,
    prompts: str | None,
    rotation: pathlib.Path | None,
    models: pathlib.Path | None,
) -> bool:
    """Extracts features of one encoder, or of each of a list.

    Args:
      encoder: see `open_encoder`; or a `.py` config with a list, see
        configs/encoders/language_models.py.
      data: see `load_items`.
      out: the feature folder; of a list, the folder that gets one for each encoder.
      options: how to run the encoder.
      observations: of each item, take the first so many; None for all.
      prompts: for data about classes, the style of the texts made of them.
      rotation: a map of `platojax rotate`, by which the features go into its common space.
      models: where the folders of a list are.

    Returns:
      Whether all went well; one encoder of a list that fails does not stop the others.

    Raises:
      ValueError, OSError, ImportError: as `open_encoder`, `load_items` and `extract`.
    """
    console = Console()
    items = load_items(data, prompts)
    fitted = None if rotation is None else read_map(rotation)
    if observations is not None:
        items = items.first(observations)
    if encoder.suffix != ".py" and models is not None:
        raise ValueError(f"--models is for lists of encoders (.py); {encoder} is none")
    if encoder.suffix != ".py":
        _extract_one(console, encoder, items, out, options, fitted)
        return True
    if models is None:
        raise ValueError(f"{encoder} is a list of encoders: say where they are with --models")
    failed = []
    for folder, one in list(_read_list(encoder, options)):
        try:
            _extract_one(console, models / folder, items, out / folder, one, fitted)
        except Exception as error:  # also what a device out of memory raises
            failed.append(folder)
            reason = f"{folder}: {type(error).__name__}: " + " ".join(str(error).split())
            console.print(reason, style="red", markup=False)
    if failed:
        console.print(f"Failed: {', '.join(failed)}", style="red", markup=False)
    return not failed


def _extract_one(
    console: Console,
    path: pathlib.Path,
    items: Items,
    out: pathlib.Path,
    options: EncoderOptions,
    fitted: MapFile | None,
) -> None:
    request = _request(path, items, options, fitted)
    if (meta := _finished(out)) and meta.request == request:
        console.print(f"{out} holds these features already", markup=False)
        return
    encoder = open_encoder(path, options, items.modalities)
    placement = None
    if fitted is not None:
        placement = fitted.placement(describe(encoder, items), str(path))
    start = time.perf_counter()
    with count_line(console, encoder.name, len(items.ids)) as show:
        fresh = extract(encoder, items, out, request=request, placement=placement, on_progress=show)
    if not fresh:
        console.print(f"{out} holds these features already", markup=False)
        return
    console.print(
        f"{out}: {' x '.join(map(str, read_features(out).features.shape))} (items, layers, width), "
        f"{time.perf_counter() - start:.1f} s",
        markup=False,
    )


def _request(
    path: pathlib.Path, items: Items, options: EncoderOptions, fitted: MapFile | None
) -> str:
    """Tells at a glance, with no weights read, that the same was asked for before."""
    rotation = "" if fitted is None else hash_map(fitted.fitted)
    # Features do not depend on the batch size.
    settings = dataclasses.asdict(dataclasses.replace(options, batch_size=None))
    asked = [platojax.__version__, stamp(path), items.stamp(), rotation, settings]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _finished(out: pathlib.Path) -> FeatureMeta | None:
    try:
        return read_meta(out)
    except (ValueError, OSError):
        return None


def _read_list(path: pathlib.Path, options: EncoderOptions) -> Iterator[tuple[str, EncoderOptions]]:
    """The folder of each encoder of a list, and its options; those on the command line win."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        encoders = ConfigDict(module.get_config()).get("encoders")
    except Exception as error:  # whatever the file does
        raise ValueError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
    if not encoders:
        raise ValueError(f"get_config() of {path} has no `encoders`")
    known = {field.name for field in dataclasses.fields(EncoderOptions)}
    for encoder in encoders:
        unknown = set(encoder) - known - {"folder", "hub"}
        if "folder" not in encoder or unknown:
            raise ValueError(
                f"{path}: an encoder has the fields {sorted(encoder)}; needed is folder, and known "
                f"are hub, {', '.join(sorted(known))}"
            )
        own = {name: value for name, value in encoder.items() if name in known}
        yield encoder["folder"], EncoderOptions(**{**own, **options.given()})
