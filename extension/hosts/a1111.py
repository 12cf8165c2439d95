"""AUTOMATIC1111's web UI, as of 1.6 and later, as a host."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from ._builtin_lora import BuiltinLora
from ._bundled_embeddings import BundledEmbeddings
from ._cfg_rows import CfgRows
from ._conditionings import Conditionings
from ._extra_networks import Images
from ._parameters import note
from ._webui import WebUIHost, module
from ._wraps import Wraps
from .base import Batch, Embeddings, Option, Outcome, Remora

if TYPE_CHECKING:
    from torch import nn

_PROMPTS = ("Prompt", "Hires prompt")  # of a parameters text


class A1111Host(WebUIHost):
    """The web UI with ldm's models and a built-in Lora extension that merges."""

    name: ClassVar[str] = "a1111"

    def __init__(self) -> None:
        super().__init__()
        self._builtin = BuiltinLora()
        self._embeddings = BundledEmbeddings()
        self._wraps = Wraps()
        self._rows = CfgRows()
        self._conditionings = Conditionings(self._serving, lambda: self._embeddings.key)
        self._batch: Batch | None = None  # in force, of the generation that runs now
        self._images = 1  # with LoRAs of their own

    # --- what there is ---

    def is_current(self) -> bool:
        if importlib.util.find_spec("modules") is None or importlib.util.find_spec("modules_forge") is not None:
            return False
        models, callbacks, processing = map(
            module, ("modules.sd_models", "modules.script_callbacks", "modules.processing")
        )
        return (
            hasattr(models, "model_data")
            and hasattr(callbacks, "on_cfg_denoiser")
            and hasattr(getattr(processing, "StableDiffusionProcessing", None), "cached_params")
        )

    def components(self) -> Mapping[str, nn.Module]:
        model = self._model()
        return {} if model is None else {**_denoiser(model), **_text_encoders(model)}

    def checkpoints(self) -> Mapping[str, Sequence[Path]]:
        file = Path(getattr(getattr(self._model(), "sd_checkpoint_info", None), "filename", None) or "")
        if file.suffix != ".safetensors" or not file.is_file():
            return {}
        return dict.fromkeys(self.components(), (file,))

    def use_embeddings(self, embeddings: Embeddings) -> Sequence[str]:
        database = importlib.import_module("modules.sd_hijack").model_hijack.embedding_db
        makes = importlib.import_module("modules.textual_inversion.textual_inversion")
        return self._embeddings.use(embeddings, database, self._model(), makes)

    @staticmethod
    def _model() -> Any:
        """The loaded model, None without one; `shared.sd_model` would load it."""
        return importlib.import_module("modules.sd_models").model_data.sd_model

    # --- coming and going ---

    def add_callbacks(self, callbacks: ModuleType) -> None:
        super().add_callbacks(callbacks)
        callbacks.on_cfg_denoiser(self._denoising)
        callbacks.on_infotext_pasted(self._pasted)

    def take_over(self) -> None:
        super().take_over()
        processing, models = (importlib.import_module(f"modules.{name}") for name in ("processing", "sd_models"))
        self._conditionings.wrap(self._wraps, processing)
        self._wraps.put(processing, "process_images_inner", self._generation)
        self._wraps.put(models, "load_model_weights", self._loading)

    def unload(self) -> None:
        self._wraps.give_back()
        self.remora.generation_ended()
        self.wake_builtin()  # before our patches go: they lie on top of its own
        super().unload()

    def quiet_builtin(self) -> None:
        self._builtin.quiet()

    def wake_builtin(self) -> None:
        self._builtin.wake()

    def _loading(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The host writes other weights into the model it has; nobody may think afterwards that they are the old."""
        self.remora.model_changed()
        return original(*args, **kwargs)

    # --- a generation ---

    def run_batch(self, p: Any, images: Images, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        if p.prompts is None and not any(images):
            return  # a model that is being loaded has its empty prompt encoded, maybe in the middle of a generation
        batch = self.batch_of(p, self._with_the_one_for_all(p, images), include, exclude)
        self._batch = None
        self.tell(p, self._put_in_force(batch), images)
        self._batch = batch

    def tell(self, p: Any, outcome: Outcome, images: Images) -> None:
        note(p, outcome)
        for problem in outcome.problems:
            p.comment(problem)

    def _generation(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        """Nothing stays in force after one, however it ends; after one within another, what the other has is again."""
        outer, self._batch = self._batch, None
        try:
            return original(p, *args, **kwargs)
        finally:
            self._batch = outer
            if outer is None or not self.remora.enabled:
                self.remora.generation_ended()
                self.remora.rows(None)
            else:
                self._put_in_force(outer)

    def _put_in_force(self, batch: Batch) -> Outcome:
        outcome = self.remora.batch(batch)
        self._images = len(outcome.images)
        self._rows.begin([1] * self._images, self._images)
        self.remora.rows(self._rows if self._images > 1 else None)
        return outcome

    def _with_the_one_for_all(self, p: Any, images: Images) -> Images:
        """The tags, with that of the setting `sd_lora` in every prompt that has not got it; the prompts get it too."""
        values = self._shared().opts.data
        name = values.get("sd_lora")
        if not name or name == "None":
            return images
        arguments = f"{name}:{values.get('extra_networks_default_multiplier', 1.0)}"
        for every in ("all_prompts", "all_hr_prompts"):
            prompts = getattr(p, every, None)
            if prompts:
                setattr(p, every, [one if f"<lora:{name}" in one else f"{one}<lora:{arguments}>" for one in prompts])
        return tuple(
            image if any(tag.split(":")[0] == name for tag in image) else (*image, arguments) for image in images
        )

    def _serving(self) -> Remora | None:
        return self.remora if self.remora.enabled else None

    def _denoising(self, params: Any) -> None:
        """The host is about to call the UNet, maybe another one than before."""
        if self._batch is None or not self.remora.enabled:
            return
        self.remora.follow_model()
        if self._images > 1:
            prompts = params.denoiser.sampler.sampler_extra_args["cond"].batch
            self._rows.begin([len(parts) for parts in prompts], params.x.shape[0])

    # --- parameters texts and settings ---

    def _pasted(self, infotext: str, parameters: MutableMapping[str, Any]) -> None:
        if not self.remora.enabled:
            return
        settings: Mapping[str, object] = {}
        for name in _PROMPTS:
            if name in parameters:
                parameters[name], settings = self.remora.pasted({**parameters, "Prompt": parameters[name]})
        for key, value in settings.items():
            parameters[self._options[key].label] = str(value)

    def _info(self, option: Option) -> Any:
        info = super()._info(option)
        info.infotext = option.label  # the name under which a parameters text overrides the setting
        return info


A1111 = A1111Host()


def _denoiser(model: Any) -> dict[str, nn.Module]:
    """The part that is called at each step, by its name in diffusers."""
    part = getattr(getattr(model, "model", None), "diffusion_model", None)
    if part is None:
        return {}
    return {"transformer" if hasattr(part, "joint_blocks") else "unet": part}


def _text_encoders(model: Any) -> dict[str, nn.Module]:
    """The text encoders by their names in diffusers; the host has wrapped them, but not while it loads weights."""
    several = getattr(model, "text_encoders", None)  # Stable Diffusion 3
    if several is not None:
        names = {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"}
        found = {name: getattr(getattr(several, own, None), "transformer", None) for name, own in names.items()}
        return {name: part for name, part in found.items() if part is not None}
    conditioner = getattr(model, "conditioner", None)  # Stable Diffusion XL
    wrapped = [getattr(model, "cond_stage_model", None)] if conditioner is None else conditioner.embedders
    open_clip = "text_encoder" if conditioner is None else "text_encoder_2"
    encoders: dict[str, nn.Module] = {}
    for one in wrapped:
        encoder = getattr(one, "wrapped", one)
        for name, attribute in (("text_encoder", "transformer"), (open_clip, "model")):
            part = getattr(encoder, attribute, None)
            if part is not None:
                encoders[name] = part
    return encoders
