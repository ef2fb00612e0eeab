"""A text encoder of 109M parameters on 940 million web images, each known by two texts.

    platojax prepare tokenizer 'DIR/*.parquet' --vocab-size 32000 --out recap.model
    python -m platojax.main --config configs/recap_940m.py --config.data.files='DIR/*.parquet' \
        --config.data.tokenizer=recap.model

DIR holds Parquet files of Recap-DataComp-1B (Hugging Face: UCSC-VLAA/Recap-DataComp-1B, CC BY 4.0);
launch/README.md says how to start it on a pod. The same from prepared data, which is without
duplicates, tokenised once, and shuffled as a whole (docs/data.md):

    platojax prepare recap 'DIR/*.parquet' --out prepared/recap --tokenizer recap.model
    python -m platojax.main --config configs/recap_940m.py:prepared

The form for a laptop needs a file in the same
format with at least a hundred rows, and nothing else: a tiny encoder, a minute on two cores.

    python -m platojax.main --config configs/recap_940m.py:runlocal --config.data.files=FILE.parquet

Good views are the alt text that the web has of an image, and what a vision-language model wrote
when it saw the image: two observations of one scene.
"""

from ml_collections import ConfigDict

from platojax.data.recap import SOURCES


def get_config(form: str = "") -> ConfigDict:
    if form not in ("", "prepared", "runlocal"):
        raise ValueError(
            f"configs/recap_940m.py takes no argument, 'prepared' or 'runlocal'; got {form!r}."
        )
    short = form == "runlocal"
    config = ConfigDict()
    config.seed = 0

    config.data = dict(
        name="recap",
        files="",  # a pattern; at least one file for each process
        # A file, or "emoji" for the embedded one.
        tokenizer="emoji" if short else "",
        # Of the tokenizer, which must agree; so that the step can be built before there is one.
        vocabulary=dict(vocab_size=4_000 if short else 32_000, pad_id=0),
        open_files=16,  # of a process, whose rows are mixed
        window=65_536,  # rows that are shuffled together; some tens of MB
        max_characters=4_096,  # web pages have put whole articles there
        max_bad_fraction=0.05,
    )
    if form == "prepared":
        config.data = dict(
            name="prepared",
            folder="prepared/recap",
            train="train",
            heldout="",
            tokenizer="recap.model",
            vocabulary=dict(vocab_size=32_000, pad_id=0),
            max_bad_fraction=0.0,  # each scene has both texts
        )

    config.text = ConfigDict(
        dict(
            modality="text",
            dtype="float32" if short else "bfloat16",
            # The deviation that SIGReg measures counts N-fold, so lam belongs to this batch size.
            batch_size=64 if short else 16_384,
            num_samples=64 * 60 if short else 940_000_000,
            # 85M parameters in the blocks and 25M in the embedding. Recaptions have about 50 words,
            # 64 tokens hold most of them whole; alt texts a dozen.
            encoder=dict(
                width=96 if short else 768,
                depth=2 if short else 12,
                num_heads=4 if short else 12,
                mlp_dim=384 if short else 3_072,
                max_length=32 if short else 64,
                remat=False,  # True keeps no activations inside blocks, for a second forward pass
            ),
            optimizer=dict(
                # LeJEPA's own for ViTs (arXiv 2511.08544), as the weight decay and the cosine to a
                # thousandth. Nothing was tuned at this batch size.
                learning_rate=1e-3 if short else 5e-4,
                weight_decay=0.05,
                warmup_fraction=0.1 if short else 0.035,  # 2,000 of 57,373 steps
                clip_norm=1.0,  # without it, training could collapse
                b2=0.95,  # large batches: the second moment need not remember long
            ),
            accumulation_steps=1,
            # Alt texts have about a dozen tokens, recaptions fill their 64. Either may come first:
            # 39 a scene on average, and 26 rows hold 52. That is the same step in 81% of the padded
            # tokens. Watch `tokens_cut`. All fields 0 is no packing.
            packing=dict(group_size=16, rows=6, row_length=64)
            if short
            else dict(group_size=64, rows=26, row_length=128),
            # 109M parameters and their moments fit on every chip.
            mesh=dict(data=-1, fsdp=1, model=1),
            num_workers=0 if short else 16,  # see docs/benchmarks.md
            log_every=10 if short else 50,
            checkpoint=dict(
                every=20 if short else 500,
                keep=2 if short else 3,
                keep_every=0 if short else 10_000,
                keep_best=0 if short else 2,
            ),
            trackers=(),  # beside metrics.jsonl: "tensorboard", "wandb"
            profile=dict(steps=()),  # the first and the last step to trace
            nonfinite_limit=20,  # updates in a row
            collapse=dict(min_spread=0.02, min_effective_rank=1.5, patience=5, stop=not short),
        )
    )

    config.arms = ConfigDict(
        dict(
            text_good=dict(
                label="alt text and recaption",
                modality="text",
                seeds=1,
                objective=dict(
                    name="lejepa",
                    lam=0.05,  # LeJEPA's, for batches of 128 and more
                    num_slices=64 if short else 1_024,
                    projector_hidden=(96,) if short else (2_048, 2_048),
                    projector_dim=64,  # narrow was best, says the paper
                ),
                views=dict(name="two_texts", sources=SOURCES, distinct=False),
            ),
        )
    )
    config.monitor = dict(
        every=0,  # samples between evaluations against `targets`, 0 for none; ten million, say
        data="",  # as of `platojax extract`, with texts
        targets=(),  # feature folders of the same data, by frozen vision models
        metric="mutual_knn",
        k=10,
        clip="none",
        num_permutations=200,
        seed=0,
    )
    return config
