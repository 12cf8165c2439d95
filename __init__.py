"""ComfyUI's entry. Python imports it nowhere else: other web UIs run scripts/remora.py."""

import importlib.util
import sys
from pathlib import Path

if "comfy.sd" in sys.modules:
    # ComfyUI imports this file under a path for its name, so a relative import does not reach the packages
    spec = importlib.util.spec_from_file_location("remora_packages", Path(__file__).parent / "scripts" / "remora.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    comfy_entrypoint = importlib.import_module("remora.comfy").comfy_entrypoint
    WEB_DIRECTORY = "javascript/comfy"
