"""reForge: the first Forge on ComfyUI's later model management, which merges low-VRAM layers at each of their calls.

Several checkpoints may be loaded, each with its own state of the built-in's LoRA. Switching between loaded ones calls
no callback.

Source: Panchovix/stable-diffusion-webui-reForge ldm_patched/, modules_forge/ and extensions-builtin/Lora.
"""

from __future__ import annotations

from typing import ClassVar

from ._forge import defines
from .forge_classic import ForgeClassicHost


class ReForgeHost(ForgeClassicHost):
    """A Forge on `ldm_patched` whose layers may have functions that change their weight at each call."""

    name: ClassVar[str] = "reforge"

    def is_current(self) -> bool:
        return self.has_ldm_patched() and defines("ldm_patched.modules.ops", "CastWeightBiasOp")


REFORGE = ReForgeHost()
