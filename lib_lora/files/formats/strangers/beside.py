"""Files that act beside a model, in another way than by a change of its layers: control, pictures, motion, words."""

from .base import Stranger

_CONTROL = "load it with ControlNet, or as ControlNet in your web UI"
_IP = "load it with IP-Adapter: ControlNet's extension, ComfyUI's nodes, or diffusers' load_ip_adapter"
_EMBEDDINGS = "put it into the embeddings folder and write its name into the prompt"
_ANIMATE = "load it with AnimateDiff's extension or nodes"

CONTROL_LORA = Stranger(
    "control_lora",
    "a Control-LoRA of Stability AI, which makes a ControlNet out of the model",
    _CONTROL,
    r"^key:lora_controlnet:",
)
LLLITE = Stranger("lllite", "a ControlNet-LLLite", _CONTROL, r"^key:lllite_")
CONTROLNET = Stranger(
    "controlnet",
    "a ControlNet",
    _CONTROL,
    r"^key:(control_model\.|controlnet_(down_)?blocks[._]|controlnet_(single_)?blocks\.|controlnet_cond_embedding\."
    r"|(input_hint_block|zero_convs)\.|controlnet_x_embedder\.|control_add_embedding\.)",
    general=1,
)
FUN_CONTROL = Stranger(
    "fun_control",
    "a Fun ControlNet, a patch with blocks of its own",
    "load it as ControlNet, or with ComfyUI's ModelPatchLoader",
    r"^key:(control_(all_)?x_embedder|control_layers|control_noise_refiner|control_img_in)\.",
)
VACE = Stranger(
    "vace_module",
    "the VACE part of a Wan model",
    "load it beside the model, as VACE module",
    r"^key:(model\.diffusion_model\.)?vace_(blocks\.\d+\.(before_proj|after_proj)|patch_embedding)\.(weight|bias):",
    never=r"^key:(model\.diffusion_model\.)?blocks\.",
)
T2I_ADAPTER = Stranger(
    "t2i_adapter",
    "a T2I-Adapter",
    _CONTROL,
    r"^key:(adapter\.)?body\.\d+\.(resnets\.\d+\.)?(block[12]|in_conv|down_opt)\.",
)
MOTION_LORA = Stranger(
    "motion_lora",
    "a motion LoRA for AnimateDiff's motion modules, which the loaded model does not have",
    _ANIMATE,
    r"^key:[^:]*motion_modules[._]\d+[._][^:]*lora",
)
MOTION_MODULE = Stranger(
    "motion_module",
    "an AnimateDiff motion module",
    _ANIMATE,
    r"^key:[^:]*(motion_modules\.\d+\.|temporal_transformer\.)",
    never=r"^key:([^:]*lora|(module\.)?controlnet_)",  # SparseCtrl has motion modules, too
    general=1,
)
IP_ADAPTER = Stranger(
    "ip_adapter",
    "an IP-Adapter, which takes a picture as prompt",
    _IP,
    r"^key:([^:]*(to_[kv]_ip|ip_adapter_double_stream_[kv]_proj|ip_adapter_proj_model)\b|ip_adapter\.|ip_adapter:)",
    general=1,
)
FACE_ID = Stranger(
    "ip_adapter_face_id",
    "an IP-Adapter FaceID, which takes a face as prompt",
    f"{_IP}; its LoRA is another file",
    r"^key:(ip_adapter\.)?\d+\.to_[qkv]_lora\.",
)
INSTANT_ID = Stranger(
    "instant_id",
    "InstantID, which takes a face as prompt",
    "load it with InstantID: ControlNet's extension or ComfyUI's nodes",
    r"^key:image_proj\.proj_in\.weight:\d+x512$",
)
PHOTO_MAKER = Stranger(
    "photo_maker",
    "a PhotoMaker, an encoder of faces and a LoRA in one file",
    "load it with PhotoMaker",
    r"^key:(id_encoder\.(vision_model|visual_projection|fuse_module|qformer_perceiver)|lora_weights[.:])",
)
PULID = Stranger(
    "pulid",
    "a PuLID, which takes a face as prompt",
    "load it with PuLID: ControlNet's extension or ComfyUI's nodes",
    r"^key:(pulid_(ca|encoder)|id_adapter(_attn_layers)?)[.:]",
)
REDUX = Stranger(
    "redux",
    "FLUX.1 Redux, which takes a picture as prompt",
    "load it as style model (ComfyUI), or with diffusers' FluxPriorReduxPipeline",
    r"^key:(image_embedder\.)?redux_(up|down)\.",
)
FOOOCUS = Stranger(
    "fooocus_inpaint",
    "Fooocus' inpaint patch",
    "use it in Fooocus, or with ComfyUI's Inpaint nodes",
    r"^(name:[^\n]*fooocus[^\n]*\.patch$|name:fooocus_inpaint_head|key:head:320x5x3x3$)",
)
LAYER_DIFFUSE = Stranger(
    "layer_diffuse",
    "a patch of LayerDiffuse, for transparent pictures",
    "load it with LayerDiffuse's extension or nodes",
    r"^key:[^:]*::(lora|diff|weight)::",
)
EASY_CONTROL = Stranger(
    "easy_control",
    "an EasyControl, which acts on a reference picture's tokens alone",
    "load it with EasyControl's nodes or its own program",
    r"^key:[^:]*[._](q|k|v|proj)_loras\.\d+\.(down|up)\.",
)
X_LORA = Stranger(
    "x_lora",
    "an X-LoRA, which chooses LoRA for each token",
    "load these LoRA instead",
    r"^key:base_model\.internal_xlora_classifier\.",
)
TEXTUAL_INVERSION = Stranger(
    "textual_inversion",
    "a textual inversion embedding",
    _EMBEDDINGS,
    r"^key:(emb_params|string_to_param|string_to_token|(clip_[lgh]|t5xxl|qwen\w*):(\d+x)?\d+$)",
    most=40,
)
TOKEN = Stranger(
    "token_embedding",
    "a textual inversion embedding",
    _EMBEDDINGS,
    r"^key:[^.:]+:(\d+x)?(768|1024|1280|2048|2304|2560|3584|4096|5120)$",
    never=r"^key:([^:]*[._](weight|bias|alpha|lora_?\w*|diff\w*|scale)(:|\.)|prompt_embeddings:)",
    most=4,
    general=1,
)
BUNDLE = Stranger(
    "bundled_embeddings",
    "a bundle of textual inversion embeddings without a LoRA",
    "save each as a file in the embeddings folder",
    r"^key:bundle_emb\.",
    never=r"^key:(?!bundle_emb\.)",
)
HYPERNETWORK = Stranger(
    "hypernetwork",
    "a hypernetwork",
    "put it into the hypernetworks folder and write <hypernet:name:1>",
    r"^key:(\d+\.[01]\.linear\.|activation_func:|is_layer_norm:|layer_structure:)",
)
IC_LIGHT = Stranger(
    "ic_light",
    "a UNet with more inputs, as IC-Light and InstructPix2Pix have",
    "load it with IC-Light's nodes, or as the model",
    r"^key:(unet\.|model\.diffusion_model\.)?(conv_in|input_blocks\.0\.0)\.weight:320x(8|12)x3x3$",
    never=r"^key:[^:]*lora",
)
