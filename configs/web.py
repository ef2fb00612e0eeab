"""Text encoders on web captions, of which an image has one: bad views and next-token prediction.

    platojax prepare web Train_GCC-training.tsv --out prepared/web
    platojax prepare tokenizer prepared/web --vocab-size 32000 --out prepared/web.model
    python -m platojax.main --config configs/web.py                  # all arms
    python -m platojax.main --config configs/web.py:runlocal         # short

Files are tables of captions and URLs (Conceptual Captions: .tsv, LAION: .parquet) or shards of
webdataset as img2dataset writes them (.tar), see docs/data.md. Such data has no good views: two
texts of one scene are what it lacks, and an arm that asks for them is refused before the first
step. For good views of web images see configs/recap_940m.py.
"""

from ml_collections import ConfigDict


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "runlocal"):
        raise ValueError(f"configs/web.py takes no argument or 'runlocal'; got {form!r}.")
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0

    config.data = dict(
        name="prepared",
        folder="prepared/web",
        train="train",
        tokenizer="prepared/web.model",
        # Of the tokenizer, which must agree; so that the step can be built before there is one.
        vocabulary=dict(vocab_size=32_000, pad_id=0),
        max_bad_fraction=0.01,  # scenes that lack the texts that an arm's views need
    )

    batch_size = 64  # SIGReg's weight depends on it, see platojax/objectives/lejepa.py
    config.text = ConfigDict(
        dict(
            modality="text",
            dtype="float32",  # of the computation; bfloat16 is slower on CPUs
            batch_size=batch_size,
            num_samples=batch_size * (75 if short else 150_000),  # three epochs of CC3M
            # Few captions have more than 30 tokens.
            encoder=dict(
                width=128 if short else 384,
                depth=2 if short else 6,
                num_heads=4 if short else 6,
                mlp_dim=512 if short else 1_536,
                max_length=32,
                remat=False,  # True keeps no activations inside blocks, for a second forward pass
            ),
            optimizer=dict(
                learning_rate=1e-3,
                warmup_fraction=0.1,
                weight_decay=0.05,
                clip_norm=1.0,
                b2=0.95,
            ),
            accumulation_steps=1,
            packing=dict(group_size=0, rows=0, row_length=0),  # none; see docs/training.md
            mesh=dict(data=-1, fsdp=1, model=1),
            num_workers=0,
            log_every=10,
            # Steps. The last `keep`, multiples of `keep_every`, the `keep_best` by monitor's score.
            checkpoint=dict(every=25 if short else 1_000, keep=2, keep_every=0, keep_best=0),
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

    def arm(label: str, objective: dict, **views) -> dict:
        return dict(
            label=label,
            modality="text",
            seeds=1,
            objective=dict(objective),
            views=views,
        )

    # One caption an image: no arm here asks for two texts of a scene.
    config.arms = ConfigDict(
        dict(
            bad_mask=arm("two masks of one caption", lejepa, name="two_masks", mask_ratio=0.5),
            bad_spans=arm("two crops of one caption", lejepa, name="two_spans", ratio=0.5),
            bad_prefix=arm(
                "prefix and continuation of one caption",
                lejepa,
                name="prefix_continuation",
                min_share=0.25,
            ),
            next_token=arm("next-token prediction", dict(name="next_token"), name="one_text"),
        )
    )

    # ---- While it trains --------------------------------------------------------------------
    config.monitor = dict(
        every=0,  # samples between evaluations; 0 for none
        data="",  # as of `platojax extract`, with texts
        targets=(),  # feature folders of the same data, by frozen vision models
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )
    return config
