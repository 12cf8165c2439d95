"""AUTOMATIC1111's web UI, as of 1.6 and later, as a host."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ._a1111_family import A1111FamilyHost
from ._builtin_lora import BuiltinLora
from ._bundled_embeddings import BundledEmbeddings
from ._cfg_rows import CfgRows
from ._webui_modules import module
from .base import Batch, Embeddings, Outcome

if TYPE_CHECKING:
    from torch import nn


class A1111Host(A1111FamilyHost):
    """The web UI with ldm's models and a built-in Lora extension that merges."""

    name: ClassVar[str] = "a1111"
    shows_info_of_options = True

    def __init__(self) -> None:
        super().__init__()
        self._builtin = BuiltinLora()
        self._embeddings = BundledEmbeddings()
        self._rows = CfgRows()

    # --- model and folders ---

    def is_current(self) -> bool:
        if module("modules_forge") is not None:
            return False
        models, callbacks, processing = map(
            module, ("modules.sd_models", "modules.script_callbacks", "modules.processing")
        )
        return (
            hasattr(models, "model_data")
            and hasattr(callbacks, "on_cfg_denoiser")
            and hasattr(getattr(processing, "StableDiffusionProcessing", None), "cached_params")
        )

    @property
    def families(self) -> frozenset[str] | None:
        return frozenset({"sd1", "sd2", "sdxl", "sdxl_refiner", "sd3"})

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
        """Return the loaded model, or None; `shared.sd_model` would load one."""
        return importlib.import_module("modules.sd_models").model_data.sd_model

    def prompts_depend(self) -> Hashable:
        return self._embeddings.key

    # --- connecting ---

    def take_over(self) -> None:
        super().take_over()
        self.wraps.put(importlib.import_module("modules.sd_models"), "load_model_weights", self._loading)

    def quiet_builtin(self) -> None:
        self._builtin.quiet()

    def wake_builtin(self) -> None:
        self._builtin.wake()

    def _loading(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Handle that the host writes other weights into its model: cached state of the old ones is invalid."""
        self.remora.model_changed()
        return original(*args, **kwargs)

    # --- a generation ---

    def put_in_force(self, batch: Batch) -> Outcome:
        outcome = super().put_in_force(batch)
        images = len(outcome.images)
        self._rows.begin([1] * images, images)
        self.remora.rows(self._rows)
        return outcome

    def nothing_in_force(self) -> None:
        super().nothing_in_force()
        self.remora.rows(None)

    def denoising(self, params: Any) -> None:
        super().denoising(params)
        if self.is_ours():
            prompts = params.denoiser.sampler.sampler_extra_args["cond"].batch
            self._rows.begin([len(parts) for parts in prompts], params.x.shape[0])


A1111 = A1111Host()


def _denoiser(model: Any) -> dict[str, nn.Module]:
    """Return the part that is called at each step, by its name in diffusers."""
    part = getattr(getattr(model, "model", None), "diffusion_model", None)
    if part is None:
        return {}
    return {"transformer" if hasattr(part, "joint_blocks") else "unet": part}


def _text_encoders(model: Any) -> dict[str, nn.Module]:
    """Return the text encoders by their names in diffusers; the host wraps them, but not while it loads weights."""
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
