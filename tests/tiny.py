"""A config small enough that a run takes seconds, and the train and held-out scenes it needs."""

from ml_collections import ConfigDict

from platojax.data.scenes import EMOJI_TOKENIZER
from platojax.data.tokenizer import Tokenizer

SOURCES = ("cldr_en", "cldr_de", "cldr_fr")


def tokenizer() -> Tokenizer:
    return Tokenizer(EMOJI_TOKENIZER)


def arm_config(arm: str = "text_good", **changes) -> ConfigDict:
    """The resolved config of one run, with `changes` at its top level.

    Of the experiment's arms, and of `image_multi_crop`, which it leaves out.
    """
    from platojax.runs import resolve_runs

    config = experiment_config()
    config.arms.image_multi_crop = ConfigDict(
        {
            **config.arms.image_good,
            "views": dict(name="multi_crop", local_size=8, num_local=3),
        }
    )
    run = next(run for run in resolve_runs(config) if run.arm == arm)
    return ConfigDict({**run.config, **changes})


def experiment_config() -> ConfigDict:
    lejepa = dict(name="lejepa", lam=0.1, num_slices=16, projector_hidden=(16,), projector_dim=8)
    shared = dict(
        dtype="float32",
        batch_size=8,
        num_samples=8 * 6,
        optimizer=dict(
            learning_rate=1e-3, warmup_fraction=0.2, weight_decay=0.05, clip_norm=1.0, b2=0.95
        ),
        accumulation_steps=1,
        mesh=dict(data=-1, fsdp=1, model=1),
        num_workers=0,
        log_every=1,
        checkpoint=dict(every=2, keep=2, keep_every=0, keep_best=0),
        trackers=(),
        profile=dict(steps=()),
        nonfinite_limit=3,
        collapse=dict(min_spread=1e-6, min_effective_rank=1.01, patience=2, stop=False),
    )
    shape = dict(width=16, depth=1, num_heads=2, mlp_dim=32, remat=False)
    packing = dict(group_size=0, rows=0, row_length=0)
    return ConfigDict(
        dict(
            seed=0,
            data=dict(name="emoji"),
            text=dict(encoder=dict(max_length=12, **shape), packing=packing, **shared),
            image=dict(encoder=dict(patch_size=8, image_size=16, **shape), **shared),
            arms=dict(
                image_good=dict(
                    label="two artists",
                    modality="image",
                    seeds=1,
                    objective=dict(lejepa),
                    views=dict(name="two_pictures"),
                ),
                text_good=dict(
                    label="two languages",
                    modality="text",
                    seeds=2,
                    objective=dict(lejepa),
                    views=dict(name="two_texts", sources=SOURCES, distinct=True),
                ),
                text_next_token=dict(
                    label="next-token prediction",
                    modality="text",
                    seeds=1,
                    objective=dict(name="next_token"),
                    views=dict(name="two_texts", sources=SOURCES, distinct=True),
                ),
            ),
            monitor=dict(
                every=0,
                data="emoji:heldout",
                targets=(),
                metric="mutual_knn",
                k=10,
                clip="none",
                num_permutations=19,
                seed=0,
            ),
            evaluation=dict(
                metric="mutual_knn",
                k=10,
                clip="none",
                num_permutations=19,
                seed=0,
                snapshots=(0.5,),
                sources=("cldr_en",),
                artists=("noto", "twemoji"),
                drawings=2,
            ),
        )
    )
