"""Adapters of models that make no pictures, and files that are no safetensors at all."""

from __future__ import annotations

from .base import Stranger

_LOAD_ELSEWHERE = "it changes nothing in an image model; load it with PEFT into the model it was made for"
_LORA = r"(lora_[AB]|lora_(up|down)|lora_embedding_[AB]|hada_w1_a|lokr_w1|ia3_l|vera_lambda_[bd])\b"

SAM_LORA = Stranger(
    "sam_lora",
    "a LoRA of Segment Anything",
    "load it with the program that trained it",
    (
        r"^key:(w_[ab]_\d{3}:|[^:]*linear_[ab]_[qv]\.|(base_model\.model\.)?[^:]*(image_encoder\.(blocks|trunk|neck)"
        r"|mask_decoder|vision_encoder\.layers\.\d+\.attn\.qkv)[^:]*lora)",
    ),
)
WHISPER_LORA = Stranger(
    "whisper_lora",
    "a LoRA of a model for speech (Whisper)",
    _LOAD_ELSEWHERE,
    (
        rf"^key:base_model\.model\.(model\.)?(decoder\.layers\.\d+\.encoder_attn|encoder\.layers\.\d+\.self_attn\.)[^:]*{_LORA}",
    ),
    never=r"^key:[^:]*(text_model|vision_model)",
)
VISION_LANGUAGE_LORA = Stranger(
    "vision_language_lora",
    "a LoRA of a model that reads pictures (LLaVA, Qwen-VL and the like)",
    _LOAD_ELSEWHERE,
    (
        rf"^key:base_model\.model\.(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|mm_projector)\.[^:]*{_LORA}",
    ),
)
LANGUAGE_LORA = Stranger(
    "language_lora",
    "a LoRA of a language model (Llama, Qwen, Mistral, Gemma and the like)",
    _LOAD_ELSEWHERE,
    (rf"^key:base_model\.model\.((model|language_model)\.)+layers\.\d+\.(self_attn|mlp)\.[^:]*{_LORA}",),
    general=True,
    before=("checkpoint",),
)
GPT_LORA = Stranger(
    "gpt_lora",
    "a LoRA of a language model (GPT-2, GPT-NeoX, Falcon, BLOOM, ChatGLM and the like)",
    _LOAD_ELSEWHERE,
    (
        rf"^key:base_model\.model\.[^:]*((transformer|gpt_neox|model\.decoder)\.(h|layers)\.\d+\."
        rf"|transformer\.encoder\.layers\.\d+\.|backbone\.layers\.\d+\.mixer\.)[^:]*{_LORA}",
    ),
    never=r"^key:[^:]*encoder_attn",
)
BERT_LORA = Stranger(
    "bert_lora",
    "a LoRA of a model that classifies or compares texts (BERT, RoBERTa and the like)",
    _LOAD_ELSEWHERE,
    (rf"^key:base_model\.model\.[^:]*(bert|deberta|electra)\.encoder\.layer\.\d+\.[^:]*{_LORA}",),
)
VIT_LORA = Stranger(
    "vit_lora",
    "a LoRA of a model that classifies pictures (ViT, DINO, Swin)",
    _LOAD_ELSEWHERE,
    (rf"^key:base_model\.model\.[^:]*(vit|swin|dinov2|beit|deit|vision_model)\.encoder\.layers?\.\d+\.[^:]*{_LORA}",),
)
T5_LORA = Stranger(
    "seq2seq_lora",
    "a LoRA of a model that rewrites texts (T5, BART)",
    _LOAD_ELSEWHERE,
    (
        rf"^key:base_model\.model\.(model\.)?decoder\.(block\.\d+\.layer\.\d+\.(EncDecAttention|SelfAttention)\.)[^:]*{_LORA}",
    ),
)
VAE_LORA = Stranger(
    "vae_lora",
    "a LoRA of a VAE",
    "load it with the program that trained it",
    (
        r"^key:((vae|first_stage_model)\.|base_model\.model\.(encoder|decoder)\.(mid_block|conv_in|down_blocks|up_blocks)"
        r"|lora_vae_)[^:]*(lora|\.alpha)",
    ),
)
PREFERENCE = Stranger(
    "reward_model",
    "a model or LoRA that judges pictures (ImageReward, PickScore, HPS)",
    "load it with the program that trains with it",
    (r"^key:(blip\.|reward_head\.|rm_head\.|value_head\.|v_head\.)",),
)
POLICY_LORA = Stranger(
    "classifier_lora",
    "an adapter with a head of its own for classifying",
    _LOAD_ELSEWHERE,
    (r"^key:base_model\.model\.(score|classifier|classification_head|qa_outputs|regression_head)\.[^:]*",),
    general=True,
    before=("checkpoint",),
)

WEB_PAGE = Stranger(
    "web_page",
    "a web page, not an adapter",
    "the site answered with HTML (a log-in page?); download it again",
    heads=(b"<!doct", b"<html"),
)
XML = Stranger(
    "xml",
    "a message of a server, not an adapter",
    "the site refused the download; download it again",
    heads=(b"<?xml",),
)
JSON = Stranger(
    "json",
    "a text in JSON, not an adapter",
    "it is the message of a server, or the notes beside a file; download the file itself",
    heads=(b'{"', b"{\n", b"{\r\n", b"[{"),
)
LFS = Stranger(
    "lfs_pointer", "a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`", heads=(b"version ",)
)
GGUF = Stranger(
    "gguf",
    "a GGUF file",
    "load it as the model or text encoder; only safetensors adapters can be read",
    heads=(b"gguf",),
)
GGML = Stranger("ggml", "a GGML file", "load it with the program it was made for", heads=(b"lmgg", b"tjgg", b"fmgg"))
NUMPY = Stranger(
    "numpy",
    "an array of NumPy",
    "load it with the program that wrote it",
    (r"^key:[^:]*\.npy:",),
    heads=(b"\x93numpy",),
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
    (r"^key:[^:]*\.(safetensors|ckpt|png|jpe?g|txt):",),
    heads=(b"rar!", b"7z\xbc\xaf", b"\x1f\x8b\x08"),
)
ONNX = Stranger(
    "onnx", "a model in ONNX", "load it with the program it was made for", heads=(b"\x08\x07\x12", b"\x08\x08\x12")
)
DRAW_THINGS = Stranger("draw_things", "a file of Draw Things", "export it there as safetensors", heads=(b"sqlite f",))
HDF5 = Stranger("hdf5", "a model in HDF5 (Keras)", "load it with the program it was made for", heads=(b"\x89hdf",))
TENSORRT = Stranger(
    "tensorrt", "an engine of TensorRT", "load it with the extension that made it", heads=(b"ftrt", b"ptrt")
)
TORRENT = Stranger(
    "torrent", "a torrent, not the file itself", "download the file with a torrent client", heads=(b"d8:annou",)
)
EMPTY = Stranger(
    "zeros",
    "a file that begins with zeros, as downloads do that were broken off",
    "download it again",
    heads=(b"\0\0\0\0\0\0\0\0",),
)
