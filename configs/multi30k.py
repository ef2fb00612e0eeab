"""Text encoders on Multi30k's captions: good views, three kinds of bad ones, next-token prediction.

    platojax prepare multi30k DIR --out prepared/multi30k
    platojax prepare tokenizer prepared/multi30k --vocab-size 4000 --out prepared/multi30k.model
    python -m platojax.main --config configs/multi30k.py             # all arms
    python -m platojax.main --config configs/multi30k.py:runlocal    # one seed, short
    python -m platojax.main --config configs/multi30k.py:best        # one arm, as good as we can

DIR holds Multi30k's task 2, see docs/data.md: 29,000 images of Flickr30k, each with five captions
in English and five in German. `--exclude FILE` of the first command leaves out scenes that an
evaluation needs unseen. All arms have the same encoder, tokenizer, corpus and number of samples; a
view of any of them is one caption, or a part of it. The encoder is small, so that two cores are
enough; `--config.text.encoder.width=256` and so on make it another.

To see how the arms come to agree with vision models while they train, extract the features of some
images and their captions once, and name them:

    platojax extract --encoder DINOV2 --data photos.jsonl --out cache/dinov2
    python -m platojax.main --config configs/multi30k.py --config.monitor.every=20000 \
        --config.monitor.data=photos.jsonl --config.monitor.targets="('cache/dinov2',)"
"""

from ml_collections import ConfigDict


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "runlocal", "best"):
        raise ValueError(
            f"configs/multi30k.py takes no argument, 'runlocal' or 'best'; got {form!r}."
        )
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0

    config.data = dict(
        name="prepared",
        folder="prepared/multi30k",
        train="train",
        tokenizer="prepared/multi30k.model",
        # Of the tokenizer, which must agree; so that the step can be built before there is one.
        vocabulary=dict(vocab_size=4_000, pad_id=0),
        max_bad_fraction=0.01,  # scenes that lack the texts that an arm's views need
    )

    batch_size = 64  # SIGReg's weight depends on it, see platojax/objectives/lejepa.py
    config.text = ConfigDict(
        dict(
            modality="text",
            dtype="float32",  # of the computation; bfloat16 is slower on CPUs
            batch_size=batch_size,
            # Scenes, two views each: about as many as there are captions in a language.
            num_samples=batch_size * (75 if short else 1_200),
            # Few captions have more than 30 tokens.
            encoder=dict(
                width=128,
                depth=2,
                num_heads=4,
                mlp_dim=512,
                max_length=32,
                remat=False,  # True keeps no activations inside blocks, for a second forward pass
            ),
            accumulation_steps=1,
            packing=dict(group_size=0, rows=0, row_length=0),  # none; see docs/training.md
            mesh=dict(data=-1, fsdp=1, model=1),
            num_workers=0,
            log_every=10,
            # Steps. The last `keep`, multiples of `keep_every`, the `keep_best` by monitor's score.
            checkpoint=dict(every=25 if short else 200, keep=2, keep_every=0, keep_best=0),
            trackers=(),  # beside metrics.jsonl: "tensorboard", "wandb"
            profile=dict(steps=()),  # the first and the last step to trace
            nonfinite_limit=20,  # updates in a row
            collapse=dict(min_spread=0.02, min_effective_rank=1.5, patience=5, stop=False),
        )
    )

    # ---- The arms -------------------------------------------------------------------------
    # Each arm gets its own copy: a dict used twice would be one config, overridden together.
    lejepa = dict(
        name="lejepa", lam=0.05, num_slices=256, projector_hidden=(256,), projector_dim=64
    )

    # Learning rates and the views' settings were tuned for each arm, with as many trials: see
    # docs/results/multi30k.md.
    def arm(label: str, objective: dict, *, learning_rate: float, **views) -> dict:
        return dict(
            label=label,
            modality="text",
            seeds=1,
            optimizer=dict(
                learning_rate=learning_rate,
                warmup_fraction=0.1,
                weight_decay=0.05,
                clip_norm=1.0,
                b2=0.95,
            ),
            objective=dict(objective),
            views=views,
        )

    english = ("en",)
    config.arms = ConfigDict(
        dict(
            good=arm("two captions", lejepa, learning_rate=2e-3, name="two_texts", sources=english),
            bad_mask=arm(
                "two masks of one caption",
                lejepa,
                learning_rate=1e-3,
                name="two_masks",
                sources=english,
                mask_ratio=0.25,
            ),
            bad_spans=arm(
                "two crops of one caption",
                lejepa,
                learning_rate=2e-3,
                name="two_spans",
                sources=english,
                ratio=0.7,
            ),
            bad_prefix=arm(
                "prefix and continuation of one caption",
                lejepa,
                learning_rate=1e-3,
                name="prefix_continuation",
                sources=english,
                min_share=0.25,
            ),
            # Its two sequences are predicted each on its own.
            next_token=arm(
                "next-token prediction",
                dict(name="next_token"),
                learning_rate=2e-3,
                name="two_texts",
                sources=english,
            ),
            german_good=arm(
                "two German captions",
                lejepa,
                learning_rate=2e-3,
                name="two_texts",
                sources=("de",),
            ),
        )
    )

    if form == "best":
        # Wide and shallow, and trained for long: see docs/results/multi30k.md.
        config.text.num_samples = 2**19
        config.text.encoder.update(width=256, depth=1, mlp_dim=1024)
        objective = {**lejepa, "num_slices": 1024, "projector_hidden": (512,)}
        best = arm("two captions", objective, learning_rate=1e-3, name="two_texts", sources=english)
        config.arms = ConfigDict(dict(best=best))

    # ---- While it trains --------------------------------------------------------------------
    config.monitor = dict(
        every=0,  # samples between evaluations; 0 for none
        # As of `platojax extract`; FOLDER:SPLIT:SOURCE is of prepared data.
        data="prepared/multi30k:val:en",
        targets=(),  # feature folders of the same data, by frozen vision models
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )
    return config
