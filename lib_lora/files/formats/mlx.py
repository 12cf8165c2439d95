"""MLX, Apple's framework: both factors have rows and columns exchanged, lora_a (in, r) and lora_b (r, out).

`model.layers.0.self_attn.q_proj.lora_a`     (mlx-lm; `adapter_config.json` has the scale itself, which is no alpha)
`double_blocks.0.img_attn.qkv.lora_b`        (its example for FLUX.1, at scale 1)
`double_blocks.0.img_mlp.layers.2.lora_a`    (the third layer of a list is `img_mlp.2` elsewhere)

mlx-lm's DoRA has a magnitude `m` beside them, and those layers are refused. Sources: ml-explore/mlx-lm
mlx_lm/tuner/lora.py and trainer.py; ml-explore/mlx-examples flux/flux/lora.py and flux/dreambooth.py.
"""

from ._dotted import COMPONENTS, START
from .base import CONFIG_SCALE, KeyFormat

MLX = KeyFormat(
    name="mlx",
    patterns=(
        START + r"(?P<module>.+)\.layers\.(?P<leaf>\d+)\.(?P<param>lora_[ab])",
        START + r"(?P<module>.+)\.(?P<param>lora_[ab])",
    ),
    example="double_blocks.0.img_attn.qkv.lora_a",
    components=COMPONENTS,
    params={"lora_a": "lora_down.weight", "lora_b": "lora_up.weight"},
    transposed=frozenset({"lora_down.weight", "lora_up.weight"}),
    configured=True,
    stems=("adapters",),  # 0000100_adapters.safetensors, too
    settings={"lora_parameters.rank": "r", "lora_parameters.scale": CONFIG_SCALE},
)
