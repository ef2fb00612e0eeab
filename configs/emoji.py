"""Encoders of words and of drawings, trained separately on emoji, and compared.

    python -m platojax.main --config configs/emoji.py             # all arms
    python -m platojax.main --config configs/emoji.py:runlocal    # one seed, short

Two cores are enough: see the README for the time it takes and what it shows. The data ships inside
the package. Each arm is trained on its own; nothing is ever shown a word together with a drawing.
"""

from ml_collections import ConfigDict

from platojax.data.items import EMOJI_ARTISTS

# Two of these are two observations of one scene; `distinct` takes out the words that they share.
LANGUAGES = ("cldr_en", "cldr_de", "cldr_fr", "cldr_es", "cldr_it", "cldr_pt")
ENGLISH = ("cldr_en", "emojilib")
# Several hands. The data also has `fluent`, which are `fluent_flat`'s drawings with shading.
ARTISTS = EMOJI_ARTISTS


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "runlocal"):
        raise ValueError(f"configs/emoji.py takes no argument or 'runlocal'; got {form!r}.")
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0
    config.data = dict(name="emoji")

    # ---- What all arms of a modality share --------------------------------------------------
    optimizer = dict(warmup_fraction=0.1, weight_decay=0.05, clip_norm=1.0, b2=0.95)
    shared = dict(
        dtype="float32",  # of the computation; bfloat16 is slower on CPUs
        batch_size=64,  # SIGReg's weight depends on it, see platojax/objectives/lejepa.py
        accumulation_steps=1,  # micro-batches a step, for batches that do not fit
        mesh=dict(data=-1, fsdp=1, model=1),
        num_workers=0,
        log_every=10,
        # Steps. The last `keep`, the multiples of `keep_every`, the `keep_best` by monitor's score.
        checkpoint=dict(every=200, keep=2, keep_every=0, keep_best=0),
        trackers=(),  # beside metrics.jsonl: "tensorboard", "wandb"
        profile=dict(steps=()),  # the first and the last step to trace
        nonfinite_limit=20,  # updates in a row
        collapse=dict(min_spread=0.02, min_effective_rank=1.5, patience=5, stop=False),
    )
    config.text = ConfigDict(
        dict(
            modality="text",
            num_samples=64 * (40 if short else 300),  # scenes, two sequences each
            encoder=dict(width=96, depth=2, num_heads=4, mlp_dim=384, max_length=16, remat=False),
            packing=dict(group_size=0, rows=0, row_length=0),  # none; see docs/training.md
            # Better than 1e-3 for good and for bad views, judged on training scenes; next-token
            # prediction gains nothing from 1e-2.
            optimizer=dict(learning_rate=3e-3, **optimizer),
            **shared,
        )
    )
    config.image = ConfigDict(
        dict(
            modality="image",
            num_samples=64 * (30 if short else 400),
            encoder=dict(
                width=128,
                depth=2,
                num_heads=4,
                mlp_dim=512,
                patch_size=8,
                image_size=32,
                remat=False,  # True keeps no activations inside blocks, for a second forward pass
            ),
            optimizer=dict(learning_rate=2e-3, **optimizer),
            **shared,
        )
    )

    # ---- The arms -------------------------------------------------------------------------
    # Each arm gets its own copy: a dict used twice would be one config, overridden together.
    several = 1 if short else 3  # seeds
    lejepa = dict(
        name="lejepa", lam=0.05, num_slices=256, projector_hidden=(256,), projector_dim=64
    )
    two_languages = dict(name="two_texts", sources=LANGUAGES, distinct=True)
    arms = dict(
        image_good=dict(
            label="two artists",
            modality="image",
            seeds=1,
            objective=dict(lejepa),
            views=dict(name="two_pictures", sources=ARTISTS),
        ),
        image_bad=dict(
            label="two crops",
            modality="image",
            seeds=1,
            objective=dict(lejepa),
            views=dict(name="two_crops", sources=ARTISTS),
        ),
        text_good=dict(
            label="two languages",
            modality="text",
            seeds=several,
            objective=dict(lejepa),
            views=dict(two_languages),
        ),
        text_same_wording=dict(
            label="two English sources",
            modality="text",
            seeds=1,
            objective=dict(lejepa),
            views=dict(name="two_texts", sources=ENGLISH, distinct=False),
        ),
        text_bad=dict(
            label="two masks of one text",
            modality="text",
            seeds=several,
            objective=dict(lejepa),
            views=dict(name="two_masks", sources=LANGUAGES, mask_ratio=0.5),
        ),
        text_next_token=dict(
            label="next-token prediction",
            modality="text",
            seeds=several,
            objective=dict(name="next_token"),
            views=dict(two_languages),
        ),
    )
    config.arms = ConfigDict(arms)

    # ---- While it trains --------------------------------------------------------------------
    config.monitor = dict(
        every=0,  # samples between evaluations; 0 for none
        data="emoji:heldout",  # as of `platojax extract`
        targets=(),  # feature folders of the same data
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )

    # ---- The comparison ---------------------------------------------------------------------
    config.evaluation = dict(
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
        snapshots=(0.5,) if short else (0.125, 0.25, 0.5, 0.75),  # shares, beside 0 and 1
        # A scene's features are means over what these say of it, and over `drawings` drawings by
        # the first of these artists who drew it.
        sources=("cldr_en",),
        artists=ARTISTS,
        drawings=3,
    )
    return config
