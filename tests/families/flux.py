"""FLUX.1."""

from __future__ import annotations

from diffusers import FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from torch import nn

from ._encoders import clip_l, encoder_writers, t5
from ._flux_formats import BLOCKS, MLP, WIDTH, blocks, omi, processors, tlora, writers, xlabs
from ._trainers import simpletuner_comfy
from .base import KOHYA_PARAMS, PEFT_NAMED, Family, List, Made, Shapes, Writer, dotted, linear, on_meta

RANK = 2
WIDER = (
    "made for FLUX.1 control (Canny or Depth), which has 128 inputs in x_embedder where the loaded model has 64; "
    "load FLUX.1 control (Canny or Depth)"
)


def build(full: bool) -> nn.Module:
    """black-forest-labs/FLUX.1-dev, transformer/config.json."""
    return on_meta(
        FluxTransformer2DModel,
        num_layers=19 if full else BLOCKS,
        num_single_layers=38 if full else BLOCKS,
        guidance_embeds=True,
    )


def native() -> Shapes:
    """black-forest-labs/flux src/flux/model.py, Flux."""
    found: Shapes = {}
    for name, inside in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        found |= linear(WIDTH, inside, f"{name}.in_layer") | linear(WIDTH, WIDTH, f"{name}.out_layer")
    found |= linear(WIDTH, 64, "img_in") | linear(WIDTH, 4096, "txt_in")
    found |= linear(64, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    found |= blocks()
    for i in range(BLOCKS):
        found |= linear(6 * WIDTH, WIDTH, f"double_blocks.{i}.img_mod.lin", f"double_blocks.{i}.txt_mod.lin")
        found |= linear(3 * WIDTH, WIDTH, f"single_blocks.{i}.modulation.lin")
    return found


def control() -> Shapes:
    """All linear layers, with biases; `img_in` as wide as the latents and the control image; the norms themselves."""
    found: Shapes = {}
    for key, shape in native().items():
        name = key.removesuffix(".weight")
        if key.endswith(".scale"):
            found[key] = shape
        elif key.endswith(".weight"):
            inside = 128 if name == "img_in" else shape[1]
            found |= {f"{name}.lora_A.weight": (RANK, inside), f"{name}.lora_B.weight": (shape[0], RANK)}
            found[f"{name}.lora_B.bias"] = (shape[0],)
    return found


def oft() -> Shapes:
    """Attention of double blocks, the default: blocks for each of q, k and v; what is not split has a list of one."""
    size, count = 4, WIDTH // 4
    found: Shapes = {}
    for i in range(BLOCKS):
        for side in ("img", "txt"):
            attention = f"oft_unet_double_blocks_{i}_{side}_attn"
            found |= {f"{attention}_qkv.oft_blocks.{n}": (count, size, size) for n in range(3)}
            found |= {f"{attention}_proj.oft_blocks.0": (count, size, size)}
            found |= {f"{attention}_qkv.alpha": (), f"{attention}_proj.alpha": ()}
    return found


def oft_all() -> Shapes:
    """`enable_all_linear`: all linear layers of the blocks."""
    found: Shapes = {}
    for key, (out, *_) in native().items():
        if "blocks" in key and key.endswith(".weight"):
            name = f"oft_unet_{key.removesuffix('.weight').replace('.', '_')}"
            sizes = [out]
            if "double" in name and "qkv" in name:
                sizes = [WIDTH] * 3
            elif "single" in name and "linear1" in name:
                sizes = [WIDTH] * 3 + [MLP]
            # of `network_dim` blocks each
            found |= {f"{name}.oft_blocks.{n}": (WIDTH, size // WIDTH, size // WIDTH) for n, size in enumerate(sizes)}
            found[f"{name}.alpha"] = ()
    return found


def lokr(prefix: str, flat: bool) -> Shapes:
    """Two full factors, which LyCORIS saves where the rank asked for is large, for the layers of diffusers' blocks."""
    found: Shapes = {}
    for name, layer in build(False).named_modules():
        if isinstance(layer, nn.Linear) and "blocks" in name:
            key = prefix + (name.replace(".", "_") if flat else name)
            found[f"{key}.lokr_w1"] = (16, 16)
            found[f"{key}.lokr_w2"] = (layer.out_features // 16, layer.in_features // 16)
            found[f"{key}.alpha"] = ()
    return found


def dora() -> Shapes:
    """ai-toolkit: PEFT's names, but `magnitude`, and no alpha."""
    found: Shapes = {}
    for name, layer in build(False).named_modules():
        if isinstance(layer, nn.Linear) and "blocks" in name:
            found[f"transformer.{name}.lora_A.weight"] = (RANK, layer.in_features)
            found[f"transformer.{name}.lora_B.weight"] = (layer.out_features, RANK)
            found[f"transformer.{name}.magnitude"] = (layer.out_features,)
    return found


def qkv() -> dict[str, tuple[str, ...]]:
    """q, k and v as one, as diffusers' `Attention.fuse_projections` makes them; the text's keep another name."""
    attentions = [f"{kind}transformer_blocks.{i}.attn" for kind in ("", "single_") for i in range(BLOCKS)]
    found = {f"{one}.to_qkv": tuple(f"{one}.to_{part}" for part in "qkv") for one in attentions}
    return found | {f"{one}.to_out.0": (f"{one}.to_out.0",) for one in attentions[:BLOCKS]}


def _omi() -> dict[str, tuple[str, ...]]:
    found = omi()
    for name, inner in (("time_in", "timestep"), ("vector_in", "text"), ("guidance_in", "guidance")):
        embedder = f"time_text_embed.{inner}_embedder"
        found |= {f"{name}.in_layer": (f"{embedder}.linear_1",), f"{name}.out_layer": (f"{embedder}.linear_2",)}
    for i in range(BLOCKS):
        found[f"double_blocks.{i}.img_mod.lin"] = (f"transformer_blocks.{i}.norm1.linear",)
        found[f"double_blocks.{i}.txt_mod.lin"] = (f"transformer_blocks.{i}.norm1_context.linear",)
        found[f"single_blocks.{i}.modulation.lin"] = (f"single_transformer_blocks.{i}.norm.linear",)
    return found


FAMILY = Family(
    name="flux",
    named=(
        "flux1",
        "flux.1",
        "flux.1_kontext",
        "flux_kontext",
        "flux-1/lora",
        "flux-1-dev/lora",
        "flux-1-schnell/lora",
        "Flux.1-dev/lora",
        "Flux.1-fill-dev/lora",
        "flux-krea/lora",
        "flux/lora",
        "Flex.1-alpha",
    ),
    both_trees=True,
    build=build,
    native=native,
    convert=convert_flux_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": clip_l, "text_encoder_2": t5},
    writers={
        **writers(),
        "fal-kontext": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_conversion_utils.py, _convert_fal_kontext_lora_to_diffusers",
            dotted("base_model.model."),
            layers=("blocks", "final_layer.linear"),
        ),
        "xlabs": Writer(
            "xlabs",
            "XLabs-AI/x-flux src/flux/modules/layers.py, DoubleStreamBlockLoraProcessor",
            xlabs,
            fuse=processors(singles=False),
        ),
        "uso": Writer(
            "xlabs",
            "Comfy-Org/ComfyUI comfy/lora_convert.py, convert_uso_lora; x-flux' SingleStreamBlockLoraProcessor",
            xlabs,
            fuse=processors(singles=True),
        ),
        "omi": Writer(
            "diffusers",
            "OMI, as in invoke-ai/InvokeAI model_manager/omi/vendor/convert/lora/convert_flux_lora.py",
            dotted("transformer.", KOHYA_PARAMS),
            fuse=_omi(),
            metadata={"ot_branch": "omi_format", "modelspec.architecture": "Flux.1-dev/lora"},
        ),
        **simpletuner_comfy("transformer."),
        "simpletuner, fused": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/flux/model.py, fuse_qkv_projections, get_lora_target_layers",
            dotted("transformer."),
            fuse=qkv(),
        ),
        "PEFT, named": Writer(
            "peft",
            "huggingface/peft tuners/lora/layer.py, the state_dict of a PeftModel",
            dotted("base_model.model.", PEFT_NAMED),
            "diffusers",
        ),
        "tlora": Writer(
            "diffusers",
            "ControlGenAI/T-LoRA flux/model/lora.py, FluxLoraAttnProcessor, saved by diffusers' AttnProcsLayers",
            tlora,
            "diffusers",
            layers=("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_"),
        ),
        **encoder_writers(
            {"clip_l": "text_encoder", "t5": "text_encoder_2"},
            {"lora_te1": "clip_l", "lora_te2": "t5", "lora_te3": "t5"},
            {"ss_base_model_version": "flux1"},
            omi=True,
        ),
    },
    made={
        "bfl-control": Made(
            "huggingface/diffusers loaders/lora_conversion_utils.py, _convert_bfl_flux_control_lora_to_diffusers",
            control,
            {"lora": 13 * BLOCKS + 10, "set_weight": 6 * BLOCKS},
            List("peft+whole", 19 * BLOCKS + 10, 26 * BLOCKS + 9, left={WIDER: 3}),
        ),
        "kohya-oft": Made(
            "kohya-ss/sd-scripts networks/oft_flux.py, OFTModule and FLUX_TARGET_REPLACE_MODULE_ATTN_ONLY",
            oft,
            {"split_oft": 4 * BLOCKS},
            List("kohya_oft", 4 * BLOCKS, 8 * BLOCKS),
        ),
        "kohya-oft-all": Made(
            "kohya-ss/sd-scripts networks/oft_flux.py, enable_all_linear",
            oft_all,
            {"split_oft": 13 * BLOCKS},
            List("kohya_oft", 13 * BLOCKS, 20 * BLOCKS),
        ),
        "simpletuner-lokr": Made(
            "bghira/SimpleTuner simpletuner/helpers/training/save_hooks.py, _save_lycoris",
            lambda: lokr("lycoris_", flat=True),
            {"lokr": 20 * BLOCKS},
            List("kohya", 20 * BLOCKS, 20 * BLOCKS),
        ),
        "ai-toolkit-lokr": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, get_state_dict",
            lambda: lokr("transformer.", flat=False),
            {"lokr": 20 * BLOCKS},
            List("diffusers", 20 * BLOCKS, 20 * BLOCKS),
        ),
        "ai-toolkit-dora": Made(
            "ostris/ai-toolkit toolkit/models/DoRA.py and network_mixins.py, get_state_dict",
            dora,
            {"lora+dora": 20 * BLOCKS},
            List("peft", 20 * BLOCKS, 20 * BLOCKS),
        ),
    },
    lists={
        "flux_lora_kohya_format": List("kohya", 304, 494),
        "flux_lora_aitoolkit_format": List("peft", 228, 418),
        "flux_lora_diffusers_format": List("peft", 494, 494),
        "flux_lora_diffusers_no_proj_mlp_format": List("peft", 342, 342),
        "flux_lora_xlabs_format": List("xlabs", 12, 24),
        "flux_dora_onetrainer_format": List("kohya", 506, 506),
        "flux_lokr_bfl_format": List("diffusers", 6, 0, shapes=False),
    },
)
