"""Language models whose alignment with frozen vision models the papers report.

    hf download Qwen/Qwen2.5-0.5B --local-dir MODELS/Qwen2.5-0.5B     # and so on; see `hub` below
    platojax extract --encoder configs/encoders/language_models.py --models MODELS --data D --out F

Qwen2.5 and Llama 3 are of "Proving and Improving the Platonic Representation Hypothesis with
JEPAs"; BLOOMZ, OpenLLaMA and LLaMA of "The Platonic Representation Hypothesis" (arXiv 2405.07987),
whose pooling is the mean over valid tokens. Meta's models need their licence accepted at the hub
first; of LLaMA 1 the hub has copies only, made by others. In bfloat16 a model takes 2 bytes per
parameter: those of 65B and more need several GPUs, and `accelerate`.
"""

from ml_collections import ConfigDict

# Repository at the hub, and texts at a time.
MODELS = (
    ("Qwen/Qwen2.5-0.5B", 64),
    ("Qwen/Qwen2.5-1.5B", 32),
    ("Qwen/Qwen2.5-3B", 32),
    ("Qwen/Qwen2.5-7B", 16),
    ("Qwen/Qwen2.5-14B", 16),
    ("Qwen/Qwen2.5-32B", 8),
    ("Qwen/Qwen2.5-72B", 8),
    ("meta-llama/Llama-3.2-1B", 32),
    ("meta-llama/Llama-3.2-3B", 32),
    ("meta-llama/Meta-Llama-3-8B", 16),
    ("meta-llama/Meta-Llama-3-70B", 8),
    ("bigscience/bloomz-560m", 64),
    ("bigscience/bloomz-1b1", 32),
    ("bigscience/bloomz-1b7", 32),
    ("bigscience/bloomz-3b", 32),
    ("bigscience/bloomz-7b1", 16),
    ("openlm-research/open_llama_3b", 32),
    ("openlm-research/open_llama_7b", 16),
    ("openlm-research/open_llama_13b", 16),
    ("huggyllama/llama-7b", 16),
    ("huggyllama/llama-13b", 16),
    ("huggyllama/llama-30b", 8),
    ("huggyllama/llama-65b", 8),
)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.encoders = tuple(
        ConfigDict(
            dict(
                folder=hub.split("/")[1],  # below the folder given with --models
                hub=hub,
                dtype="bfloat16",
                pooling=("mean",),
                batch_size=batch_size,
            )
        )
        for hub, batch_size in MODELS
    )
    return config
