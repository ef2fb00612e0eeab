"""Encoders trained on scenes of your own: texts about them, pictures of them, or both.

    platojax prepare own captions.csv --heldout 0.1 --out prepared/own
    platojax prepare tokenizer prepared/own --vocab-size 4000 --out prepared/own.model
    platojax data configs/own.py                               # look before you train
    python -m platojax.main --config configs/own.py            # texts
    python -m platojax.main --config configs/own.py:images     # texts and pictures
    python -m platojax.main --config configs/own.py:runlocal   # texts, a minute

docs/data.md shows what captions.csv may look like. Any other prepared data will do as well:
`--config.data.folder=DIR --config.data.tokenizer=FILE`.
Then compare what was trained separately:

    platojax extract --encoder WORKDIR/text_good-seed0 --data prepared/own:heldout --out words
    platojax extract --encoder WORKDIR/image_crops-seed0 --data prepared/own:heldout --out pictures
    platojax score words pictures
"""

from ml_collections import ConfigDict


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "images", "runlocal"):
        raise ValueError(f"configs/own.py takes no argument, 'images' or 'runlocal'; got {form!r}.")
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0

    config.data = dict(
        name="prepared",
        folder="prepared/own",
        train="train",
        tokenizer="prepared/own.model",
        vocabulary=dict(),  # that of the tokenizer
        # Scenes that lack what an arm's views need, such as a second text, are left out.
        max_bad_fraction=0.1,
    )

    # ---- What all arms of a modality share --------------------------------------------------
    optimizer = dict(
        learning_rate=1e-3, warmup_fraction=0.1, weight_decay=0.05, clip_norm=1.0, b2=0.95
    )
    shared = dict(
        dtype="float32",  # of the computation; bfloat16 is slower on CPUs
        batch_size=64,  # SIGReg's weight depends on it, see platojax/objectives/lejepa.py
        accumulation_steps=1,
        mesh=dict(data=-1, fsdp=1, model=1),
        num_workers=0,
        log_every=10,
        checkpoint=dict(every=200, keep=2, keep_every=0, keep_best=0),
        trackers=(),  # beside metrics.jsonl: "tensorboard", "wandb"
        profile=dict(steps=()),
        nonfinite_limit=20,
        collapse=dict(min_spread=0.02, min_effective_rank=1.5, patience=5, stop=False),
    )
    config.text = ConfigDict(
        dict(
            modality="text",
            num_samples=64 * (30 if short else 1_000),  # scenes, two sequences each
            encoder=dict(width=128, depth=2, num_heads=4, mlp_dim=512, max_length=32, remat=False),
            packing=dict(group_size=0, rows=0, row_length=0),  # none; see docs/training.md
            optimizer=dict(optimizer),
            **shared,
        )
    )
    config.image = ConfigDict(
        dict(
            modality="image",
            num_samples=64 * 1_000,
            encoder=dict(
                width=192,
                depth=4,
                num_heads=4,
                mlp_dim=768,
                patch_size=8,
                image_size=64,
                remat=False,
            ),
            optimizer=dict(optimizer),
            **shared,
        )
    )

    # ---- The arms -------------------------------------------------------------------------
    # Each arm gets its own copy: a dict used twice would be one config, overridden together.
    lejepa = dict(
        name="lejepa", lam=0.05, num_slices=256, projector_hidden=(256,), projector_dim=64
    )

    def arm(label: str, modality: str, objective: dict, **views) -> dict:
        return dict(label=label, modality=modality, seeds=1, objective=dict(objective), views=views)

    arms = dict(
        text_good=arm("two texts", "text", lejepa, name="two_texts"),
        text_bad=arm("two crops of one text", "text", lejepa, name="two_spans"),
        text_next_token=arm(
            "next-token prediction", "text", dict(name="next_token"), name="two_texts"
        ),
    )
    if form == "images":
        arms["image_crops"] = arm("crops of one picture", "image", lejepa, name="two_crops")
    config.arms = ConfigDict(arms)

    # ---- While it trains --------------------------------------------------------------------
    config.monitor = dict(
        every=0,  # samples between evaluations; 0 for none
        data="prepared/own:heldout",  # as of `platojax extract`
        targets=(),  # feature folders of the same data, by frozen encoders
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )
    return config
