"""`platojax prepare`: a data set's own files, once, into folders that training reads.

Each command writes a folder (see `platojax.data.prepared`); docs/data.md says where the files of
each data set are from.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from platojax.cli_errors import one_line_errors

app = typer.Typer(no_args_is_help=True)


def path(text: str) -> pathlib.Path:
    """A path on the command line; an empty one, of a variable that is not set, say, is refused."""
    if not text:
        raise typer.BadParameter("the path is empty.")
    return pathlib.Path(text)


_Out = Annotated[pathlib.Path, typer.Option(parser=path, help="The folder to be.")]
_Tokenizer = Annotated[
    pathlib.Path | None,
    typer.Option(help="Tokenise now: quicker later, but words are lost. Default: texts stay."),
]
_Exclude = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="FILE", help="Ids of scenes to leave out, one a line."),
]
_Images = Annotated[
    pathlib.Path | None,
    typer.Option(
        parser=path, metavar="DIR", help="The images, also in folders of their own. Default: none."
    ),
]
_MaxBadFraction = Annotated[
    float, typer.Option(help="The largest share of what is read that may be unusable.")
]
_Files = Annotated[
    list[str], typer.Argument(metavar="FILES", help="Paths or URLs, perhaps with * in them.")
]
_OutAnywhere = Annotated[
    str,
    typer.Option(
        "--out",
        help="The folder to be; with --beam, also a URL, from which training needs it copied to a "
        "file system.",
    ),
]
_Workers = Annotated[int, typer.Option(help="Processes, of .parquet; 0 is one for each core.")]
_Beam = Annotated[
    str,
    typer.Option(
        metavar="ARGUMENTS",
        help="Run as a pipeline of Apache Beam, such as '--runner=DataflowRunner --region=...'.",
    ),
]
_RowsPerShard = Annotated[int, typer.Option(help="Of .parquet: rows that make a shard.")]
_Split = Annotated[str, typer.Option(help="Name of the split that the files are.")]


@app.callback()
def prepare() -> None:
    """A data set's own files, once, into a folder that training reads; see docs/data.md."""


@app.command()
def tokenizer(
    data: Annotated[
        str, typer.Argument(help="Prepared data; a pattern of .parquet or text files; emoji.")
    ],
    out: Annotated[pathlib.Path, typer.Option(help="The model file to be.")],
    vocab_size: Annotated[int, typer.Option(help="Number of tokens; 4,000 to 32,000, say.")] = 8000,
    model: Annotated[str, typer.Option(help="unigram or bpe.")] = "unigram",
    sample: Annotated[
        int, typer.Option(help="Texts at most; a million take some 7 GB of memory.")
    ] = 1_000_000,
    source: Annotated[
        list[str],
        typer.Option(help="Of the texts, or a Parquet column; may be given again. Default: all."),
    ] = [],  # noqa: B006  (typer reads the default, nobody changes it)
    split: Annotated[str, typer.Option(help="Of prepared data.")] = "train",
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
) -> None:
    """A sentencepiece tokenizer with byte fallback, on a random sample of texts."""
    with one_line_errors():
        from platojax.commands import tokenizer as command

        command.run(
            data,
            out,
            vocab_size=vocab_size,
            model=model,
            sample=sample,
            sources=source,
            split=split,
            seed=seed,
        )


@app.command()
def own(
    data: Annotated[
        pathlib.Path,
        typer.Argument(
            parser=path,
            help="Rows (.jsonl, .csv, .tsv, .parquet) with scene_id and caption, image.",
        ),
    ],
    out: _Out,
    heldout: Annotated[
        float, typer.Option(help="Share of the scenes that is kept from training.")
    ] = 0.0,
    tokenizer: _Tokenizer = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """Your own: rows of scene_id, caption and/or image; or a folder of images."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import own as reader

        command.run(
            "own",
            reader.read(data, heldout),
            [data] if data.is_file() else sorted(data.rglob("*.parquet")),
            out,
            command.Options(tokenizer, exclude, max_bad_fraction),
            {"heldout": heldout},
        )


@app.command()
def multi30k(
    folder: Annotated[
        pathlib.Path, typer.Argument(parser=path, help="With train.1.en.gz and so on.")
    ],
    out: _Out,
    images: _Images = None,
    tokenizer: _Tokenizer = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """Multi30k: five English and five German captions of each of Flickr30k's images."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import multi30k as reader

        command.run(
            "multi30k",
            reader.read(folder, images),
            reader.input_files(folder),
            out,
            command.Options(tokenizer, exclude, max_bad_fraction),
            {"images": images is not None},
        )


@app.command()
def flickr30k(
    captions: Annotated[
        pathlib.Path,
        typer.Argument(
            parser=path, help="dataset_flickr30k.json (Karpathy's) or results_20130124.token."
        ),
    ],
    out: _Out,
    images: _Images = None,
    tokenizer: _Tokenizer = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """Flickr30k: photographs with five captions each."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import flickr30k as reader

        command.run(
            "flickr30k",
            reader.read(captions, images),
            [captions],
            out,
            command.Options(tokenizer, exclude, max_bad_fraction),
            {"images": images is not None},
        )


@app.command()
def coco(
    captions: Annotated[
        list[pathlib.Path],
        typer.Argument(parser=path, help="captions_train2017.json and so on, or Karpathy's JSON."),
    ],
    out: _Out,
    images: _Images = None,
    karpathy: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FILE", help="Split official captions as Karpathy's JSON does."),
    ] = None,
    tokenizer: _Tokenizer = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """COCO captions: photographs with five captions each."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import coco as reader

        command.run(
            "coco",
            reader.read(captions, images, karpathy),
            captions if karpathy is None else [*captions, karpathy],
            out,
            command.Options(tokenizer, exclude, max_bad_fraction),
            {"images": images is not None, "karpathy": karpathy is not None},
        )


@app.command()
def msrvtt(
    annotations: Annotated[
        list[pathlib.Path],
        typer.Argument(parser=path, help="The official JSON files, and MSRVTT_JSFUSION_test.csv."),
    ],
    out: _Out,
    clips: Annotated[
        pathlib.Path | None, typer.Option(help="The folder of video0.mp4 and so on.")
    ] = None,
    tokenizer: _Tokenizer = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """MSR-VTT: video clips with 20 captions each."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import msrvtt as reader

        command.run(
            "msrvtt",
            reader.read(annotations, clips),
            annotations,
            out,
            command.Options(tokenizer, exclude, max_bad_fraction),
            {"clips": clips is not None},
        )


@app.command()
def imagenet(
    folder: Annotated[
        pathlib.Path, typer.Argument(parser=path, help="With train/n01440764/ and so on.")
    ],
    out: _Out,
    synsets: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FILE", help="Only these classes, one a line: ImageNet-100's."),
    ] = None,
    exclude: _Exclude = None,
    max_bad_fraction: _MaxBadFraction = 0.05,
) -> None:
    """ImageNet, ImageNet-100: folders of images, one for each class."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import imagenet as reader

        only = frozenset() if synsets is None else reader.read_synsets(synsets)
        command.run(
            "imagenet",
            reader.read(folder, only),
            reader.input_files(folder),
            out,
            command.Options(None, exclude, max_bad_fraction),
            {"synsets": sorted(only)},
        )


@app.command(name="wit-1024")
def wit(
    folder: Annotated[
        pathlib.Path,
        typer.Argument(parser=path, help="Snapshot of minhuh/prh at revision wit_1024."),
    ],
    out: _Out,
    max_bad_fraction: _MaxBadFraction = 0.0,
) -> None:
    """WIT-1024: images and captions on which the hypothesis's authors score encoders."""
    with one_line_errors():
        from platojax.commands import prepare as command
        from platojax.data.raw import wit as reader

        command.run(
            "wit_1024",
            reader.read(folder),
            reader.input_files(folder),
            out,
            command.Options(max_bad_fraction=max_bad_fraction),
        )


@app.command()
def recap(
    files: _Files,
    out: _OutAnywhere,
    tokenizer: _Tokenizer = None,
    split: _Split = "train",
    max_bad_fraction: _MaxBadFraction = 0.05,
    workers: _Workers = 0,
    rows_per_shard: _RowsPerShard = 1 << 19,
    beam: _Beam = "",
) -> None:
    """Recap-DataComp-1B: alt text and recaption of web images; goes on where it was killed."""
    with one_line_errors():
        from platojax.commands import prepare_web as command

        command.run_recap(
            files,
            out,
            command.Options(tokenizer, split, max_bad_fraction, workers, beam, rows_per_shard),
        )


@app.command()
def web(
    files: _Files,
    out: _OutAnywhere,
    tokenizer: _Tokenizer = None,
    split: _Split = "train",
    max_bad_fraction: _MaxBadFraction = 0.05,
    pictures: Annotated[bool, typer.Option("--pictures", help="Of .tar: keep images.")] = False,
    workers: _Workers = 0,
    rows_per_shard: _RowsPerShard = 1 << 19,
    beam: _Beam = "",
) -> None:
    """A caption for each web image: .tsv or .parquet of URLs and texts, .tar of webdataset."""
    with one_line_errors():
        from platojax.commands import prepare_web as command

        command.run_web(
            files,
            out,
            command.Options(tokenizer, split, max_bad_fraction, workers, beam, rows_per_shard),
            pictures=pictures,
        )
