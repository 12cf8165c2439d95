"""Remora's nodes, in ComfyUI's interface of schemas, `comfy_api.latest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import folder_paths
from comfy.patcher_extension import CallbacksMP, WrappersMP
from comfy_api.latest import ComfyExtension, io
from server import PromptServer

import lib_lora
from lib_lora import AdapterFile, Engine, Entry, LoraError, Region, Stack

from .applied import applied_of, apply_to_clip, apply_to_model, denoiser_of, refuse_useless, text_encoders_of
from .combining import combined
from .entries import Masks, check_constant, entry_of, read_prompt, read_rows
from .picture import picture_of

_STACK = io.Custom("REMORA_STACK")
_LIMIT = 100.0
_MASKS = ("mask_1", "mask_2", "mask_3", "mask_4")
_NOT_READ = dict.fromkeys(_MASKS, Region(1, 1, b"\x80"))
"""For rows that are checked before anything runs; neither it nor its inverse is empty."""


def _path(name: str) -> Path:
    return Path(folder_paths.get_full_path_or_raise("loras", name))


def _names() -> list[str]:
    return [str(name) for name in folder_paths.get_filename_list("loras")]


def _versions(paths: Iterable[Path]) -> str:
    """Return what changes when other content is saved in a file."""
    stats = [(path, path.stat()) for path in paths]
    return "\n".join(f"{path} {stat.st_mtime_ns} {stat.st_size}" for path, stat in stats)


def _of_prompt(text: str) -> tuple[str, list[Entry]]:
    return read_prompt(text, _names(), _path)


def _of_rows(text: str, masks: Mapping[str, Region] = _NOT_READ) -> list[Entry]:
    return read_rows(text, _names(), _path, masks)


def _fault(read: Callable[[str], object], text: str | None) -> bool | str:
    """Return what is wrong with a text, before anything runs; True where nothing is, or another node makes it."""
    try:
        read(text or "")
    except (LoraError, OSError) as error:  # a file went, or is a link to nothing
        return str(error)
    return True


def _versions_of_text(read: Callable[[str], list[Entry]], text: str | None) -> str:
    """Return what changes with the content of a text's files; all count where another node makes the text."""
    return _versions(map(_path, _names()) if text is None else (Path(entry.path) for entry in read(text)))


def _model(*, optional: bool = False) -> Any:
    tooltip = "The model that the LoRA act on. Its weights stay as they are."
    return io.Model.Input("model", optional=optional, tooltip=tooltip)


def _clip(*, optional: bool = True) -> Any:
    tooltip = "The text encoders that the LoRA act on. Without them, the LoRA act on the model alone."
    return io.Clip.Input("clip", optional=optional, tooltip=tooltip)


def _before(tooltip: str) -> Any:
    return _STACK.Input("stack", optional=True, tooltip=tooltip)


def _stack(tooltip: str) -> Any:
    return _STACK.Output(display_name="stack", tooltip=tooltip)


def _part(name: str, default: float, tooltip: str) -> Any:
    return io.Float.Input(name, default=default, min=0.0, max=1.0, step=0.01, tooltip=tooltip)


def _strength(name: str, tooltip: str) -> Any:
    return io.Float.Input(name, default=1.0, min=-_LIMIT, max=_LIMIT, step=0.01, tooltip=tooltip)


def _schema(name: str, title: str, description: str, **more: Any) -> Any:
    return io.Schema(node_id=name, display_name=title, category="Remora", description=description, **more)


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


class RemoraLora(io.ComfyNode):
    """Adds one file to a stack."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        blocks = "Block weights: a list such as 1,0,0,0,1,1,1,1,1,1,1,1,0,0,0,0,0, or a preset such as OUTALL."
        mask = "The part of the picture in which the LoRA acts."
        return _schema(
            "RemoraLora",
            "Remora LoRA",
            "Adds a LoRA to a stack. Connect the stack to the next LoRA, or to Remora Apply.",
            inputs=[
                io.Combo.Input("lora_name", options=_names(), tooltip="The LoRA file."),
                _strength("strength_model", "The strength on the model. 0 is as without the LoRA."),
                _strength("strength_clip", "The strength on the text encoders."),
                _part("start_percent", 0.0, "The part of the steps after which the LoRA begins to act."),
                _part("stop_percent", 1.0, "The part of the steps after which the LoRA stops."),
                io.String.Input("blocks", default="", tooltip=blocks),
                _before("The LoRA before this one."),
                io.Mask.Input("mask", optional=True, tooltip=mask),
            ],
            outputs=[_stack("The LoRA before this one, and this one.")],
        )

    @classmethod
    def execute(
        cls,
        lora_name: str,
        strength_model: float,
        strength_clip: float,
        start_percent: float,
        stop_percent: float,
        blocks: str,
        stack: tuple[Entry, ...] = (),
        mask: Any = None,
    ) -> Any:
        """Return the longer stack."""
        path = _path(lora_name)
        AdapterFile.open(path)  # so that a broken file is told on this node
        entry = entry_of(path, strength_model, strength_clip, start_percent, stop_percent, blocks, mask)
        return io.NodeOutput((*stack, entry))

    @classmethod
    def fingerprint_inputs(cls, lora_name: str | None = None, **_: object) -> str:
        """Return what changes with the content of the file; all count where another node gives the name."""
        return _versions(map(_path, _names() if lora_name is None else [lora_name]))


class RemoraStack(io.ComfyNode):
    """Adds several files to a stack."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        rows = "A tag in each line, such as <lora:name:0.8:start=0.2:mask=left>. A line that begins with # is off."
        return _schema(
            "RemoraStack",
            "Remora Stack",
            "Adds LoRA to a stack, in rows. Connect the stack to Remora Apply.",
            inputs=[
                io.String.Input("rows", multiline=True, default="", tooltip=rows),
                _before("The LoRA before these."),
                *(
                    io.Mask.Input(name, optional=True, tooltip=f"A part of the picture: mask={name} in a row.")
                    for name in _MASKS
                ),
            ],
            outputs=[_stack("The LoRA before these, and these.")],
        )

    @classmethod
    def execute(cls, rows: str, stack: tuple[Entry, ...] = (), **masks: Any) -> Any:
        """Return the longer stack."""
        entries = _of_rows(rows, Masks(dict.fromkeys(_MASKS) | masks))
        for entry in entries:
            AdapterFile.open(Path(entry.path))  # so that a broken file is told on this node
        return io.NodeOutput((*stack, *entries))

    @classmethod
    def validate_inputs(cls, rows: str | None = None) -> bool | str:
        """Return what is wrong with the rows, before anything runs; True where nothing is."""
        return _fault(_of_rows, rows)

    @classmethod
    def fingerprint_inputs(cls, rows: str | None = None, **_: object) -> str:
        """Return what changes with the content of the files."""
        return _versions_of_text(_of_rows, rows)


class RemoraApply(io.ComfyNode):
    """Puts a stack on a model and its text encoders."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        return _schema(
            "RemoraApply",
            "Remora Apply",
            "Applies a stack of LoRA while the model is sampled and texts are encoded. Replaces a former stack.",
            inputs=[
                _model(),
                _before("The LoRA, from Remora Stack or Remora LoRA. Without them, the model is as it was."),
                _clip(),
            ],
            outputs=[
                io.Model.Output(tooltip="The model with the LoRA."),
                io.Clip.Output(tooltip="The text encoders with the LoRA."),
            ],
        )

    @classmethod
    def execute(cls, model: Any, stack: tuple[Entry, ...] = (), clip: Any | None = None) -> Any:
        """Return clones with the stack."""
        return io.NodeOutput(*_apply(model, clip, stack))


class RemoraFromPrompt(io.ComfyNode):
    """Applies the LoRA that a prompt names, and encodes the rest of the prompt."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        tooltip = "The prompt, with tags such as <lora:name:0.8> or <lora:name:1:start=0.2:mask=left>."
        return _schema(
            "RemoraFromPrompt",
            "Remora From Prompt",
            "Applies the LoRA of a prompt's <lora:...> tags, and encodes the prompt without them.",
            inputs=[
                _model(),
                _clip(optional=False),
                io.String.Input("text", multiline=True, dynamic_prompts=True, tooltip=tooltip),
            ],
            outputs=[
                io.Model.Output(tooltip="The model with the LoRA."),
                io.Clip.Output(tooltip="The text encoders with the LoRA, for the negative prompt."),
                io.Conditioning.Output(tooltip="The encoded prompt."),
                io.String.Output(display_name="text", tooltip="The prompt without its tags."),
                _stack("The LoRA, for Remora Save."),
            ],
        )

    @classmethod
    def execute(cls, model: Any, clip: Any, text: str) -> Any:
        """Return clones with the stack, the conditioning, the text and the stack."""
        plain, entries = _of_prompt(text)
        model, clip = _apply(model, clip, tuple(entries))
        conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(plain))
        return io.NodeOutput(model, clip, conditioning, plain, tuple(entries))

    @classmethod
    def validate_inputs(cls, text: str | None = None) -> bool | str:
        """Return what is wrong with the tags, before anything runs; True where nothing is."""
        return _fault(_of_prompt, text)

    @classmethod
    def fingerprint_inputs(cls, text: str | None = None, **_: object) -> str:
        """Return what changes with the content of the files."""
        return _versions_of_text(lambda given: _of_prompt(given)[1], text)


class RemoraReport(io.ComfyNode):
    """Tells what the LoRA of a model did."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        after = "The sampled latent, so that the report tells which layers were called."
        return _schema(
            "RemoraReport",
            "Remora Report",
            "Tells which layers the LoRA act on, which keys of the files are unused, and why.",
            inputs=[_model(optional=True), _clip(), io.Latent.Input("after", optional=True, tooltip=after)],
            outputs=[
                io.String.Output(display_name="report", tooltip="A line for each LoRA."),
                io.Image.Output(
                    display_name="image", tooltip="The report as a picture, to be saved beside the others."
                ),
            ],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model: Any = None, clip: Any = None, after: Any = None) -> Any:
        """Return the report as text and as a picture."""
        lines = []
        for what, part in (("model", model), ("text encoders", clip)):
            applied = None if part is None else applied_of(part)
            if applied is not None:
                lines += [f"{what}: {line}" for line in applied.summary()]
        text = "\n".join(lines) or "no LoRA"
        _show(text, cls.hidden.unique_id)
        return io.NodeOutput(text, picture_of(text), ui={"text": [text]})

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> float:
        """Return a number that equals none, as each run has another report."""
        return float("nan")


class RemoraSave(io.ComfyNode):
    """Saves a stack as one file."""

    @classmethod
    def define_schema(cls) -> Any:
        """Return the inputs and outputs."""
        prefix = "The name of the file in the output folder. Files in its folder loras are in ComfyUI's list of LoRA."
        rank = "The largest rank of a layer. 0 saves the exact sum."
        return _schema(
            "RemoraSave",
            "Remora Save",
            "Saves the LoRA of a stack, with their strengths and block weights, as one LoRA file.",
            inputs=[
                _model(),
                _STACK.Input("stack", tooltip="The LoRA, from Remora Stack or Remora LoRA."),
                io.String.Input("filename_prefix", default="loras/remora", tooltip=prefix),
                io.Int.Input("rank", default=0, min=0, max=4096, tooltip=rank),
                _clip(),
            ],
            outputs=[
                io.String.Output(display_name="summary", tooltip="The path of the file, its size, ranks and error.")
            ],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls, model: Any, stack: tuple[Entry, ...], filename_prefix: str, rank: int, clip: Any | None = None
    ) -> Any:
        """Save the file and return its summary."""
        check_constant(stack)
        encoders = {} if clip is None else text_encoders_of(clip.cond_stage_model)
        engine, output = Engine({**denoiser_of(model), **encoders}), folder_paths.get_output_directory()
        folder, name, number, *_ = folder_paths.get_save_image_path(filename_prefix, output)
        path = Path(folder, f"{name}_{number:05}_.safetensors")
        with engine.active(Stack(combined(stack, engine.components))):
            saved = lib_lora.save_stack(engine, path, rank=rank or None)
        text = saved.summary()
        _show(text, cls.hidden.unique_id)
        return io.NodeOutput(text, ui={"text": [text]})


class Remora(ComfyExtension):
    """The nodes, as ComfyUI asks for them."""

    async def get_node_list(self) -> list[Any]:
        """Return the nodes."""
        return [RemoraLora, RemoraStack, RemoraApply, RemoraFromPrompt, RemoraReport, RemoraSave]


async def comfy_entrypoint() -> Remora:
    """Return what ComfyUI registers; its page then finds the modules of Remora's tab."""
    PromptServer.instance.routes.static("/remora", Path(__file__).resolve().parents[2] / "javascript" / "remora")
    return Remora()
