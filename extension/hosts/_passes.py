"""What a web UI of A1111's family does now for a picture, by its processing object."""

from __future__ import annotations

from typing import Any

from ..text.tag import Pass


def pass_of(p: Any, checkpoint: object) -> Pass:
    """Return the pass.

    A refiner takes the model's place in the middle of a pass, and the host notes that it did. Of the extensions that
    make parts of a picture again, ADetailer marks its own objects. Sources: AUTOMATIC1111/stable-diffusion-webui
    modules/sd_samplers_common.py, `apply_refiner`; Bing-su/adetailer scripts/!adetailer.py, `_ad_inner`.

    Args:
        p: the processing object.
        checkpoint: what the loaded model was loaded from, as the host knows it.
    """
    if getattr(p, "_ad_inner", False):
        return "detailer"
    refiner = getattr(p, "refiner_checkpoint_info", None)
    if refiner is not None and refiner == checkpoint and "Refiner" in getattr(p, "extra_generation_params", {}):
        return "refiner"
    return "hires" if getattr(p, "is_hr_pass", False) else "base"
