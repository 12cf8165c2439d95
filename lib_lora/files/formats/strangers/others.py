"""Adapters of models that make no pictures, and files that are no safetensors at all."""

from .base import Stranger

_LOAD_ELSEWHERE = "it changes nothing in an image model; load it with PEFT into the model it was made for"
_ITS_TRAINER = "load it with the program that trained it"
_ITS_PROGRAM = "load it with the program it was made for"
_LORA = r"(lora_[AB]|lora_(up|down)|lora_embedding_[AB]|hada_w1_a|lokr_w1|ia3_l|vera_lambda_[bd])\b"


def _lora(name: str, of: str, layers: str, *, never: str = "", general: int = 0) -> Stranger:
    sign = rf"^key:base_model\.model\.{layers}[^:]*{_LORA}"
    return Stranger(name, f"a LoRA of {of}", _LOAD_ELSEWHERE, (sign,), never=never, general=general)


def _head(name: str, title: str, remedy: str, *heads: bytes) -> Stranger:
    return Stranger(name, title, remedy, heads=heads)


SAM_LORA = Stranger(
    "sam_lora",
    "a LoRA of Segment Anything",
    _ITS_TRAINER,
    r"^key:(w_[ab]_\d{3}:|[^:]*linear_[ab]_[qv]\.|(base_model\.model\.)?[^:]*(image_encoder\.(blocks|trunk|neck)"
    r"|mask_decoder|vision_encoder\.layers\.\d+\.attn\.qkv)[^:]*lora)",
)
WHISPER_LORA = _lora(
    "whisper_lora",
    "a model for speech (Whisper)",
    r"(model\.)?(decoder\.layers\.\d+\.encoder_attn|encoder\.layers\.\d+\.self_attn\.)",
    never=r"^key:[^:]*(text_model|vision_model)",
)
VISION_LANGUAGE_LORA = _lora(
    "vision_language_lora",
    "a model that reads pictures (LLaVA, Qwen-VL and the like)",
    r"(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|mm_projector)\.",
)
LANGUAGE_LORA = _lora(
    "language_lora",
    "a language model (Llama, Qwen, Mistral, Gemma and the like)",
    r"((model|language_model)\.)+layers\.\d+\.(self_attn|mlp)\.",
    general=1,
)
GPT_LORA = _lora(
    "gpt_lora",
    "a language model (GPT-2, GPT-NeoX, Falcon, BLOOM, ChatGLM and the like)",
    (
        r"[^:]*((transformer|gpt_neox|model\.decoder)\.(h|layers)\.\d+\."
        r"|transformer\.encoder\.layers\.\d+\.|backbone\.layers\.\d+\.mixer\.)"
    ),
    never=r"^key:[^:]*encoder_attn",
)
BERT_LORA = _lora(
    "bert_lora",
    "a model that classifies or compares texts (BERT, RoBERTa and the like)",
    r"[^:]*(bert|deberta|electra)\.encoder\.layer\.\d+\.",
)
VIT_LORA = _lora(
    "vit_lora",
    "a model that classifies pictures (ViT, DINO, Swin)",
    r"[^:]*(vit|swin|dinov2|beit|deit|vision_model)\.encoder\.layers?\.\d+\.",
)
T5_LORA = _lora(
    "seq2seq_lora",
    "a model that rewrites texts (T5, BART)",
    r"(model\.)?decoder\.(block\.\d+\.layer\.\d+\.(EncDecAttention|SelfAttention)\.)",
)
VAE_LORA = Stranger(
    "vae_lora",
    "a LoRA of a VAE",
    _ITS_TRAINER,
    r"^key:((vae|first_stage_model)\.|base_model\.model\.(encoder|decoder)\.(mid_block|conv_in|down_blocks|up_blocks)"
    r"|lora_vae_)[^:]*(lora|\.alpha)",
)
PREFERENCE = Stranger(
    "reward_model",
    "a model or LoRA that judges pictures (ImageReward, PickScore, HPS)",
    "load it with the program that trains with it",
    r"^key:(blip\.|reward_head\.|rm_head\.|value_head\.|v_head\.)",
)
POLICY_LORA = Stranger(
    "classifier_lora",
    "an adapter with a head of its own for classifying",
    _LOAD_ELSEWHERE,
    r"^key:base_model\.model\.(score|classifier|classification_head|qa_outputs|regression_head)\.[^:]*",
    general=1,
)

WEB_PAGE = _head(
    "web_page",
    "a web page, not an adapter",
    "the site answered with HTML (a log-in page?); download it again",
    b"<!doct",
    b"<html",
)
XML = _head(
    "xml", "a message of a server, not an adapter", "the site refused the download; download it again", b"<?xml"
)
JSON = _head(
    "json",
    "a text in JSON, not an adapter",
    "it is the message of a server, or the notes beside a file; download the file itself",
    b'{"',
    b"{\n",
    b"{\r\n",
    b"[{",
)
LFS = _head("lfs_pointer", "a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`", b"version ")
GGUF = _head(
    "gguf", "a GGUF file", "load it as the model or text encoder; only safetensors adapters can be read", b"gguf"
)
GGML = _head("ggml", "a GGML file", _ITS_PROGRAM, b"lmgg", b"tjgg", b"fmgg")
NUMPY = Stranger(
    "numpy",
    "an array of NumPy",
    "load it with the program that wrote it",
    r"^key:[^:]*\.npy:",
    heads=(b"\x93numpy",),
)
PICTURE = _head(
    "picture",
    "a picture, not an adapter",
    "it may be the preview of a file; download the file itself",
    b"\x89png",
    b"\xff\xd8\xff",
    b"gif8",
    b"riff",
)
ARCHIVE = Stranger(
    "archive",
    "an archive",
    "unpack it",
    r"^key:[^:]*\.(safetensors|ckpt|png|jpe?g|txt):",
    heads=(b"rar!", b"7z\xbc\xaf", b"\x1f\x8b\x08"),
)
ONNX = _head("onnx", "a model in ONNX", _ITS_PROGRAM, b"\x08\x07\x12", b"\x08\x08\x12")
DRAW_THINGS = _head("draw_things", "a file of Draw Things", "export it there as safetensors", b"sqlite f")
HDF5 = _head("hdf5", "a model in HDF5 (Keras)", _ITS_PROGRAM, b"\x89hdf")
TENSORRT = _head("tensorrt", "an engine of TensorRT", "load it with the extension that made it", b"ftrt", b"ptrt")
TORRENT = _head("torrent", "a torrent, not the file itself", "download the file with a torrent client", b"d8:annou")
EMPTY = _head(
    "zeros",
    "a file that begins with zeros, as downloads do that were broken off",
    "download it again",
    b"\0\0\0\0\0\0\0\0",
)
