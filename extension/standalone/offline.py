"""What keeps libraries from fetching, reporting and warning on their own."""

from __future__ import annotations

import sys
from collections.abc import Mapping

OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",  # it warns of image processors, which are not used
    "DIFFUSERS_VERBOSITY": "error",  # it warns of quantization libraries, which are not used
    **({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"}),
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "DO_NOT_TRACK": "1",
}
"""Variables of the environment, set before these libraries are imported."""
