"""Encodes 11 random images with a pretrained encoder over all devices, and saves the features."""

import sys

import jax
import numpy as np
from PIL import Image

from platojax.encoders.pretrained import PretrainedEncoder, load_pretrained


def main(folder: str, out: str) -> None:
    encoder = PretrainedEncoder(load_pretrained(folder), pooling=("cls", "mean"), batch_size=11)
    pixels = np.random.default_rng(0).integers(0, 256, (11, 70, 90, 3), dtype=np.uint8)
    batch = [encoder.prepare(Image.fromarray(picture)) for picture in pixels]
    np.save(out, encoder.encode(batch))
    print(f"a batch of {encoder.batch_size} on {jax.device_count()} devices")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
