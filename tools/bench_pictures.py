"""Multi-crop views of photographs, beside a PyTorch DataLoader with torchvision on the same files.

    pip install torch torchvision
    python tools/bench_pictures.py FOLDER [--seconds 10] [--rounds 5]

Prints a Markdown table: pictures a second (each gives 2 views of 224 and 6 of 98 pixels, with the
jitter, grey, blur and solarising that LeJEPA has), and a second of one core where no worker helps.
Both sides give uint8 in batches of 32. torchvision is run on Pillow's images, with Pillow's blur as
DINO has it and with its own, and on tensors. All take turns, several rounds; the median counts.
"""

import argparse
import os
import pathlib
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from absl import flags
from ml_collections import ConfigDict
from PIL import Image, ImageFilter
from torchvision.transforms import v2

from platojax.data.images import IMAGE_SUFFIXES
from platojax.data.pipeline import make_pipeline
from platojax.data.preparation import write_prepared
from platojax.data.prepared import PreparedScenes
from platojax.data.raw.media import usable_picture
from platojax.data.raw.scene import RawScene
from platojax.data.views import make_views

BATCH, SIZE, LOCAL = 32, 224, 98
WORKERS = (0, 2)


class PillowBlur:
    """DINO's: a Gaussian of .1 to 2 pixels."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Blurs one."""
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def crop(size: int, scale: tuple[float, float], blur: Any, finish: Any) -> v2.Compose:
    """One view by torchvision."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=scale, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([blur], p=0.5),
            v2.RandomSolarize(128, p=0.2),
            finish,
        ]
    )


class TorchPictures(torch.utils.data.Dataset):
    """Files, opened by Pillow, and their views."""

    def __init__(self, files: list[pathlib.Path], kind: str) -> None:
        self.files = files
        tensors = kind == "tensors"
        self.first = v2.PILToTensor() if tensors else v2.Identity()
        blur = PillowBlur() if kind == "Pillow, its blur" else v2.GaussianBlur(7, (0.1, 2.0))
        finish = v2.Identity() if tensors else v2.PILToTensor()
        self.large = crop(SIZE, (0.3, 1.0), blur, finish)
        self.small = crop(LOCAL, (0.05, 0.3), blur, finish)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with Image.open(self.files[index]) as file:
            image = self.first(file.convert("RGB"))
        return (
            torch.stack([self.large(image) for _ in range(2)]),
            torch.stack([self.small(image) for _ in range(6)]),
        )


def torch_batches(files: list[pathlib.Path], kind: str, workers: int) -> Iterator[Any]:
    """Endless batches; the workers stay from one epoch to the next."""
    loader = torch.utils.data.DataLoader(
        TorchPictures(files, kind),
        BATCH,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def our_batches(folder: pathlib.Path, workers: int) -> Iterator[Any]:
    """Endless batches of platojax."""
    config = ConfigDict(dict(name="multi_crop", local_size=LOCAL))
    views = make_views(config, ConfigDict(dict(image_size=SIZE)), None)
    scenes = PreparedScenes(folder, "train")
    batches = make_pipeline(scenes, views, batch_size=BATCH, seed=0, num_workers=workers)
    try:
        while True:
            yield next(batches)
    finally:
        batches.close()


def rate(batches: Iterator[Any], workers: int, seconds: float) -> tuple[float, float]:
    """Pictures a second, and a second of this process's CPU time, once the workers are busy."""
    for _ in range(6 * workers + 1):  # what they made ahead is used up
        next(batches)
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - start), count / (time.process_time() - cpu)


def main() -> None:
    """Reads the arguments, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="photographs")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl's flags
    torch.set_num_threads(1)  # as DataLoader's workers do: one core for each process

    files = sorted(f for f in arguments.folder.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    sizes = np.array([Image.open(file).size for file in files])
    print(
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}; torch {torch.__version__}, "
        f"torchvision {torchvision.__version__}, Pillow {PIL.__version__}; {len(files)} files, "
        f"{sizes.mean(0).round().astype(int)} pixels in the mean.\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        out = pathlib.Path(temporary) / "pictures"
        pictures = (usable_picture(file, "photo", str(file)) for file in files)
        rows = (RawScene(str(i), "train", pictures=(p,)) for i, p in enumerate(pictures))
        write_prepared(rows, out, name="pictures", source={}, settings={})
        cases: dict[str, Callable[[int], Iterator[Any]]] = {
            "platojax": lambda workers: our_batches(out, workers),
            **{
                f"DataLoader, torchvision on {kind}": (
                    lambda workers, kind=kind: torch_batches(files, kind, workers)
                )
                for kind in ("Pillow, its blur", "Pillow", "tensors")
            },
        }
        print("| | workers | pictures/s | range | of a core | platojax is faster by |")
        print("|---|---|---|---|---|---|")
        for workers in WORKERS:
            rates: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
            for _ in range(arguments.rounds):
                for name, make in cases.items():
                    batches = make(workers)
                    rates[name].append(rate(batches, workers, arguments.seconds))
                    batches.close()
            # With workers, what this process does tells nothing of what a core can do.
            kind = 0 if workers else 1
            ours = statistics.median(found[kind] for found in rates["platojax"])
            for name, found in rates.items():
                wall, core = zip(*found, strict=True)
                own = statistics.median(core if kind else wall)
                print(
                    f"| {name} | {workers} | {statistics.median(wall):.1f} "
                    f"| {min(wall):.1f} to {max(wall):.1f} | {f'{own:.1f}' if kind else ''} "
                    f"| {ours / own:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
