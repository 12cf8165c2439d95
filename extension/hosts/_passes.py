"""The present pass of a picture in a web UI of A1111's family."""

from __future__ import annotations

from typing import Any

from ..text.tag import Pass


def pass_of(p: Any, checkpoint: object) -> Pass:
    """Return the pass of a processing object.

    A refiner replaces the model within a pass, and the host records that. Of the extensions that repaint parts of a
    picture, ADetailer marks its own objects. Sources: AUTOMATIC1111/stable-diffusion-webui
    modules/sd_samplers_common.py, `apply_refiner`; Bing-su/adetailer scripts/!adetailer.py, `_ad_inner`.

    Args:
        p: the processing object.
        checkpoint: of the loaded model, as the host knows it.
    """
    if getattr(p, "_ad_inner", False):
        return "detailer"
    refiner = getattr(p, "refiner_checkpoint_info", None)
    if refiner is not None and refiner == checkpoint and "Refiner" in getattr(p, "extra_generation_params", {}):
        return "refiner"
    return "hires" if getattr(p, "is_hr_pass", False) else "base"
