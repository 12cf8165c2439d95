"""The page of the embedded web UI: layout only; `handlers` has the events."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr

from ..generation.options import TABLE
from ..hosts.txt2img import MAX_BATCH, MAX_CFG, MAX_COUNT, MAX_SIDE, MAX_STEPS, SIDE_STEP
from ..tab import MOUNT
from . import shown
from .handlers import Handlers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..hosts import Option
    from .backend import Backend

A = TypeVar("A")  # a FastAPI application

_CSS = Path(__file__).with_name("page.css")
_KEYS = Path(__file__).with_name("page.js")
TAB_SCRIPT = Path(__file__).resolve().parents[2] / "javascript" / "remora.js"
"""The script of the tab. Web UIs that load extensions find it on their own."""
_LOOKS = 0.05
"""Seconds after which gradio asks again whether there is work. By default it asks a thousand times a second."""
_EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class _Inputs:
    """The inputs, in the order of `Handlers.generate`."""

    prompt: Any
    negative: Any
    steps: Any
    sampler: Any
    cfg: Any
    width: Any
    height: Any
    seed: Any
    batch_size: Any
    n_iter: Any


@dataclass(frozen=True)
class _Results:
    """The outputs, in the order of `Update`."""

    progress: Any
    preview: Any
    older: Any
    gallery: Any
    infotext: Any
    outcome: Any
    infotexts: Any
    generate: Any
    cancel: Any


def build_page(backend: Backend) -> Any:
    """Return the page as gradio Blocks."""
    handlers = Handlers(backend)
    with gr.Blocks(title="Remora", analytics_enabled=False, fill_width=True) as page:
        model = f'<span class="remora-model">{escape(backend.model_name)}</span>'
        gr.HTML(f'<header class="remora-head"><b>Remora</b>{model}</header>')
        with gr.Row(elem_classes="remora-main"):
            # on a phone the four inner columns lie below each other: what is asked, what was made, LoRA, settings
            with gr.Column(scale=5, min_width=360, elem_classes="remora-side"):
                with gr.Column(elem_classes="remora-asked"):
                    prompt, negative = _prompts(backend.first_prompt)
                    with gr.Row(elem_classes="remora-start"):
                        generate = gr.Button("Generate", variant="primary", elem_id="generate", scale=3, min_width=120)
                        cancel = gr.Button(
                            "Cancel", variant="stop", elem_id="cancel", interactive=False, scale=1, min_width=80
                        )
                with gr.Column(elem_classes="remora-loras"):
                    _loras()
                    options = _options(handlers)
                    _offload(backend, handlers)
            with gr.Column(scale=6, min_width=360, elem_classes="remora-side"):
                with gr.Column(elem_classes="remora-made"):
                    outputs = _results(generate, cancel)
                with gr.Column(elem_classes="remora-settings"):
                    settings, dice, reuse = _settings(backend)
                    outputs.infotext.render()
        inputs = _Inputs(prompt, negative, **settings)
        _connect(handlers, inputs, outputs, options)
        _keep(page, backend.model_name, list(vars(inputs).values()))
        page.load(handlers.options, None, options, **_EVENT)
        first = page.load(handlers.first, list(vars(inputs).values()), list(vars(outputs).values()), **_EVENT)
        first.then(handlers.enabled, None, outputs.generate, trigger_mode="multiple", **_EVENT)
        dice.click(lambda: -1, None, inputs.seed, **_EVENT)
        reuse.click(handlers.last_seed, [outputs.infotext, inputs.seed], inputs.seed, **_EVENT)
    return page


def mount_page(app: A, page: Any, output_dir: Path, script: str) -> A:
    """Serve the page at the root of a FastAPI application that serves `TAB_SCRIPT` at the address `script`.

    Pictures are served from `output_dir`.
    """
    # as gradio does on Windows; its default elsewhere takes a tenth of a core while nothing is done
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = _LOOKS
    served: A = gr.mount_gradio_app(
        app,
        page,
        path="/",
        theme=_theme(),
        css_paths=[_CSS],
        head=f'<script defer src="{script}"></script><script>{_KEYS.read_text("utf-8")}</script>',
        allowed_paths=[str(output_dir)],
        max_file_size=1,  # byte: nothing of the page takes a file, and gradio would keep each
        footer_links=[],
        ssr_mode=False,
    )
    return served


def _theme() -> Any:
    return gr.themes.Base(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        font=("system-ui", "sans-serif"),  # names only: gradio's own fonts are fetched
        font_mono=("ui-monospace", "monospace"),
    ).set(  # of gradio's own colours, some have less contrast than 4.5
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
        button_primary_border_color="*primary_700",
        button_primary_border_color_dark="*primary_700",
        body_text_color_subdued="*neutral_600",
        block_label_text_color="*neutral_600",
        block_title_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        checkbox_border_color="*neutral_500",  # a border needs a contrast of 3
        checkbox_border_color_dark="*neutral_400",
    )


def _prompts(first: str) -> tuple[Any, Any]:
    prompt = gr.Textbox(
        first,
        label="Prompt",
        lines=3,
        max_lines=10,
        elem_id="prompt",
        placeholder="Describe the picture. Write a LoRA as <lora:name:0.8>. Ctrl+Enter generates.",
    )
    negative = gr.Textbox(
        label="Negative prompt",
        lines=1,
        max_lines=6,
        elem_id="negative",
        placeholder="What the picture should not show",
    )
    return prompt, negative


def _loras() -> None:
    with gr.Accordion("LoRA", open=True, elem_id="loras"):
        gr.HTML(MOUNT)


def _settings(backend: Backend) -> tuple[dict[str, Any], Any, Any]:
    """Return the inputs by name, and the two buttons that set the seed."""
    with gr.Accordion("Settings", open=True, elem_id="settings"):
        slider: dict[str, Any] = {"buttons": [], "min_width": 190}
        with gr.Row():
            sampler = gr.Dropdown(
                list(backend.samplers), value="Euler a", label="Sampler", elem_id="sampler", min_width=120
            )
            steps = gr.Slider(1, MAX_STEPS, 20, step=1, label="Steps", elem_id="steps", **slider)
            cfg = gr.Slider(1, MAX_CFG, 7, step=0.5, label="CFG scale", elem_id="cfg", **slider)
        with gr.Row():
            side = {"minimum": 64, "maximum": MAX_SIDE, "value": backend.side, "step": SIDE_STEP, **slider}
            width = gr.Slider(**side, label="Width", elem_id="width")
            height = gr.Slider(**side, label="Height", elem_id="height")
        with gr.Row():
            number: dict[str, Any] = {"value": 1, "minimum": 1, "precision": 0, "min_width": 120}
            batch_size = gr.Number(**number, maximum=MAX_BATCH, label="Batch size", elem_id="batch-size")
            n_iter = gr.Number(**number, maximum=MAX_COUNT, label="Batch count", elem_id="batch-count")
        with gr.Row(elem_classes="remora-seed"):
            seed = gr.Number(
                backend.first_seed, label="Seed (-1: random)", precision=0, elem_id="seed", scale=3, min_width=90
            )
            dice = gr.Button("Random", size="sm", elem_id="seed-random", scale=1, min_width=80)
            reuse = gr.Button("From picture", size="sm", elem_id="seed-reuse", scale=1, min_width=110)
    names = ("steps", "sampler", "cfg", "width", "height", "seed", "batch_size", "n_iter")
    return dict(zip(names, (steps, sampler, cfg, width, height, seed, batch_size, n_iter), strict=True)), dice, reuse


def _options(handlers: Handlers) -> list[Any]:
    """Return the controls of Remora's settings, in the order of their table; the page fills them when it opens."""
    with gr.Accordion("LoRA settings", open=False, elem_id="lora-settings"):
        controls = {option: _control(option) for option in TABLE if not option.expert}
        with gr.Accordion("For experts", open=False, elem_id="expert-settings"):
            controls |= {option: _control(option) for option in TABLE if option.expert}
    for option, control in controls.items():
        # a number is whole when it is left, not at every key
        events = [control.submit, control.blur] if isinstance(control, gr.Number) else [control.input]
        gr.on(events, partial(handlers.set_option, option.key), control, None, **_EVENT)
    return [controls[option] for option in TABLE]


def _control(option: Option) -> Any:
    shared: dict[str, Any] = {"label": option.label, "info": option.info, "elem_id": option.key.replace("_", "-")}
    match option.default:
        case bool():
            return gr.Checkbox(**shared)
        case int() | float():
            whole = isinstance(option.default, int)
            bounds = {
                name: bound
                for name, bound in (("minimum", option.minimum), ("maximum", option.maximum))
                if math.isfinite(bound)
            }
            return gr.Number(**shared, **bounds, precision=0 if whole else None)
        case _:
            return gr.Dropdown(list(option.choices), **shared)


def _offload(backend: Backend, handlers: Handlers) -> None:
    mode = gr.Radio(
        list(backend.offload_modes),
        value=backend.offload_mode,
        label="Offload",
        info="Where weights are stored between calls; a change takes effect after the running job",
        elem_id="offload",
        visible=len(backend.offload_modes) > 1,  # without a GPU there is nothing to choose
    )
    mode.input(handlers.offload, mode, mode, **_EVENT)


def _results(generate: Any, cancel: Any) -> _Results:
    progress = gr.HTML(shown.idle(), elem_id="progress")
    older = gr.HTML("", elem_id="older", elem_classes="remora-optional")
    preview = gr.Image(
        visible=False, interactive=False, show_label=False, buttons=[], elem_id="preview", height=512, format="jpeg"
    )
    gallery = gr.Gallery(
        show_label=False,
        elem_id="gallery",
        columns=3,
        height=512,
        object_fit="contain",
        buttons=["download", "fullscreen"],
    )
    outcome = gr.HTML("", elem_id="outcome", elem_classes="remora-optional")
    infotext = gr.Textbox(
        label="Parameters",
        lines=4,
        max_lines=12,
        interactive=False,
        buttons=["copy"],
        elem_id="infotext",
        render=False,
    )
    return _Results(progress, preview, older, gallery, infotext, outcome, gr.State([]), generate, cancel)


def _keep(page: Any, model: str, inputs: list[Any]) -> None:
    """Let a reload keep the inputs, in this tab of the browser and for this model."""
    key = json.dumps(f"remora inputs of {model}")
    known = f"(...now) => JSON.parse(sessionStorage.getItem({key})) ?? now"
    # browsers keep about five megabytes
    keep = f"""(...now) => {{
        const text = JSON.stringify(now);
        if (text.length < 1e6) sessionStorage.setItem({key}, text);
        else sessionStorage.removeItem({key});
    }}"""
    page.load(None, inputs, inputs, js=known, **_EVENT)
    gr.on([one.change for one in inputs], None, inputs, None, js=keep, **_EVENT)


def _connect(handlers: Handlers, inputs: _Inputs, outputs: _Results, options: Sequence[Any]) -> None:
    every_input = list(vars(inputs).values())
    every_output = list(vars(outputs).values())
    made = gr.on(
        [outputs.generate.click, inputs.prompt.submit],
        handlers.generate,
        every_input,
        every_output,
        concurrency_limit=None,  # jobs queue by themselves, and a waiting one must be able to say so
        trigger_mode="once",
        **_EVENT,
    )
    # behind the event: before its end gradio ignores a press, even after the last update
    made.then(handlers.enabled, None, outputs.generate, trigger_mode="multiple", **_EVENT)
    # the page presses it when a parameters text was pasted, dropped or typed
    understand = gr.Button("Understand", elem_id="understand", elem_classes="remora-hidden")
    understand.click(handlers.understood, every_input, [*every_input, *options], **_EVENT)
    outputs.cancel.click(handlers.cancel, None, None, queue=False, **_EVENT)
    outputs.gallery.select(handlers.select, outputs.infotexts, outputs.infotext, **_EVENT)
