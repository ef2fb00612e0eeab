import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from platojax.arm import make_arm
from platojax.run_encoder import make_run_encoder
from tests import tiny


def test_rematerialisation_does_not_change_the_hash_of_the_weights():
    tokenizer = tiny.tokenizer()
    plain = tiny.arm_config()
    views = jnp.zeros((2, 1, plain.encoder.max_length), jnp.int32)
    params = make_arm(plain, tokenizer).init(jax.random.key(0), views)

    def weights_hash(config):
        return make_run_encoder("tiny", config, tokenizer, params).weights_hash

    again, before_there_was_remat, other_heads = (ConfigDict(plain.to_dict()) for _ in range(3))
    again.encoder.remat = True
    del before_there_was_remat.encoder["remat"]
    other_heads.encoder.num_heads = 4
    assert weights_hash(plain) == weights_hash(again) == weights_hash(before_there_was_remat)
    assert weights_hash(plain) != weights_hash(other_heads)
