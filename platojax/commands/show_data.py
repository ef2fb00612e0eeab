"""`platojax data`: positive pairs of a config's data, to look at before anything is trained."""

import pathlib
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console

from platojax.commands.config_file import arms_of, check_arms, load_config
from platojax.data.mixture import Mixture, Scenes
from platojax.data.scenes import Scene, SceneStream
from platojax.data.sources import load_source
from platojax.data.tokenizer import Tokenizer
from platojax.data.usable import usable_scenes
from platojax.data.views import ViewPolicy, make_views
from platojax.files import check_writable
from platojax.report.view_sheet import Block, check_suffix, draw_sheet
from platojax.runs import Run

_COUNTED = 256  # scenes whose tokens are counted


def run(
    config: str,
    *,
    arms: Sequence[str],
    scenes: int,
    seed: int,
    overrides: Sequence[str],
    out: pathlib.Path | None,
) -> None:
    """Prints views of some scenes as each arm gets them, and draws them.

    Args:
      config: path of a config file, with `:ARGUMENT` where it takes one.
      arms: their names; all of the config where empty.
      scenes: how many to show of each.
      seed: of the choice of scenes, and of their views.
      overrides: `field.of.the.config=value`.
      out: the picture sheet to be; None for none.

    Raises:
      ValueError: a field is impossible, or the data cannot give the views.
      FileNotFoundError: a file is missing.
    """
    if scenes < 1:
        raise ValueError(f"--scenes must be at least 1; got {scenes}.")
    if out is not None:
        check_suffix(out)
        check_writable(out, inputs=[config.partition(":")[0]])
    whole = load_config(config, overrides)
    runs = arms_of(whole)
    check_arms(arms, list(runs))
    source = load_source(whole.data)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    # All of them first, so that a mistake is one line and not a page.
    policies = {name: _policy(runs[name], source.tokenizer) for name in arms or runs}
    blocks = []
    for name, policy in policies.items():
        usable = usable_scenes(source.train, policy, whole.data.get("max_bad_fraction", 0.0))
        text = runs[name].config.modality == "text"
        chosen = _choose(usable, max(scenes, _COUNTED) if text else scenes, seed)
        views = [
            (scene.scene_id, _flat(policy(scene, np.random.default_rng([seed, number]))))
            for number, scene in enumerate(chosen)
        ]
        title = _title(runs[name], usable, views, source.tokenizer)
        console.print(title)
        rows: list[tuple[str, Sequence[str | np.ndarray]]] = []
        for scene_id, cells in views[:scenes]:
            console.print(f"  {scene_id}")
            if text:
                words = [_words(cell, source.tokenizer) for cell in cells]
                console.print("\n".join(f"    {one}" for one in words))
                rows.append((scene_id, words))
            else:
                sides = " ".join(f"{cell.shape[-2]}x{cell.shape[-3]}" for cell in cells)
                console.print(f"    pixels: {sides}")
                rows.append((scene_id, cells))
        blocks.append(Block(title, rows))
    if out is not None:
        draw_sheet(out, blocks)
        console.print(f"Sheet: {out}")
    elif any(runs[name].config.modality == "image" for name in policies):
        console.print("--out sheet.png draws the pictures.")


def _policy(run: Run, tokenizer: Tokenizer) -> ViewPolicy:
    try:
        return make_views(run.config.views, run.config.encoder, tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        kind = "" if isinstance(error, ValueError) else "a field is missing or of another type: "
        raise ValueError(f"{run.arm}: {kind}{error}") from error


def _choose(scenes: Scenes, count: int, seed: int) -> list[Scene]:
    if isinstance(scenes, Mixture):
        ordered = scenes.dataset(seed, count)
        return [ordered[index] for index in range(count)]
    if isinstance(scenes, SceneStream):
        blocks = iter(scenes.blocks(count, seed=seed, process_index=0, process_count=1))
        block = next(blocks)
        blocks.close()
        return [scene for _, scene in block]
    order = np.random.default_rng(seed).permutation(len(scenes))[:count]
    return [scenes[int(index)] for index in order]


def _flat(views: np.ndarray | tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """The views one by one, whatever their sizes."""
    return [view for part in jax.tree.leaves(views) for view in part]


def _title(
    run: Run,
    scenes: Scenes,
    views: Sequence[tuple[str, Sequence[np.ndarray]]],
    tokenizer: Tokenizer,
) -> str:
    """Such as `text_good, two languages: two_texts of 1,080 scenes; tokens ...`."""
    config = run.config
    if isinstance(scenes, SceneStream):
        many = "a stream of"
    elif isinstance(scenes, Mixture):
        many = " and ".join(f"{len(part):,}" for part in scenes.parts.values()) + " mixed"
    else:
        many = f"{len(scenes):,}"
    title = f"{run.arm}, {config.label}: {config.views.name} of {many} scenes"
    if config.modality != "text":
        return title
    counts = np.array([_count(view, tokenizer) for _, cells in views for view in cells])
    limit = config.encoder.max_length
    full = np.mean(counts == limit)
    return (
        f"{title}; tokens of a view: {counts.mean():.1f} in the mean, {counts.max()} at most, "
        f"{full:.1%} fill all {limit} ({len(views)} scenes)"
    )


def _count(row: np.ndarray, tokenizer: Tokenizer) -> int:
    """Tokens, with both ends."""
    return int(np.sum(row != tokenizer.pad_id))


def _words(row: np.ndarray, tokenizer: Tokenizer) -> str:
    return f"{_count(row, tokenizer):4d} tokens  {tokenizer.decode(row)}"
