"""How a written file spells its keys: as kohya's scripts, as diffusers and PEFT, or as ComfyUI."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import StackError
from ..files.components import TEXT_ENCODER, is_denoiser
from ..naming.index import LayerIndex, family_of_model
from ..naming.places import Place
from .trees import ChangedWeight, Reader, family_of_denoiser, in_tree

Spelling = Literal["kohya", "diffusers", "peft", "comfy"]
"""`kohya` is read by most programs, `diffusers` has PEFT's names and `peft` its folders, `comfy` ComfyUI's names."""

_KOHYA = {"down": "lora_down.weight", "up": "lora_up.weight", "norms": "dora_scale", "bias": "diff_b"}
_PEFT = {"down": "lora_A.weight", "up": "lora_B.weight", "norms": "lora_magnitude_vector.weight", "bias": "lora_B.bias"}
PARAMETERS: Mapping[Spelling, Mapping[str, str]] = {
    "kohya": _KOHYA,
    "diffusers": _PEFT,
    "peft": _PEFT,
    "comfy": _KOHYA,
}
"""Of the factors, the norms of DoRA and the change of the bias. PEFT's files have `alpha` in the configuration."""
ONLY_LORA: Mapping[Spelling, str] = {"diffusers": "diffusers", "peft": "PEFT"}
"""Spellings -> who reads them. A key without `lora`, as of a whole difference, makes a file unreadable there."""
_READERS: Mapping[Spelling, Reader] = {
    "kohya": "kohya",
    "diffusers": "diffusers",
    "peft": "diffusers",
    "comfy": "comfy",
}
PEFT_PREFIX = "base_model.model."
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_TRANSFORMER = ("transformer_blocks", "single_transformer_blocks")
"""Lists of blocks in diffusers' own transformers, which ComfyUI looks for under OneTrainer's prefix."""
_LDM = ("input_blocks.", "middle_block.", "output_blocks.", "time_embed.", "label_emb.", "out.")
"""How the layers of a UNet begin in ComfyUI."""
_UNET = ("down_blocks.", "mid_block.", "up_blocks.", "time_embedding.", "add_embedding.", "conv_")
"""How they begin in diffusers."""
_CLIP: tuple[str, ...] = ("text_model.encoder.layers.", "text_model.embeddings.", "text_model.final_layer_norm")
"""How the layers of CLIP begin in transformers, and in the files of trainers."""
_T5 = ("encoder.block.", "encoder.final_layer_norm", "shared")
_LANGUAGE_MODEL: Mapping[Spelling, tuple[str, ...]] = {"kohya": ("layers.",), "comfy": ("model.layers.",)}
"""How the layers of a language model begin; elsewhere as in the loaded model."""
_COMFY_ENCODERS: Mapping[str, Mapping[str, str]] = {
    "anima": {TEXT_ENCODER: "qwen3_06b"},
    "auraflow": {TEXT_ENCODER: "pile_t5xl"},
    "hidream": {f"{TEXT_ENCODER}_4": "llama"},
    "hunyuan_dit": {f"{TEXT_ENCODER}_2": "mt5xl"},
    "hunyuan_image": {TEXT_ENCODER: "qwen25_7b", f"{TEXT_ENCODER}_2": "byt5_small"},
    "hunyuan_video": {TEXT_ENCODER: "llama", f"{TEXT_ENCODER}_2": "clip_l"},
    "hunyuan_video15": {TEXT_ENCODER: "qwen25_7b", f"{TEXT_ENCODER}_2": "byt5_small"},
    "kandinsky5": {f"{TEXT_ENCODER}_2": "clip_l"},
    "lumina2": {TEXT_ENCODER: "gemma2_2b"},
    "qwen_image": {TEXT_ENCODER: "qwen25_7b"},
    "sd2": {TEXT_ENCODER: "clip_h"},
    "stable_audio": {TEXT_ENCODER: "t5base"},
    "stable_cascade": {TEXT_ENCODER: "clip_g"},
    "wan": {TEXT_ENCODER: "umt5xxl"},
    "z_image": {TEXT_ENCODER: "qwen3_4b"},
}
"""Names of text encoders that are not CLIP-L, then bigG, or T5-XXL. Source: Comfy-Org/ComfyUI comfy/text_encoders."""
_ADAPTER, _CONDITIONER = "llm_adapter", "text_conditioner"
"""Anima's adapter, which is a part of the transformer in most programs; and its name in diffusers, where it is none."""
_FLAT_CLIP = ("encoder.layers.", "embeddings.", "final_layer_norm")
"""Layers of CLIP where transformers has flattened its tree; files keep the name of the tree."""


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names of the layers of one file.

    Args:
        spelling: of the keys.
        indexes: the layers of the model, by component.
    """

    spelling: Spelling
    indexes: Mapping[str, LayerIndex]

    def layers(self, weights: Sequence[ChangedWeight]) -> list[ChangedWeight]:
        """Return the layers that a file has of the weights of the model; raise ComponentError if it can have none."""
        return in_tree(weights, self.indexes, _READERS[self.spelling])

    def prefix(self, component: str, name: str) -> str:
        """Return what comes before the parameter in the keys of a layer; raise StackError if it has no such name."""
        if self.spelling == "peft":  # which has the names of the loaded model, but for those that hosts have changed
            keeps = name.startswith(_FLAT_CLIP) or not component.startswith(("unet", TEXT_ENCODER))
            return f"{PEFT_PREFIX}{name if keeps else self._usual(component, name)}"
        name = self._usual(component, name)
        if component.startswith(TEXT_ENCODER) and name.startswith(_FLAT_CLIP):
            name = f"text_model.{name}"
        if self.spelling == "diffusers":
            component = _CONDITIONER if component == _ADAPTER else component
            return name if name.startswith(f"{_CONDITIONER}.") else f"{component}.{name}"
        if component in (_ADAPTER, _CONDITIONER):
            component, name = "transformer", f"{_ADAPTER}.{name}"
        found = self._kohya(component, name) if self.spelling == "kohya" else self._comfy(component, name)
        if found is None:
            text = f"the spelling {self.spelling!r} has no name for the component {component}"
            raise StackError(f"{text}; write the spelling 'diffusers'")
        return found

    def _usual(self, component: str, name: str) -> str:
        """Return the name that files of the spelling have for a layer; its name here where they have none.

        kohya's files have the names of the checkpoint for SDXL, and diffusers' names for other UNets.
        """
        index, begins = self.indexes[component], (*_CLIP, *_T5, *_LANGUAGE_MODEL.get(self.spelling, ()))
        if component == "unet":
            of_ldm = self.spelling == "comfy" or (self.spelling == "kohya" and "label_emb.0.0" in index.dotted)
            begins = _LDM if of_ldm else _UNET
        elif not component.startswith(TEXT_ENCODER):
            return name  # of `layers`
        place = index.dotted[name]
        return _named(index, [name, *index.names[place.windows[0].path]], begins, place) or name

    def _kohya(self, component: str, name: str) -> str | None:
        if component == "prior":
            prefix = "lora_prior_unet"
        elif is_denoiser(component):
            is_own = component.startswith("transformer") and name.startswith(_TRANSFORMER)
            is_own = is_own and family_of_denoiser(self.indexes[component]) is None
            prefix = "" if component == "transformer_2" else "lora_transformer" if is_own else "lora_unet"
        else:
            several = sum([one.startswith(TEXT_ENCODER) for one in self.indexes]) > 1
            number = component.removeprefix(TEXT_ENCODER).lstrip("_")
            number = "3" if number == "2" and name.startswith(_T5) else number  # as of FLUX in kohya's scripts
            is_known = component.startswith(TEXT_ENCODER) and number in ("", "2", "3", "4")
            prefix = f"lora_te{number or ('1' if several else '')}" if is_known else ""
        return f"{prefix}_{name.replace('.', '_')}" if prefix else None

    def _comfy(self, component: str, name: str) -> str | None:
        if is_denoiser(component):
            return f"diffusion_model.{name}"
        family = family_of_model(self.indexes.values())
        encoder = _COMFY_ENCODERS.get("" if family is None else family.name, {}).get(component)
        if encoder is None and name.startswith(_T5):
            encoder = "t5xxl"
        elif encoder is None and name.startswith(_CLIP):
            encoder = {TEXT_ENCODER: "clip_l", f"{TEXT_ENCODER}_2": "clip_g"}.get(component)
        return None if encoder is None else f"text_encoders.{encoder}.transformer.{name}"


def _named(index: LayerIndex, names: Sequence[str], begins: tuple[str, ...], place: Place) -> str | None:
    """Return the name of a place with one of these beginnings; None without one.

    An upsampler has two names in the UNets of ldm: it is behind the attention where its block has one.
    """
    found = [one for one in names if one.startswith(begins) and index.dotted[one] == place]
    if len(found) > 1 and f"{found[0].removesuffix('.conv')}.proj_in" in index.dotted:
        return found[1]
    return found[0] if found else None


def peft_settings(ranks: Mapping[str, int], *, is_dora: bool, has_bias: bool) -> dict[str, object]:
    """Return the settings by which PEFT knows rank and alpha of each layer of a component, by its name.

    PEFT finds layers by the ends of their names, unless a pattern begins with `^`.
    """
    usual = Counter(ranks.values()).most_common(1)[0][0]
    others = {name: rank for name, rank in ranks.items() if rank != usual}
    others = {f"^{one}" if any(name.endswith(f".{one}") for name in ranks) else one: others[one] for one in others}
    found: dict[str, object] = {"r": usual, "lora_alpha": usual, "rank_pattern": others, "alpha_pattern": others}
    found |= {name: True for name, is_set in (("use_dora", is_dora), ("lora_bias", has_bias)) if is_set}
    return found | {"target_modules": list(ranks)}


def diffusers_header(settings: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return the header that has the settings of all components for diffusers."""
    found = {f"{component}.{name}": value for component, own in settings.items() for name, value in own.items()}
    return {"format": "pt", "lora_adapter_metadata": json.dumps(found, sort_keys=True)}


def peft_config(settings: Mapping[str, object]) -> str:
    """Return the text of PEFT's configuration of a component."""
    usual = {"peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "bias": "none"}
    return json.dumps({**usual, "inference_mode": True, **settings}, indent=2, sort_keys=True)
