"""PEFT, and diffusers since it saves through PEFT, with or without `base_model.model.` and the adapter's name.

`base_model.model.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight`          (component unknown)
`base_model.model.down_blocks.0.attentions.0.proj_in.lora_B.default.weight`            (named adapter)
`unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight`        (diffusers)
`base_model.model.text_model.embeddings.token_embedding.lora_embedding_A`              (no `.weight`)
`base_model.model.attn.base_layer.out_proj.lora_A.weight`                              (of an nn.MultiheadAttention)
`base_model.model.mlp.experts.base_layer.lora_A.weight`                                (see `_peft_parameters.py`)
`base_model.vera_A`                                                                    (shared by all layers)
`base_model.model.encoder.layer.0.query.default_lora_latent_mapping.weight`            (LoRA-XS; older: `query_lora_…`)
`blocks.0.attn.qkv_proj.lora_A.default.weight`                                         (DiffSynth-Studio)

DiffSynth-Studio's LoRA of MiniMax-H3 have queries, keys and values by turns, head by head. Other programs have the rows
of all queries first, under the same name. What tells DiffSynth's is PEFT's adapter name without any prefix.

Sources: huggingface/peft utils/save_and_load.py and tuners/*/layer.py; for `magnitude` ostris/ai-toolkit
toolkit/models/DoRA.py; for `scaled_oft` Nerogar/OneTrainer modules/module/oft_utils.py; for LoRA-XS
MohammadrezaBanaei/LoRA-XS utils/initialization_utils.py; for DiffSynth huggingface/diffusers
loaders/lora_conversion_utils.py, `_convert_non_diffusers_minimax_h3_lora_to_diffusers`. Alpha is not among the tensors;
it comes from the header or from `adapter_config.json`, see `_trainer_config.py`.
"""

from ._dotted import COMPONENT, COMPONENTS, PARAMS, START, WRAPPER
from ._peft_parameters import names_of
from .base import ADAPTER_PARAMS, LAYER_PARAMS, PARTS, SHARED_PARAMS, KeyFormat

_MODULE = START + r"(?P<module>.+)"
_WRAPPED = rf"{WRAPPER}(?:{COMPONENT})?(?P<module>.+)"
_ADAPTER = r"(?!weight$|bias$|scaled_oft$)(?P<adapter>[^.]+)"
_NAMED = rf"(?:\.{_ADAPTER})?"

# what LyCORIS also has: only PEFT's where PEFT's prefix or its adapter name says so
_LYCORIS = r"(?P<param>hada_w[12]_[ab]|hada_t[12]|lokr_w[12](?:_[ab])?|lokr_t2)"

PEFT = KeyFormat(
    name="peft",
    before=("diffusers",),  # whose pattern for a bare `.alpha` would take the file's alphas away
    patterns=(
        rf"base_model\.(?P<param>{SHARED_PARAMS}){_NAMED}",  # first, as each layer may have a copy
        r"(?P<module>(?:token_refiner\.)?blocks\.\d+\.attn)\.(?P<leaf>qkv_proj)\.(?P<param>lora_[AB])\.default\.weight",
        START + r"(?P<module>.+?)(?:\.default)?[._](?P<param>lora_latent_mapping)\.(?P<rest>weight)",
        _MODULE + rf"\.base_layer\.(?P<leaf>out_proj)\.(?P<param>lora_[AB]){_NAMED}\.weight",
        _MODULE + rf"\.(?P<param>lora_[AB]){_NAMED}(?:\.weight)?",  # AdaLoRA's have no `.weight`
        _MODULE + rf"\.lora_B{_NAMED}\.(?P<param>bias)",
        _MODULE + rf"\.(?P<param>lora_magnitude_vector){_NAMED}(?:\.weight)?",
        _MODULE + r"\.(?P<param>magnitude)",
        START + rf"(?P<module>.+)\.token_adapter\.(?P<param>trainable_tokens_delta){_NAMED}",
        # tensors, not layers, so no `.weight` follows; what kohya or LyCORIS has, too, is the format `diffusers`
        _MODULE + rf"\.(?!(?:{PARAMS})(?:\.|$))(?P<param>{ADAPTER_PARAMS}){_NAMED}",
        # the number of a layer in a list is no adapter's name, so a name is tried last
        _MODULE + rf"\.(?!(?:{PARAMS})(?:\.|$))(?P<param>{LAYER_PARAMS}){_NAMED}?\.(?P<rest>{PARTS})",
        _MODULE + rf"\.(?P<param>oft_R){_NAMED}\.(?P<rest>weight|scaled_oft)",
        _MODULE + rf"\.{_LYCORIS}\.{_ADAPTER}",
        _WRAPPED + rf"\.{_LYCORIS}",
        _WRAPPED + r"\.(?P<param>alpha)",
    ),
    example="base_model.model.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight",
    components=COMPONENTS,
    params={
        "lora_A": "lora_down.weight",
        "lora_B": "lora_up.weight",
        "bias": "lora_up.bias",
        "magnitude": "lora_magnitude_vector",
        "lora_AB.weight": "lora_mixer.weight",  # wutaiqiang/MoSLoRA
    },
    leaves={"qkv_proj": "qkv_proj_by_head"},
    configured=True,
    names_of=names_of,
)
