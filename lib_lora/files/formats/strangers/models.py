"""Models that are loaded as such, whole or in part, and what training leaves behind."""

from .base import Stranger

_NO_LORA = r"^key:[^:]*(lora|lokr|loha|hada|oft_|\.diff(_b)?:)"
_PLAIN = "put it into the folder of models and load it as the model"
_ENCODER = "load it as text encoder"
_UPSCALER = "put it into the folder of upscalers"
_PREPROCESSOR = "put it into the folder of ControlNet's preprocessors"

CHECKPOINT = Stranger(
    "checkpoint",
    "a whole checkpoint",
    _PLAIN,
    r"^key:(model\.diffusion_model\.|model_ema\.|diffusion_model\.[^:]*\.(weight|bias):|img_in\.weight:|x_embedder\.weight:"
    r"|(net\.)?(double_blocks|joint_blocks|transformer_blocks|single_blocks|blocks|layers|down_blocks|input_blocks)\.\d+"
    r"\.[^:]*(attn|attention|emb_layers|resnets|proj_in)[^:]*\.(weight|bias):)",
    never=_NO_LORA,
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
TAESD = Stranger(
    "taesd",
    "a tiny VAE for previews (TAESD)",
    "put it into the folder of previews' VAE",
    r"^key:(taesd_(encoder|decoder)\.|(decoder|encoder)\.layers\.\d+\.conv\.\d+\.weight:|[1-9]\.weight:64x(3|4|16)x3x3$)",
    never=_NO_LORA,
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
DINO = Stranger(
    "dino",
    "an encoder of pictures (DINO)",
    "load it where a program asks for DINO",
    r"^key:(model\.)?(embeddings\.patch_embeddings\.projection|embeddings\.mask_token|patch_embed\.proj\.weight)",
    never=rf"{_NO_LORA}|^key:(x_embedder|time|t_embedder|final_layer|depth_head|head\.)",
    general=1,
)
ESRGAN = Stranger(
    "esrgan",
    "an upscaler (ESRGAN, Real-ESRGAN)",
    _UPSCALER,
    r"^key:((params(_ema)?\.)?(body|RRDB_trunk)\.\d+\.(rdb|RDB)\d\.|model\.1\.sub\.\d+\.RDB\d|conv_first\."
    r"|body\.\d+\.weight:64x64x3x3$)",
    never=r"^key:layers\.\d+\.(residual_group|blocks)\.",
)
SWINIR = Stranger(
    "swinir",
    "an upscaler (SwinIR, HAT, DAT)",
    _UPSCALER,
    r"^key:(params(_ema)?\.)?layers\.\d+\.(residual_group\.(blocks|layers)\.\d+|blocks\.\d+\.attn\.attns\.\d|residual_group\.overlap_attn)\.",
)
LATENT_UPSCALER = Stranger(
    "latent_upscaler",
    "an upscaler of latents (LTX)",
    "load it with the nodes or the pipeline for LTX",
    r"^key:(post_upsample_res_blocks|initial_conv)\.",
)
FACE_RESTORER = Stranger(
    "face_restorer",
    "a restorer of faces (GFPGAN, CodeFormer)",
    "put it into the folder of face restorers",
    r"^key:(params(_ema)?\.)?(stylegan_decoder\.|stylegan_decoderdotto_rgb|fuse_convs_dict\.|quantize\.embedding\.weight)",
)
INTERPOLATION = Stranger(
    "frame_interpolation",
    "a model that makes frames between frames (RIFE)",
    "load it with a frame interpolation node",
    r"^key:(module\.)?(block\d(_tea)?|contextnet|unet|block_tea)\.(conv0|convblock|conv1)\b",
)
INPAINTER = Stranger(
    "inpainter",
    "a model that fills holes (LaMa, MAT)",
    "load it with an inpainting node",
    r"^key:((generator\.)?model\.\d+\.conv1\.ffc\.|synthesis\.first_stage\.)",
)
DEPTH = Stranger(
    "depth",
    "a model that estimates depth (Depth Anything, MiDaS, ZoeDepth)",
    _PREPROCESSOR,
    r"^key:(depth_head\.|scratch\.(refinenet|layer)\d|core\.core\.|conditional_log_binomial\.|head\.(projects|scratch)\b)",
)
POSE = Stranger(
    "pose",
    "a model that finds poses (OpenPose)",
    _PREPROCESSOR,
    r"^key:(Mconv\d_stage\d|conv\d_\d_CPM|model\d_\d\.M?conv\d_|model0\.conv1_1)\b",
)
LINES = Stranger(
    "lines",
    "a model that draws lines (HED, PiDiNet, Lineart)",
    _PREPROCESSOR,
    r"^key:(block1\.convs\.0\.|netNetwork|block\d_\d\.conv1\.|dilations\.0\.conv1|model0\.1\.weight:64x3x7x7)",
)
SAM = Stranger(
    "sam",
    "a model that cuts things out (Segment Anything)",
    "put it into the folder of SAM models",
    r"^key:(sam_|tracker\.)?(mask_decoder|prompt_encoder|image_encoder\.(neck|trunk)|model\.image_encoder)\.[^:]*:",
    never=_NO_LORA,
)
BACKGROUND = Stranger(
    "background_remover",
    "a model that removes backgrounds (BiRefNet, RMBG, U2Net)",
    "load it with the node or extension that removes backgrounds",
    r"^key:((module\.)?bb\.(layers|norm)\d?\b|squeeze_module\.|stage1\.rebnconvin\.|model\.stage1\.rebnconv)",
)
DETECTOR = Stranger(
    "detector",
    "a model that finds things (YOLO, Grounding DINO)",
    "put it into the folder of ADetailer's models, or where a node asks for it",
    r"^key:(model\.\d+\.(cv[1-4]|m\.\d+\.cv\d|dfl)\.|model\.model\.\d+\.(cv\d|conv)\.|[^:]*transformer\.encoder\.fusion_layers\.|ultralytics)",
)
AESTHETIC = Stranger(
    "aesthetic_predictor",
    "a predictor of aesthetic scores",
    "load it with the extension that scores pictures",
    r"^key:(layers\.0\.weight:1024x\d+$|mlp\.layers\.0\.weight:1024x)",
)
TAGGER = Stranger(
    "tagger",
    "a model that writes tags for pictures (WD tagger, DeepDanbooru)",
    "load it with a tagger's extension or node",
    r"^key:((head|classifier|fc)\.weight:(6[0-9]{3}|9[0-9]{3}|1[0-2]\d{3})x\d+$|n_Conv_0\.)",
    general=1,
)
CAPTIONER = Stranger(
    "captioner",
    "a model that describes pictures (BLIP, Florence)",
    "load it with the extension or node that describes pictures",
    r"^key:(visual_encoder\.blocks|text_decoder\.(bert|cls)|vision_tower\.|qformer\.|query_tokens:|language_projection\.)",
    never=_NO_LORA,
)
SEGMENTER = Stranger(
    "segmenter",
    "a model that labels every pixel (SegFormer, OneFormer, UperNet)",
    _PREPROCESSOR,
    r"^key:(segformer\.|decode_head\.|sem_seg_head\.|pixel_level_module\.)",
)
VOICE = Stranger(
    "voice",
    "a model of voices (RVC, VITS, a vocoder)",
    "load it with the program for voices that it was made for",
    r"^key:(weight\.)?(enc_p\.|dec\.ups\.|flow\.flows\.|conv_pre\.weight|ups\.0\.(0\.)?weight)",
    never=_NO_LORA,
)
WHISPER = Stranger(
    "whisper",
    "a model that writes down speech (Whisper)",
    "load it with a program for speech",
    r"^key:(model\.)?(encoder\.conv[12]\.weight|decoder\.layers\.\d+\.encoder_attn\.[qkv]_proj\.weight|decoder\.blocks\.\d+\.cross_attn\.)",
    never=_NO_LORA,
)
PRIOR = Stranger(
    "prior",
    "a prior of DALL-E 2's kind (Kandinsky 2, Karlo), which makes an image embedding of a prompt",
    "load it as prior",
    (r"^key:(prd_embedding|prior\.prd_embedding|embedding_proj\.weight):?", r"^key:[^:]*clip_(mean|std)"),
    never=_NO_LORA,
)
OPTIMIZER = Stranger(
    "optimizer",
    "the state of an optimizer, from which training goes on",
    "use it with the trainer that wrote it; the LoRA is another file",
    r"^key:([^:]*(exp_avg|exp_avg_sq|momentum_buffer|exp_avg_sq_row)|optimizer[^:]*|param_groups|optimizer_states|lr_schedulers)\b",
)
EMA_STATE = Stranger(
    "training_state",
    "a saved state of training, with more than a LoRA",
    "use it with the trainer that wrote it; export the LoRA there",
    r"^key:(shadow_params|ema_state_dict|scaler_state|random_states|rng_state|global_step|train_state|num_updates)\b",
)
