"""The `platojax` command: tools that work on files; training is `python -m platojax.main`.

Commands import what they need when they run, so that `--help` does not wait for JAX.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from platojax.evaluation.calibration import Calibrated
    from platojax.evaluation.features import Features

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def platojax() -> None:
    """Tools that work on files; training is `python -m platojax.main`."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends a command with one line on stderr and exit code 2; warnings are one line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except (ValueError, OSError, ImportError) as error:
            typer.echo("error: " + " ".join(str(error).split()), err=True)
            raise typer.Exit(2) from error


@app.command()
def score(
    a: Annotated[
        str, typer.Argument(metavar="A", help="Feature folder, .npy, .npz or platonic-rep .pt.")
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="Features of the same items in the same order.")
    ],
    metric: Annotated[
        str,
        typer.Option(
            help="mutual_knn, cycle_knn, lcs_knn, cka, unbiased_cka, cknna, svcca or procrustes."
        ),
    ] = "mutual_knn",
    k: Annotated[int, typer.Option(help="Number of neighbours.")] = 10,
    clip: Annotated[
        str, typer.Option(help="Outliers: none, exact or mean (.95 quantile of magnitudes).")
    ] = "none",
    permutations: Annotated[int, typer.Option(help="Wrong pairings to compare with.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the permutations.")] = 0,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT", help="Also write JSON here; - for JSON on stdout."),
    ] = None,
) -> None:
    """How well the representations A and B agree, beside what chance would give."""
    with one_line_errors():
        from platojax.evaluation.alignment import check_settings
        from platojax.evaluation.calibration import calibrate
        from platojax.evaluation.features import check_same_items, read_features

        check_settings(metric, k, clip)
        sides = read_features(a), read_features(b)
        check_same_items(*sides)
        result = calibrate(
            sides[0].features,
            sides[1].features,
            metric=metric,  # type: ignore[arg-type]  # checked above
            k=k,
            clip=clip,  # type: ignore[arg-type]
            num_permutations=permutations,
            seed=seed,
        )
        if json_out != "-":
            _print_score(result, sides)
        if json_out is not None:
            _write_json(json_out, _score_document(result, sides))


@app.command()
def theory(
    out: Annotated[
        pathlib.Path, typer.Option(help="Folder for theory.json and theory.png.")
    ] = pathlib.Path("theory-results"),
    # The eigengap scales every bound; this seed's is near the median of the first twelve seeds.
    seed: Annotated[int, typer.Option(min=0, help="Draws the worlds.")] = 2,
) -> None:
    """The theorem in numbers: JEPAs of finite worlds, solved and trained (about two minutes)."""
    with one_line_errors():
        from platojax.theory.report import run

        run(out, seed)


@app.command()
def report(
    workdir: Annotated[pathlib.Path, typer.Argument(help="Of an experiment on the emoji.")],
) -> None:
    """Writes the report.html of a finished experiment again."""
    with one_line_errors():
        from platojax.data.scenes import load_emoji
        from platojax.report.page import write_page

        scenes = [*load_emoji("heldout"), *load_emoji("train")]
        typer.echo(f"Report: {write_page(workdir, scenes)}")


def _print_score(result: Calibrated, sides: tuple[Features, Features]) -> None:
    import rich.box
    import rich.console
    import rich.table
    import rich.text

    rows = []
    for name, side, layer in zip("AB", sides, result.layers, strict=True):
        rows.append((name, str(side.path)))
        if side.meta:
            rows.append(("", f"{side.meta.encoder}, {side.meta.pooling}, {side.meta.dataset}"))
        position = f"{layer} of 0..{side.features.shape[1] - 1}"
        rows.append(
            ("  layer", f"{side.meta.layers[layer]} ({position})" if side.meta else position)
        )
    rows += [
        ("score", f"{result.score:.4f}  (maximum over layers)"),
        ("chance", f"{result.chance:.4f}"),
        ("p-value", f"{result.p_value:.4f}"),
        ("calibrated", f"{result.calibrated:.4f}"),
        ("threshold", f"{result.threshold:.4f}  (alpha {result.alpha:g})"),
        ("metric", result.metric),
        ("k", "none" if result.k is None else str(result.k)),
        ("N", f"{result.n} items"),
        ("clip", result.clip),
        ("permutations", f"{result.num_permutations}, seed {result.seed}"),
    ]
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # As Text, because a path may hold the square brackets of rich's markup.
        table.add_row(name, rich.text.Text(value, overflow="fold"))
    rich.console.Console().print(table)


def _score_document(result: Calibrated, sides: tuple[Features, Features]) -> dict[str, Any]:
    from platojax.evaluation.features import library_versions

    names = [side.layer_name(layer) for side, layer in zip(sides, result.layers, strict=True)]
    described = (
        {"path": str(side.path), "meta": side.meta.to_json() if side.meta else None}
        for side in sides
    )
    return {
        **result.to_json(),
        "layer_names": names,
        **dict(zip("ab", described, strict=True)),
        "versions": library_versions(),
    }


def _write_json(out: str, document: dict[str, Any]) -> None:
    """Strict JSON: a NaN would be an error here, not a word that other parsers refuse."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if out == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(out).write_text(text, encoding="utf-8")
