"""Models that are loaded as such, what training leaves behind, LoRA of other models, and files of other kinds."""

from .base import Stranger

_NO_LORA = r"^key:[^:]*(lora|lokr|loha|hada|oft_|\.diff(_b)?:)"
_PLAIN = "put it into the folder of models and load it as the model"
_ENCODER = "load it as text encoder"

CHECKPOINT = Stranger(
    "checkpoint",
    "a whole checkpoint",
    _PLAIN,
    r"^key:(model\.diffusion_model\.|model_ema\.|diffusion_model\.[^:]*\.(weight|bias):|img_in\.weight:|x_embedder\.weight:"
    r"|(net\.)?(double_blocks|joint_blocks|transformer_blocks|single_blocks|blocks|layers|down_blocks|input_blocks)\.\d+"
    r"\.[^:]*(attn|attention|emb_layers|resnets|proj_in)[^:]*\.(weight|bias):)",
    # GLIGEN's part of a model, and a classifier
    never=rf"{_NO_LORA}|^key:(position_net\.|[^:]*\.fuser\.|(head|classifier)\.weight:\d{{4,5}}x\d+$)",
    general=2,
)
QUANTIZED = Stranger(
    "quantized_checkpoint",
    "a quantized checkpoint",
    f"{_PLAIN} with what reads its quantization",
    r"^key:[^:]*\.(quant_map|absmax|quant_state[^:]*|nested_absmax|comfy_quant|scale_weight|weight_scale|qzeros"
    r"|weight_scale_inv|input_scale|_scale|_zero_point|SCB):",
    never=_NO_LORA,
)
NUNCHAKU = Stranger(
    "nunchaku_checkpoint",
    "a quantized checkpoint of Nunchaku (SVDQuant), which has low-rank parts of its own",
    "load it as the model, with Nunchaku",
    r"^key:[^:]*\.(qweight|wscales|wcscales|smooth_factor(_orig)?):",
)
VAE = Stranger(
    "vae",
    "a VAE",
    "put it into the folder of VAE and select it there",
    r"^key:(first_stage_model\.|(vae\.)?(decoder|encoder)\.(conv_in|conv1|mid|mid_block|middle|(down|up)(_blocks|samples)?)[._]"
    r"|(pre_|post_)?quant_conv\.)",
    never=rf"{_NO_LORA}|^key:model\.diffusion_model\.",
    general=1,
)
CLIP = Stranger(
    "clip_text_encoder",
    "a text encoder (CLIP)",
    _ENCODER,
    r"^key:((text_model\.)?(encoder\.layers\.\d+\.(layer_norm\d|self_attn)|embeddings\.token_embedding)\.|transformer\.(text_model\.|resblocks\.)|cond_stage_model\.)",
    never=rf"{_NO_LORA}|^key:vision_model\.|^key:visual\.|^key:model\.diffusion_model\.",
)
T5 = Stranger(
    "t5_text_encoder",
    "a text encoder (T5)",
    _ENCODER,
    r"^key:(shared\.weight|encoder\.block\.\d+\.layer\.\d+\.(SelfAttention|DenseReluDense)\.)",
    never=_NO_LORA,
)
LANGUAGE_MODEL = Stranger(
    "language_model",
    "a language model, such as Qwen, Llama, Mistral and Gemma, or a text encoder made of one",
    "load it as text encoder, where the image model has such a one",
    r"^key:(language_model\.|text_encoder\.)?(model\.)?(language_model\.)?layers\.\d+\.(self_attn\.[qkv]_proj"
    r"|mlp\.(gate|up)_proj|self_attn\.qkv_proj)\.weight:",
    never=_NO_LORA,
)
CLIP_VISION = Stranger(
    "clip_vision",
    "an encoder of pictures (CLIP vision or SigLIP)",
    "load it as CLIP vision",
    r"^key:(vision_model\.(encoder|embeddings|post_layernorm|head)|visual\.(transformer\.resblocks|conv1)|image_encoder\.vision_model)\b",
    never=_NO_LORA,
)
UPSCALER = Stranger(
    "upscaler",
    "an upscaler (ESRGAN, Real-ESRGAN, SwinIR, HAT, DAT)",
    "put it into the folder of upscalers",
    r"^key:(params(_ema)?\.)?((body|RRDB_trunk)\.\d+\.(rdb|RDB)\d\.|model\.1\.sub\.\d+\.RDB\d|conv_first\."
    r"|body\.\d+\.weight:64x64x3x3$)",
)
TRAINING_STATE = Stranger(
    "training_state",
    "a saved state of training, with more than a LoRA",
    "use it with the trainer that wrote it; the LoRA is another file, or export it there",
    r"^key:([^:]*(exp_avg|exp_avg_sq|momentum_buffer|exp_avg_sq_row)|optimizer[^:]*|param_groups|lr_schedulers"
    r"|shadow_params|ema_state_dict|scaler_state|random_states|rng_state|global_step|train_state|num_updates)\b",
)
SAM_LORA = Stranger(
    "sam_lora",
    "a LoRA of Segment Anything",
    "load it with the program that trained it",
    r"^key:(w_[ab]_\d{3}:|[^:]*linear_[ab]_[qv]\.|(base_model\.model\.)?[^:]*(image_encoder\.(blocks|trunk|neck)"
    r"|mask_decoder|vision_encoder\.layers\.\d+\.attn\.qkv)[^:]*lora)",
)
LANGUAGE_LORA = Stranger(
    "language_lora",
    "a LoRA of a model that makes no pictures, such as Llama, Qwen and BERT",
    "it changes nothing in an image model; load it with PEFT into the model it was made for",
    r"^key:base_model\.model\.(((model|language_model)\.)+layers\.\d+\.(self_attn|mlp)\."
    r"|(model\.)?(visual|vision_tower|multi_modal_projector)\.|(model\.)?decoder\.(layers|block)\.\d+\."
    r"|[^:]*((transformer|gpt_neox|model\.decoder)\.(h|layers)|(bert|deberta|vit|dinov2)\.encoder\.layers?)\.\d+\.)"
    r"[^:]*(lora_[AB]|lora_embedding_[AB]|hada_w1_a|lokr_w1|ia3_l|vera_lambda_[bd])\b",
    general=1,
)

WEB_PAGE = Stranger(
    "web_page",
    "a web page, not an adapter",
    "the site answered with HTML (a log-in page?); download it again",
    heads=(b"<!doct", b"<html"),
)
MESSAGE = Stranger(
    "message",
    "a text in JSON or XML, not an adapter",
    "it is the message of a server, or the notes beside a file; download the file itself",
    heads=(b"<?xml", b'{"', b"{\n", b"{\r\n", b"[{"),
)
LFS = Stranger(
    "lfs_pointer",
    "a Git LFS pointer, not the file itself",
    "fetch it with `git lfs pull`",
    heads=(b"version ",),
)
GGUF = Stranger(
    "gguf",
    "a GGUF file",
    "load it as the model or text encoder; only safetensors adapters can be read",
    heads=(b"gguf",),
)
PICTURE = Stranger(
    "picture",
    "a picture, not an adapter",
    "it may be the preview of a file; download the file itself",
    heads=(b"\x89png", b"\xff\xd8\xff", b"gif8", b"riff"),
)
ARCHIVE = Stranger(
    "archive",
    "an archive",
    "unpack it",
    r"^key:[^:]*\.(safetensors|ckpt|png|jpe?g|txt):",
    heads=(b"rar!", b"7z\xbc\xaf", b"\x1f\x8b\x08"),
)
ZEROS = Stranger(
    "zeros",
    "a file that begins with zeros, as downloads do that were broken off",
    "download it again",
    heads=(b"\0\0\0\0\0\0\0\0",),
)
