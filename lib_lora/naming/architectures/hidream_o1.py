"""HiDream-O1: the language model Qwen 3 VL 8B itself, 4096 wide, with an input and an output for pixels.

musubi-tuner and ai-toolkit have it in their code under the names of transformers; ai-toolkit leaves out `model` when it
saves, as ComfyUI's tree has none. Source: HiDream-ai/HiDream-O1-Image models/qwen3_vl_transformers.py.
"""

from .base import Architecture, Sign, layers, named

HIDREAM_O1 = Architecture(
    name="hidream_o1",
    title="HiDream-O1",
    signs=(
        # a denoiser by its key; text encoders have such layers, too
        Sign(
            r"^denoiser:(model_)?language_model_layers_\d+_(self_attn_[qkvo]_proj|mlp_(gate|up)_proj):4096$", weight=5
        ),
        layers(r"(model_)?(x_embedder_proj[12]|t_embedder1_mlp_[02]|final_layer2_linear):", 5),
        named("hidream.?o1"),
    ),
    names={
        **{f"model.{part}": part for part in ("language_model", "visual", "t_embedder1", "x_embedder", "final_layer2")}
    },
)
