"""Image encoders on photographs: LeJEPA's multi-crop, and two lightly augmented crops.

    platojax prepare imagenet DIR --out prepared/photos      # or: prepare coco, flickr30k, own
    platojax data configs/photos.py --out sheet.png          # look before you train
    python -m platojax.main --config configs/photos.py
    python -m platojax.main --config configs/photos.py:runlocal    # small and short, for two cores

The full form is sized for an accelerator: ViT-S/14 on views of 224 and 98 pixels, LeJEPA's
optimiser (arXiv 2511.08544), 100 epochs of ImageNet-100. It was not run; the short form was.
"""

from ml_collections import ConfigDict


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "runlocal"):
        raise ValueError(f"configs/photos.py takes no argument or 'runlocal'; got {form!r}.")
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0

    config.data = dict(
        name="prepared",
        folder="prepared/photos",
        train="train",
        tokenizer="emoji",  # no arm has texts
        vocabulary=dict(),
        max_bad_fraction=0.01,  # scenes without a picture
    )

    batch_size = 16 if short else 256  # SIGReg's weight depends on it, see objectives/lejepa.py
    local_size = 32 if short else 98
    config.image = ConfigDict(
        dict(
            modality="image",
            dtype="float32" if short else "bfloat16",  # of the computation
            batch_size=batch_size,
            num_samples=batch_size * 60 if short else 12_700_000,
            encoder=dict(
                width=96 if short else 384,
                depth=2 if short else 12,
                num_heads=3 if short else 6,
                mlp_dim=384 if short else 1_536,
                patch_size=8 if short else 14,  # divides both sizes of views
                image_size=64 if short else 224,
                remat=False,  # True keeps no activations inside blocks, for a second forward pass
            ),
            optimizer=dict(
                learning_rate=2e-3 if short else 5e-4,
                warmup_fraction=0.1,
                weight_decay=0.05,
                clip_norm=1.0,
                b2=0.95,
            ),
            accumulation_steps=1,
            mesh=dict(data=-1, fsdp=1, model=1),
            num_workers=0 if short else 16,  # decoding takes more than the step: see benchmarks.md
            log_every=10,
            # Steps. The last `keep`, multiples of `keep_every`, the `keep_best` by monitor's score.
            checkpoint=dict(every=20 if short else 1_000, keep=2, keep_every=0, keep_best=0),
            trackers=(),  # beside metrics.jsonl: "tensorboard", "wandb"
            profile=dict(steps=()),  # the first and the last step to trace
            nonfinite_limit=20,  # updates in a row
            collapse=dict(min_spread=0.02, min_effective_rank=1.5, patience=5, stop=False),
        )
    )

    # ---- The arms -------------------------------------------------------------------------
    # Each arm gets its own copy: a dict used twice would be one config, overridden together.
    hidden = (256,) if short else (2_048, 2_048)
    lejepa = dict(
        name="lejepa", lam=0.05, num_slices=256, projector_hidden=hidden, projector_dim=64
    )
    config.arms = ConfigDict(
        dict(
            multi_crop=dict(
                label="2 global and 6 local crops",
                modality="image",
                seeds=1,
                objective=dict(lejepa),
                views=dict(name="multi_crop", local_size=local_size),
            ),
            two_crops=dict(
                label="two crops, light",
                modality="image",
                seeds=1,
                objective=dict(lejepa),
                views=dict(name="two_crops"),
            ),
        )
    )

    # ---- While it trains --------------------------------------------------------------------
    config.monitor = dict(
        every=0,  # samples between evaluations; 0 for none
        data="prepared/photos:val",  # as of `platojax extract`
        targets=(),  # feature folders of the same data
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )
    return config
