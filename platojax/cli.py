"""The `platojax` command: tools that work on files; training is `python -m platojax.main`.

Commands import what they need when they run, so that `--help` does not wait for JAX.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from platojax import cli_prepare
from platojax.cli_errors import one_line_errors

_JsonOut = Annotated[
    pathlib.Path | None, typer.Option("--json", metavar="OUT", help="Also write JSON here.")
]
_PlotOut = Annotated[
    pathlib.Path | None, typer.Option(metavar="OUT", help="Also draw here: .png, .svg or .pdf.")
]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def platojax() -> None:
    """Tools that work on files; training is `python -m platojax.main`."""


app.add_typer(cli_prepare.app, name="prepare")


@app.command()
def score(
    encoders: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C ...]",
            help="Feature folders, .npy, .npz or platonic-rep .pt, of the same items in one order.",
        ),
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
    layers: Annotated[
        list[str],
        typer.Option(
            help="all, last, names, indices (-1), ranges (3-7), beginnings (block_*), with commas; "
            "once for all encoders, or once for each."
        ),
    ] = ["all"],  # noqa: B006  (typer reads the default, nobody changes it)
    permutations: Annotated[int, typer.Option(help="Wrong pairings to compare with.")] = 200,
    subsamples: Annotated[int, typer.Option(help="Of the confidence interval.")] = 200,
    seed: Annotated[int, typer.Option(help="Of permutations, subsamples and halves.")] = 0,
    against: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="DIR", help="Rank all feature folders in DIR by how well A fits them."
        ),
    ] = None,
    untrained: Annotated[
        str | None, typer.Option(metavar="A0", help="Features of A before its training.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Also for fewer items and other k.")
    ] = False,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT", help="Also write JSON here; - for JSON on stdout."),
    ] = None,
    plot: _PlotOut = None,
) -> None:
    """How well the representations of encoders agree, beside what chance would give."""
    with one_line_errors():
        from platojax.commands import score as command
        from platojax.evaluation.scorecard import Protocol

        command.run(
            encoders,
            Protocol(
                metric=metric,  # type: ignore[arg-type]  # checked where it is used
                k=k,
                clip=clip,  # type: ignore[arg-type]
                num_permutations=permutations,
                num_subsamples=subsamples,
                seed=seed,
            ),
            layers=layers,
            against=against,
            untrained=untrained,
            curves=curves,
            json_out=json_out,
            plot=plot,
        )


@app.command()
def extract(
    encoder: Annotated[
        pathlib.Path,
        typer.Option(
            help="Hugging Face folder, DINOv2 .pth, .onnx, WORKDIR/RUN, or a .py list of encoders."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="emoji[:heldout|:train]; a folder of images; .jsonl, .csv, .tsv, .parquet or "
            ".txt; prepared data as FOLDER:SPLIT[:SOURCE]."
        ),
    ],
    out: Annotated[pathlib.Path, typer.Option(help="The feature folder to be.")],
    modality: Annotated[
        str | None, typer.Option(help="text or image, of an encoder of both.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="Such as cls, mean or last; several with commas. Default: by encoder."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default) or bfloat16.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts or images at a time.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens at most.")] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens", help="Such as BOS.", show_default=False
        ),
    ] = None,
    observations: Annotated[
        int | None,
        typer.Option(help="Take the first so many of each item; default: all, averaged."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="Data are classes, with a name each: clip, name or definition."),
    ] = None,
    rotation: Annotated[
        pathlib.Path | None,
        typer.Option(help="Into the common space of this map, which `platojax rotate` wrote."),
    ] = None,
    untrained: Annotated[
        int | None, typer.Option(metavar="SEED", help="Random weights instead: the control.")
    ] = None,
    models: Annotated[
        pathlib.Path | None, typer.Option(help="Where the folders of a list of encoders are.")
    ] = None,
) -> None:
    """Features of a frozen encoder, extracted once; a killed extraction goes on where it was."""
    with one_line_errors():
        from platojax.commands import extract as command
        from platojax.open_encoder import EncoderOptions

        options = EncoderOptions(
            modality=modality,  # type: ignore[arg-type]  # the encoder checks it
            pooling=tuple(part.strip() for part in pooling.split(",")) if pooling else None,
            dtype=dtype,
            batch_size=batch_size,
            max_length=max_length,
            special_tokens=special_tokens,
            untrained=untrained,
        )
        done = command.run(
            encoder,
            data,
            out,
            options=options,
            observations=observations,
            prompts=prompts,
            rotation=rotation,
            models=models,
        )
    if not done:
        raise typer.Exit(1)


@app.command()
def rotate(
    x: Annotated[str, typer.Argument(metavar="X", help="Features of the encoder to be mapped.")],
    y: Annotated[str, typer.Argument(metavar="Y", help="Of the encoder into whose space.")],
    out: Annotated[pathlib.Path, typer.Option(help="The .safetensors file to be.")],
    method: Annotated[
        str,
        typer.Option(help="With pairs: procrustes, ridge. Without: rosetta, mini-vec2vec."),
    ] = "procrustes",
    layers: Annotated[
        list[str], typer.Option(help="One layer of both, or of each, see `score`.")
    ] = ["last"],  # noqa: B006  (typer reads the default, nobody changes it)
    whiten: Annotated[
        bool, typer.Option("--whiten", help="Let all directions count alike (with pairs).")
    ] = False,
    held_out: Annotated[float, typer.Option(help="Share of the items to try the map on.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split and of the fit.")] = 0,
    seeds: Annotated[int, typer.Option(help="Fits without pairs, of which the best is kept.")] = 5,
    remove: Annotated[
        int,
        typer.Option(help="Rosetta: principal components of each side on trial to be left out."),
    ] = 0,
    test: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="X Y", help="Paired features to try a map without pairs on."),
    ] = None,
    json_out: _JsonOut = None,
    plot: _PlotOut = None,
) -> None:
    """The map from one encoder's space into another's, fitted with pairs or without any."""
    with one_line_errors():
        from platojax.commands import rotate as command

        plan = command.Plan(method, whiten, held_out, seed, seeds, remove)
        command.run(x, y, out, plan, layers=layers, test=test, json_out=json_out, plot=plot)


@app.command()
def retrieve(
    a: Annotated[str, typer.Argument(metavar="A", help="Feature folder of one encoder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Of the other, of the same items.")],
    rotation: Annotated[pathlib.Path, typer.Option(help="The map between them.")],
    json_out: _JsonOut = None,
) -> None:
    """Retrieval between two encoders through a map: R@1, R@5, R@10, median rank, FOSCTTM."""
    with one_line_errors():
        from platojax.commands import use_map

        use_map.retrieve(a, b, rotation, json_out)


@app.command(name="zero-shot")
def zero_shot(
    images: Annotated[str, typer.Option(help="Feature folder of images.")],
    image_data: Annotated[str, typer.Option(help="Their data, with labels or class folders.")],
    classes: Annotated[str, typer.Option(help="Feature folder of prompts (extract --prompts).")],
    class_data: Annotated[str, typer.Option(help="Their data: id (the label), name.")],
    rotation: Annotated[pathlib.Path, typer.Option(help="The map between both encoders.")],
    json_out: _JsonOut = None,
) -> None:
    """Classifies images by the nearest class after a map: top-1 and top-5."""
    with one_line_errors():
        from platojax.commands import use_map

        use_map.classify(images, image_data, classes, class_data, rotation, json_out)


@app.command(name="compile")
def compile_(
    config: Annotated[
        str, typer.Option(metavar="FILE[:ARGUMENT]", help="The experiment, a file in configs/.")
    ],
    topology: Annotated[
        str, typer.Option(help="Chip and shape: v5e:16x16, v6e:8x8, v4:4x4x8, v5p:4x4x4.")
    ],
    arm: Annotated[str | None, typer.Option(help="Of the config; the first by default.")] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="FIELD=VALUE", help="Such as text.batch_size=4096."),
    ] = [],  # noqa: B006  (typer reads the default, nobody changes it)
    json_out: _JsonOut = None,
) -> None:
    """What a train step costs on a TPU pod, compiled for it on any x86 Linux machine."""
    with one_line_errors():
        from platojax.commands import compile as command

        fits = command.run(config, topology, arm=arm, overrides=overrides, json_out=json_out)
    if not fits:
        raise typer.Exit(1)


@app.command()
def data(
    config: Annotated[
        str, typer.Argument(metavar="FILE[:ARGUMENT]", help="The experiment, a file in configs/.")
    ],
    out: Annotated[
        pathlib.Path | None, typer.Option(help="A sheet of them: .png, .pdf or .svg.")
    ] = None,
    scenes: Annotated[int, typer.Option(help="How many of each arm.")] = 3,
    arm: Annotated[list[str], typer.Option(help="Of the config; all by default.")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Draws the scenes and their views.")] = 0,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="FIELD=VALUE", help="Such as data.folder=DIR."),
    ] = [],  # noqa: B006  (typer reads the default, nobody changes it)
) -> None:
    """Positive pairs of a config's data, as texts with token counts and as a sheet of pictures."""
    with one_line_errors():
        from platojax.commands import show_data

        show_data.run(config, arms=arm, scenes=scenes, seed=seed, overrides=overrides, out=out)


@app.command()
def scaling(
    runs: Annotated[
        list[pathlib.Path],
        typer.Argument(
            metavar="WORKDIR...",
            help="Of monitored experiments of several sizes; or JSON of this command.",
        ),
    ],
    target: Annotated[
        list[str], typer.Option(help="Name of a target's feature folder; all by default.")
    ] = [],  # noqa: B006  (typer reads the default, nobody changes it)
    baseline: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Compared with the others; next-token by default."),
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(help="Compare at this alignment; default: what the weaker arm ends with."),
    ] = None,
    predict: Annotated[
        list[int], typer.Option(metavar="SAMPLES", help="Extrapolate to; may be given again.")
    ] = [],  # noqa: B006
    json_out: _JsonOut = None,
    plot: _PlotOut = None,
) -> None:
    """Scaling laws of alignment, and how many times fewer samples each arm needs."""
    with one_line_errors():
        from platojax.commands import scaling as command

        command.run(
            runs, command.Options(target, baseline, at, predict), json_out=json_out, plot=plot
        )


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
