"""The common part of A1111 and the Forge family, beyond all web UIs: processing objects and their texts."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ..text.spelling import escaped, name_of
from ..text.tag import Pass
from ._clocks import DenoiserClock
from ._conditionings import Conditionings
from ._parameters import note
from ._passes import pass_of
from ._prompt_tags import Images
from ._webui import WebUIHost, attempt, batch_of, made_none, pictures_of
from ._webui_modules import module, shared
from .base import Batch, NotMadeError, Outcome

_PROMPTS = ("Prompt", "Hires prompt")  # of a parameters text


class A1111FamilyHost(WebUIHost):
    """A web UI with `modules.processing` as AUTOMATIC1111 wrote it."""

    has_parts: ClassVar[bool] = True
    has_comments: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.batch: Batch | None = None
        """The active batch of the generation that runs now."""
        self.generating = False
        self._conditionings = Conditionings(
            lambda: self.remora if self.remora.enabled else None,
            self.prompts_depend,
            self.pass_of,
            lambda p: None if self._networks is None else self._networks.check_served(p),
            lambda: self.woken,
        )
        self._clock = DenoiserClock()

    def prompts_depend(self) -> Hashable:
        """Return what an encoded prompt depends on beside the strengths of text encoders."""
        return ()

    def cannot_serve(self) -> str:
        """Return a sentence if a compiled engine such as TensorRT replaces the UNet: it calls none of its layers."""
        engine = getattr(module("modules.sd_unet"), "current_unet", None)
        if engine is None:
            return super().cannot_serve()
        return (
            f"the UNet is replaced by {type(engine).__name__}, which calls none of its layers: the web UI's own LoRA "
            "gets the tags"
        )

    def put_in_force(self, batch: Batch) -> Outcome:
        """Activate the LoRA of a batch."""
        return self.remora.batch(batch)

    def nothing_in_force(self) -> None:
        """Deactivate all LoRA, as no generation runs any more."""
        self.remora.generation_ended()

    def add_callbacks(self, callbacks: ModuleType) -> None:
        super().add_callbacks(callbacks)
        callbacks.on_infotext_pasted(self._pasted)
        callbacks.on_cfg_denoiser(self.denoising)

    def take_over(self) -> None:
        super().take_over()
        self.remora.clock(self._clock)
        processing = importlib.import_module("modules.processing")
        self._conditionings.wrap(self.wraps, processing)
        self.wraps.put(processing, "process_images_inner", self._generation)

    def pass_of(self, p: Any) -> Pass:
        model = importlib.import_module("modules.sd_models").model_data.sd_model  # other accessors would load one
        return pass_of(p, getattr(model, "sd_checkpoint_info", None))

    def denoising(self, params: Any) -> None:
        """Handle that the host is about to call the UNet, maybe another one than before."""
        if not self.is_ours():
            return
        self._clock.read(params)
        p = getattr(getattr(params, "denoiser", None), "p", None)
        self.remora.follow_model(None if p is None else self.pass_of(p))

    def is_ours(self) -> bool:
        """Tell whether Remora activated the present LoRA."""
        return self._remora is not None and self.batch is not None and self._remora.enabled

    def own_choice(self, files: Sequence[Path]) -> Path | None:
        """Return the last file in the order of the built-in's list, where a later file replaces an earlier one."""
        folders = self.adapter_dirs()

        def order(file: Path) -> tuple[object, ...]:
            folder = next((i for i, one in enumerate(folders) if file.is_relative_to(one)), len(folders))
            return folder, sort_key(str(file.parent)), sort_key(file.name)

        return max(files, key=order)

    def run_batch(self, p: Any, images: Images, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        if getattr(p, "prompts", None) is None and not any(images):
            return  # a model that is loading encodes an empty prompt, maybe during a generation
        batch = batch_of(p, self._with_the_one_for_all(p, images), exclude, self.pass_of(p))
        self.batch = None
        self.tell_or_report(p, self.put_in_force(batch))
        self.batch = batch

    def tell(self, p: Any, outcome: Outcome) -> None:
        note(p, outcome)
        for problem in outcome.problems:
            p.comment(problem)

    def _generation(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        """Deactivate all LoRA after a generation, however it ends; after a nested one, restore the outer one's."""
        outer, self.batch = self.batch if self.generating else None, None  # others may activate LoRA before it
        nested, self.generating = self.generating, True
        pictures = self.remora.pictures
        made: Any = None
        try:
            made = original(p, *args, **kwargs)
            return made
        except NotMadeError as error:
            return made_none(p, error)
        except BaseException as error:
            if self.batch is not None:
                self.remora.ended_by(error)
            raise
        finally:
            self.batch, self.generating = outer, nested
            if not nested:
                attempt(partial(self.remora.pictures_made, pictures_of(made)))
            if outer is None or not self.remora.enabled:
                self.nothing_in_force()
            else:
                self.put_in_force(outer)
                self.remora.go_on_with(pictures)

    def _with_the_one_for_all(self, p: Any, images: Images) -> Images:
        """Add the tag of the setting `sd_lora` to every prompt without it; return all tags."""
        values = shared().opts.data
        name = values.get("sd_lora")
        if not name or name == "None":
            return images
        named = escaped(name)
        arguments = f"{named}:{values.get('extra_networks_default_multiplier', 1.0)}"
        for every in ("all_prompts", "all_hr_prompts"):
            prompts = getattr(p, every, None)
            if prompts:
                setattr(p, every, [one if f"<lora:{named}" in one else f"{one}<lora:{arguments}>" for one in prompts])
        return tuple(image if any(name_of(tag) == name for tag in image) else (*image, arguments) for image in images)

    def _pasted(self, infotext: str, parameters: MutableMapping[str, Any]) -> None:
        if not self.remora.enabled:
            return
        settings: Mapping[str, object] = {}
        for name in _PROMPTS:
            if name in parameters:
                parameters[name], settings = self.remora.pasted({**parameters, "Prompt": parameters[name]})
        for key, value in settings.items():
            parameters[self._options[key].label] = str(value)


def sort_key(text: str) -> Sequence[object]:
    """Return what the built-in sorts folders and file names by: numbers in them by their value."""
    return [int(part) if part.isdecimal() else part.lower() for part in re.split(r"([0-9]+)", text)]
