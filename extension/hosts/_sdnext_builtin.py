"""SD.Next's own LoRA, which write into the weights: removed, so that Remora starts from the base model.

Source: vladmandic/sdnext, modules/lora at 058a7f0 of July 2026. Later versions also put things beside the weights; of
these, single files are known: `networks`, `lora_sdnq` and `lora_mask` at c5f2dc2, `lora_stack` at 0b64697, and
`network_pdd` at 059ccba. What is there is asked to take itself off.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ._webui_modules import module

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

_KEPT = (  # the copies of original weights that the built-in stores on layers
    "network_weights_backup",
    "network_bias_backup",
    "sdnq_dequantizer_backup",
    "sdnq_scale_backup",
    "sdnq_zero_point_backup",
    "sdnq_svd_up_backup",
    "sdnq_svd_down_backup",
)
_DIFFERENT = (
    "the web UI had merged LoRA into the weights without a copy of them, and the checkpoint could not be loaded again: "
    "pictures differ from before until a checkpoint is loaded"
)
_WEIGHT_COPIES = ("network_weights_backup", "network_bias_backup")


class Merged:
    """The parts of models into whose weights the built-in merged LoRA without a copy of them.

    The built-in undoes that by subtracting, which rounds, and by what `lora_fuse_diffusers` merged not at all. Only the
    checkpoint has the weights as they were.
    """

    def __init__(self) -> None:
        self._parts: WeakSet[nn.Module] = WeakSet()
        self._told: WeakSet[nn.Module] = WeakSet()  # the ones that cannot be loaded again

    def note(self, components: Mapping[str, nn.Module]) -> None:
        """Remember what the built-in's marks say now; it removes them, and so does `take_off`."""
        if module("modules.lora.lora_common") is None:
            return
        fused = importlib.import_module("modules.shared").opts.data.get("lora_fuse_diffusers", False)
        by_diffusers = fused and importlib.import_module("modules.lora.lora_diffusers").diffuser_loaded
        for part in components.values():
            if by_diffusers or any(vars(layer).get("network_weights_backup") is True for layer in part.modules()):
                self._parts.add(part)

    def load_again(self, pipe: Any, components: Mapping[str, nn.Module]) -> None:
        """Load the checkpoint of a model that has merged weights; call it before a picture begins."""
        self.note(components)
        merged = [part for part in components.values() if part in self._parts and part not in self._told]
        if not merged:
            return
        info = getattr(pipe, "sd_checkpoint_info", None)
        if info is None or not Path(info.filename).exists():
            self._told.update(merged)
            logger.warning("remora: %s", _DIFFERENT)
            return
        logger.info(
            "remora: the web UI had merged LoRA into the weights without a copy of them, so %s is loaded again",
            info.filename,
        )
        _forget_peft()  # the host would keep these names for the new model
        try:
            importlib.import_module("modules.sd_models").reload_model_weights(info=info, force=True)
        except Exception:
            self._told.update(merged)
            logger.exception("remora: %s", _DIFFERENT)

    def told(self, components: Mapping[str, nn.Module]) -> Sequence[str]:
        """Return a sentence if the present weights cannot be made as they were."""
        return [_DIFFERENT] if any(part in self._told for part in components.values()) else []


def changed_parts() -> tuple[str, ...]:
    """Return the names of the pipeline's parts that the built-in changes."""
    return tuple(getattr(module("modules.lora.networks"), "default_components", ()))


def take_off(pipe: Any, components: Mapping[str, nn.Module]) -> None:
    """Remove the built-in's LoRA from the model in its own way, and free the memory it keeps."""
    if module("modules.lora.lora_common") is None or importlib.import_module("modules.shared").state.interrupted:
        return  # interrupted, the built-in skips layers; the next generation calls this again
    if any(getattr(part, "peft_config", None) for part in components.values()):
        _take_off_peft(pipe)
    names = _applied()
    if names:
        _take_off_baked(pipe, components, names)
    _take_off_beside_weights(pipe)


def _applied() -> list[str]:
    """Return the names of the LoRA that the built-in has applied by its own record."""
    common = importlib.import_module("modules.lora.lora_common")
    networks = [*common.previously_loaded_networks, *common.loaded_networks]
    return list(dict.fromkeys(network.name for network in networks))


def _take_off_peft(pipe: Any) -> None:
    names = list(importlib.import_module("modules.lora.lora_diffusers").diffuser_loaded)
    importlib.import_module("modules.lora.extra_networks_lora").unload_diffusers()
    _forget_peft()
    importlib.import_module("modules.lora.lora_common").loaded_networks.clear()
    importlib.import_module("modules.sd_models").set_diffuser_offload(pipe, op="model")  # unwrapping removed the hooks
    pipe.loaded_loras = {}
    logger.info("remora: the built-in's %s taken off the model", ", ".join(names) or "LoRA")


def _forget_peft() -> None:
    diffusers = importlib.import_module("modules.lora.lora_diffusers")
    diffusers.diffuser_loaded.clear()
    diffusers.diffuser_scales.clear()


def _take_off_baked(pipe: Any, components: Mapping[str, nn.Module], names: list[str]) -> None:
    common: Any = importlib.import_module("modules.lora.lora_common")
    networks = importlib.import_module("modules.lora.networks")
    without_copy = any(getattr(layer, "network_weights_backup", None) is True for layer in _layers(components))
    common.loaded_networks.clear()
    networks.network_deactivate(include=list(components))  # subtracts; without `include` it omits a second transformer
    networks.network_activate()  # restores copies, and removes the factors beside quantized weights
    _restore_copies(components)
    common.previously_loaded_networks = []
    pipe.loaded_loras = {}
    importlib.import_module("modules.lora.lora_load").lora_cache.clear()
    for layer in _layers(components):
        for kept in _KEPT:
            vars(layer).pop(kept, None)
    if without_copy:
        logger.warning(
            "remora: the web UI had merged %s into the weights without a copy of them; it was subtracted again, which "
            "leaves rounding errors at least, until the checkpoint is loaded again",
            ", ".join(names),
        )
    else:
        logger.info("remora: the built-in's %s taken off the model", ", ".join(names))


def _restore_copies(components: Mapping[str, nn.Module]) -> None:
    """Use every copy: the built-in ignores them once it is set to merge without copies."""
    from torch import Tensor

    for part in components.values():
        for layer in part.modules():
            if any(isinstance(vars(layer).get(name), Tensor) for name in _WEIGHT_COPIES):
                apply = importlib.import_module("modules.lora.lora_apply")
                apply.network_apply_weights(layer, None, None, device=part.device)


def _take_off_beside_weights(pipe: Any) -> None:
    """Remove hooks of masks, the schedule that exchanges layers at a step, and modules in place of the model's own."""
    mask, stack, heads = (module(f"modules.lora.{name}") for name in ("lora_mask", "lora_stack", "network_pdd"))
    if mask is not None:
        mask.remove()
    if stack is not None:
        stack.clear()
    if heads is not None and heads.restore(pipe):
        importlib.import_module("modules.sd_models").set_diffuser_offload(pipe, op="model")  # it lacks the hooks
        logger.info("remora: the model's own output layers are back in place of the built-in's heads of each step")


def _layers(components: Mapping[str, nn.Module]) -> Iterator[nn.Module]:
    for part in components.values():
        yield from part.modules()
