"""The settings that a distilled LoRA was made for, by its name: such a LoRA replaces most steps of a model.

Files carry no such settings, so that the names under which they are published tell. A LoRA *for* a distilled model, as
"Z-Image Turbo style", is none.

Sources, the authors' model cards: latent-consistency/lcm-lora-sdxl, ByteDance/SDXL-Lightning, ByteDance/Hyper-SD,
tianweiy/DMD2, h1t/TCD-SDXL-LoRA, wangfuyun/PCM_Weights, jasperai/flash-sdxl, alimama-creative/FLUX.1-Turbo-Alpha,
lightx2v/Qwen-Image-Lightning, lightx2v/Wan2.1-I2V-14B-480P-StepDistill-CfgDistill-Lightx2v, tianweiy/CausVid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_STEPS = re.compile(r"(?<!\d)(\d{1,2})(?:[ _-]?to[ _-]?\d+)?[ _-]?steps?(?![a-z])")
_MOST_STEPS = 24
_WITH_CFG = re.compile(r"(?<!no)(?<!small)[ _-]cfg[ _-]?lora|steps?[ _-]cfg(?!distill)|normal[ _-]?cfg")
_FAR = 2.0
"""How many times as many steps, or as few, are said to be far off."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """How many steps, and what else, a distilled LoRA was made for."""

    method: str
    steps: tuple[int, int]
    """The fewest and the most."""
    cfg: tuple[float, float]
    """Of the CFG scale of web UIs, where 1 is none."""
    sampler: str = ""
    scheduler: str = ""
    shift: float | None = None

    def warning(self, steps: int | None, cfg: float | None) -> str:
        """Return what is far from the settings it was made for, as one sentence without its subject; empty if nothing.

        Args:
            steps: of the picture; None if unknown.
            cfg: the CFG scale; None if unknown.
        """
        low, high = self.steps
        least, most = self.cfg
        found = []
        if steps is not None and not low / _FAR <= steps <= high * _FAR:
            found.append(f"{_span(low, high)} steps, not {steps}")
        if cfg is not None and not (least - 1 <= cfg <= most + 1):
            found.append(f"a CFG scale of {_span(least, most)}, not {cfg:g}")
        return f"was made for {' and for '.join(found)}" if found else ""


# the first that the name has; FLUX.1's guidance, 3.5, is the CFG scale of some web UIs
_KNOWN: Sequence[tuple[str, Distilled]] = (
    (r"hyper.*flux|flux.*hyper", Distilled("Hyper-SD", (8, 16), (1.0, 3.5), "Euler", "Simple")),
    (
        r"hyper[ _-]?(sd|xl)|hypersd|sd(xl|15)[ _-]hyper",
        Distilled("Hyper-SD", (1, 12), (1.0, 1.0), "DDIM", "SGM Uniform"),
    ),
    (r"dmd2", Distilled("DMD2", (4, 8), (1.0, 1.0), "LCM", "Simple")),
    (r"(?<![a-z])tcd(?![a-z])", Distilled("TCD", (4, 8), (1.0, 1.0), "TCD", "Simple")),
    (r"(?<![a-z])pcm(?![a-z])", Distilled("PCM", (2, 16), (1.0, 2.0), "DDIM", "SGM Uniform")),
    (r"causvid", Distilled("CausVid", (4, 9), (1.0, 1.0), "UniPC", "Simple", 8.0)),
    (r"light[ _-]?x2v|(step|cfg)[ _-]?distill", Distilled("LightX2V", (4, 4), (1.0, 1.0), "LCM", "Simple", 5.0)),
    (r"qwen.*lightning", Distilled("Lightning", (4, 8), (1.0, 1.0), "Euler", "Simple", 3.0)),
    (r"wan.*lightning", Distilled("Lightning", (4, 8), (1.0, 1.0), "Euler", "Simple", 5.0)),
    (
        r"(sd)?xl[ _-]?lightning|lightning.*(lora|steps?)",
        Distilled("Lightning", (2, 8), (1.0, 1.0), "Euler", "SGM Uniform"),
    ),
    (r"flux(\W?1)?[ _-]?turbo[ _-]?alpha", Distilled("Turbo Alpha", (8, 8), (1.0, 3.5), "Euler", "Simple")),
    (r"sd[ _-]?(xl|15)[ _-]?turbo[ _-]?lora", Distilled("Turbo", (1, 4), (1.0, 2.5), "LCM", "Simple")),
    (r"(?<![a-z])flash[ _-]?(sd|pixart)", Distilled("Flash Diffusion", (4, 4), (1.0, 1.0), "LCM", "Simple")),
    (r"(?<![a-z])lcm[ _-]?lora|lora[ _-]?lcm|^lcm([ _-]|$)", Distilled("LCM", (4, 8), (1.0, 2.0), "LCM", "Simple")),
)
_PATTERNS = tuple((re.compile(pattern), made_for) for pattern, made_for in _KNOWN)


def distilled(*names: str) -> Distilled | None:
    """Return the settings that a LoRA with one of these names was made for; None if it is no known distilled one.

    Args:
        names: of the file, and the one its trainer gave it.
    """
    for name in filter(None, (one.rpartition("/")[2].lower() for one in names)):
        for pattern, found in _PATTERNS:
            if pattern.search(name):
                counts = [int(count) for count in _STEPS.findall(name) if 0 < int(count) <= _MOST_STEPS]
                steps = (counts[0], counts[0]) if len(set(counts)) == 1 else found.steps
                guided = found.method in ("Hyper-SD", "PCM") and _WITH_CFG.search(name) is not None
                return replace(found, steps=steps, cfg=(3.0, 8.0) if guided else found.cfg)
    return None


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
