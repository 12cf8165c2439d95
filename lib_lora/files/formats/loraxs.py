"""LoRA-XS: the middle factor has the adapter's name before its own, with a dot or without.

`base_model.model.encoder.layer.0.query.default_lora_latent_mapping.weight`
`base_model.model.encoder.layer.0.query_lora_latent_mapping.weight`            (older PEFT cuts `.default` out)

Source: MohammadrezaBanaei/LoRA-XS utils/initialization_utils.py; huggingface/peft utils/save_and_load.py.
"""

from ._dotted import COMPONENTS, START
from .base import KeyFormat

LORAXS = KeyFormat(
    name="loraxs",
    before=("diffusers", "peft"),
    patterns=(
        START + r"(?P<module>.+)\.(?:default_)?(?P<param>lora_latent_mapping)\.(?P<rest>weight)",
        START + r"(?P<module>.+)_(?P<param>lora_latent_mapping)\.(?P<rest>weight)",
    ),
    example="base_model.model.encoder.layer.0.query.default_lora_latent_mapping.weight",
    components=COMPONENTS,
    configured=True,
)
