"""Remora's nodes, in ComfyUI's interface of classes with INPUT_TYPES, which its versions of 2023 to 2026 read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import folder_paths
from comfy.patcher_extension import CallbacksMP, WrappersMP
from server import PromptServer

import lib_lora
from lib_lora import AdapterFile, Engine, Entry, Stack

from .applied import applied_of, apply_to_clip, apply_to_model, denoiser_of, refuse_useless, text_encoders_of
from .combining import combined
from .entries import check_constant, entry_of, read_prompt
from .picture import picture_of

CATEGORY = "Remora"
_STACK = "REMORA_STACK"
_LIMIT = 100.0
_NODE = {"unique_id": "UNIQUE_ID"}
"""What ComfyUI fills in."""
_MODEL = {"tooltip": "The model that the LoRA act on. Its weights stay as they are."}
_CLIP = {"tooltip": "The text encoders that the LoRA act on. Without them, the LoRA act on the model alone."}


def _path(name: str) -> Path:
    return Path(folder_paths.get_full_path_or_raise("loras", name))


def _names() -> list[str]:
    return [str(name) for name in folder_paths.get_filename_list("loras")]


def _versions(paths: Iterable[Path]) -> str:
    """Return what changes when other content is saved in a file."""
    stats = [(path, path.stat()) for path in paths]
    return "\n".join(f"{path} {stat.st_mtime_ns} {stat.st_size}" for path, stat in stats)


def _part(default: float, tooltip: str) -> tuple[str, dict[str, object]]:
    return "FLOAT", {"default": default, "min": 0.0, "max": 1.0, "step": 0.01, "tooltip": tooltip}


def _strength(tooltip: str) -> tuple[str, dict[str, object]]:
    return "FLOAT", {"default": 1.0, "min": -_LIMIT, "max": _LIMIT, "step": 0.01, "tooltip": tooltip}


def _show(text: str, node: str | None) -> None:
    """Show a text on a node in the page, where ComfyUI can."""
    send = getattr(getattr(PromptServer, "instance", None), "send_progress_text", None)
    if send is not None and node is not None:
        send(text, node)


def _apply(model: Any, clip: Any | None, entries: tuple[Entry, ...]) -> tuple[Any, Any | None]:
    encoders = {} if clip is None else text_encoders_of(clip.cond_stage_model)
    entries = combined(entries, {**denoiser_of(model), **encoders})
    with_stack, on_model = apply_to_model(model, entries, WrappersMP, CallbacksMP)
    if clip is None:
        refuse_useless([on_model])
        return with_stack, None
    clip_with_stack, on_clip = apply_to_clip(clip, entries, denoiser_of(model), CallbacksMP)
    refuse_useless([on_model, on_clip])
    return with_stack, clip_with_stack


class RemoraLora:
    """Adds one file to a stack."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        """Return the inputs."""
        blocks = "Block weights: a list such as 1,0,0,0,1,1,1,1,1,1,1,1,0,0,0,0,0, or a preset such as OUTALL."
        return {
            "required": {
                "lora_name": (_names(), {"tooltip": "The LoRA file."}),
                "strength_model": _strength("The strength on the model. 0 is as without the LoRA."),
                "strength_clip": _strength("The strength on the text encoders."),
                "start_percent": _part(0.0, "The part of the steps after which the LoRA begins to act."),
                "stop_percent": _part(1.0, "The part of the steps after which the LoRA stops."),
                "blocks": ("STRING", {"default": "", "tooltip": blocks}),
            },
            "optional": {
                "stack": (_STACK, {"tooltip": "The LoRA before this one."}),
                "mask": ("MASK", {"tooltip": "The part of the picture in which the LoRA acts."}),
            },
        }

    RETURN_TYPES = (_STACK,)
    RETURN_NAMES = ("stack",)
    OUTPUT_TOOLTIPS = ("The LoRA before this one, and this one.",)
    FUNCTION = "add"
    CATEGORY = CATEGORY
    DESCRIPTION = "Adds a LoRA to a stack. Connect the stack to the next LoRA, or to Remora Apply."

    def add(
        self,
        lora_name: str,
        strength_model: float,
        strength_clip: float,
        start_percent: float,
        stop_percent: float,
        blocks: str,
        stack: tuple[Entry, ...] = (),
        mask: Any = None,
    ) -> tuple[Any]:
        """Return the longer stack."""
        path = _path(lora_name)
        AdapterFile.open(path)  # so that a broken file is told on this node
        return ((*stack, entry_of(path, strength_model, strength_clip, start_percent, stop_percent, blocks, mask)),)

    @classmethod
    def IS_CHANGED(cls, lora_name: str | None = None, **_: object) -> str:  # noqa: N802
        """Return what changes with the content of the file; all count where another node gives the name."""
        return _versions(map(_path, _names() if lora_name is None else [lora_name]))


class RemoraApply:
    """Puts a stack on a model and its text encoders."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        """Return the inputs."""
        stack = {"tooltip": "The LoRA, from Remora LoRA. Without them, the model is as it was."}
        return {
            "required": {"model": ("MODEL", _MODEL)},
            "optional": {"stack": (_STACK, stack), "clip": ("CLIP", _CLIP)},
        }

    RETURN_TYPES = ("MODEL", "CLIP")
    OUTPUT_TOOLTIPS = ("The model with the LoRA.", "The text encoders with the LoRA.")
    FUNCTION = "apply"
    CATEGORY = CATEGORY
    DESCRIPTION = "Applies a stack of LoRA while the model is sampled and texts are encoded. Replaces a former stack."

    def apply(self, model: Any, stack: tuple[Entry, ...] = (), clip: Any | None = None) -> tuple[Any, Any | None]:
        """Return clones with the stack."""
        return _apply(model, clip, stack)


class RemoraFromPrompt:
    """Applies the LoRA that a prompt names, and encodes the rest of the prompt."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        """Return the inputs."""
        tooltip = "The prompt, with tags such as <lora:name:0.8> or <lora:name:1:start=0.2:mask=left>."
        return {
            "required": {
                "model": ("MODEL", _MODEL),
                "clip": ("CLIP", _CLIP),
                "text": ("STRING", {"multiline": True, "dynamicPrompts": True, "tooltip": tooltip}),
            }
        }

    RETURN_TYPES = ("MODEL", "CLIP", "CONDITIONING", "STRING", _STACK)
    RETURN_NAMES = ("MODEL", "CLIP", "CONDITIONING", "text", "stack")
    OUTPUT_TOOLTIPS = (
        "The model with the LoRA.",
        "The text encoders with the LoRA, for the negative prompt.",
        "The encoded prompt.",
        "The prompt without its tags.",
        "The LoRA, for Remora Save.",
    )
    FUNCTION = "apply"
    CATEGORY = CATEGORY
    DESCRIPTION = "Applies the LoRA of a prompt's <lora:...> tags, and encodes the prompt without them."

    def apply(self, model: Any, clip: Any, text: str) -> tuple[Any, Any, Any, str, tuple[Entry, ...]]:
        """Return clones with the stack, the conditioning, the text and the stack."""
        plain, entries = read_prompt(text, _names(), _path)
        model, clip = _apply(model, clip, tuple(entries))
        return model, clip, clip.encode_from_tokens_scheduled(clip.tokenize(plain)), plain, tuple(entries)

    @classmethod
    def IS_CHANGED(cls, text: str | None = None, **_: object) -> str:  # noqa: N802
        """Return what changes with the content of the files; all count where another node makes the text."""
        if text is None:
            return _versions(map(_path, _names()))
        return _versions(Path(entry.path) for entry in read_prompt(text, _names(), _path)[1])


class RemoraReport:
    """Tells what the LoRA of a model did."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        """Return the inputs."""
        after = {"tooltip": "The sampled latent, so that the report tells which layers were called."}
        optional = {"model": ("MODEL", _MODEL), "clip": ("CLIP", _CLIP), "after": ("LATENT", after)}
        return {"optional": optional, "hidden": _NODE}

    RETURN_TYPES = ("STRING", "IMAGE")
    RETURN_NAMES = ("report", "image")
    OUTPUT_TOOLTIPS = ("A line for each LoRA.", "The report as a picture, to be saved beside the others.")
    FUNCTION = "tell"
    CATEGORY = CATEGORY
    OUTPUT_NODE = True
    DESCRIPTION = "Tells which layers the LoRA act on, which keys of the files are unused, and why."

    def tell(
        self, model: Any = None, clip: Any = None, after: Any = None, unique_id: str | None = None
    ) -> dict[str, Any]:
        """Return the report as text and as a picture."""
        lines = []
        for what, part in (("model", model), ("text encoders", clip)):
            applied = None if part is None else applied_of(part)
            if applied is not None:
                lines += [f"{what}: {line}" for line in applied.summary()]
        text = "\n".join(lines) or "no LoRA"
        _show(text, unique_id)
        return {"ui": {"text": [text]}, "result": (text, picture_of(text))}

    @classmethod
    def IS_CHANGED(cls, **_: object) -> float:  # noqa: N802
        """Return a number that equals none, as each run has another report."""
        return float("nan")


class RemoraSave:
    """Saves a stack as one file."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        """Return the inputs."""
        prefix = "The name of the file in the output folder. Files in its folder loras are in ComfyUI's list of LoRA."
        rank = "The largest rank of a layer. 0 saves the exact sum."
        return {
            "required": {
                "model": ("MODEL", _MODEL),
                "stack": (_STACK, {"tooltip": "The LoRA, from Remora LoRA."}),
                "filename_prefix": ("STRING", {"default": "loras/remora", "tooltip": prefix}),
                "rank": ("INT", {"default": 0, "min": 0, "max": 4096, "tooltip": rank}),
            },
            "optional": {"clip": ("CLIP", _CLIP)},
            "hidden": _NODE,
        }

    RETURN_TYPES = ("STRING",)
    RETURN_NAMES = ("summary",)
    OUTPUT_TOOLTIPS = ("The path of the file, its size, ranks and error.",)
    FUNCTION = "save"
    CATEGORY = CATEGORY
    OUTPUT_NODE = True
    DESCRIPTION = "Saves the LoRA of a stack, with their strengths and block weights, as one LoRA file."

    def save(
        self,
        model: Any,
        stack: tuple[Entry, ...],
        filename_prefix: str,
        rank: int,
        clip: Any | None = None,
        unique_id: str | None = None,
    ) -> dict[str, Any]:
        """Save the file and return its summary."""
        check_constant(stack)
        encoders = {} if clip is None else text_encoders_of(clip.cond_stage_model)
        engine, output = Engine({**denoiser_of(model), **encoders}), folder_paths.get_output_directory()
        folder, name, number, *_ = folder_paths.get_save_image_path(filename_prefix, output)
        path = Path(folder, f"{name}_{number:05}_.safetensors")
        with engine.active(Stack(combined(stack, engine.components))):
            saved = lib_lora.save_stack(engine, path, rank=rank or None)
        text = saved.summary()
        _show(text, unique_id)
        return {"ui": {"text": [text]}, "result": (text,)}


NODE_CLASS_MAPPINGS: dict[str, type] = {
    "RemoraLora": RemoraLora,
    "RemoraApply": RemoraApply,
    "RemoraFromPrompt": RemoraFromPrompt,
    "RemoraReport": RemoraReport,
    "RemoraSave": RemoraSave,
}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {
    "RemoraLora": "Remora LoRA",
    "RemoraApply": "Remora Apply",
    "RemoraFromPrompt": "Remora From Prompt",
    "RemoraReport": "Remora Report",
    "RemoraSave": "Remora Save",
}
