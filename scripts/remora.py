"""Host entry: load this extension's packages under unique names, then register."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"lib_lora": "lib_lora", "remora": "extension"}  # import name: folder; `extension` is many extensions' name


def init_of(name: str) -> Path:
    return ROOT / PACKAGES[name] / "__init__.py"


def refuse_if_taken(name: str) -> None:
    """Raise ImportError where another file already goes by `name`."""
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin is None or Path(origin).resolve() != init_of(name):
            raise ImportError(
                f"Remora needs the module name {name!r}, already taken by {origin or 'a folder'}", name=name
            )


def load(name: str) -> ModuleType:
    """Import a package as `name` without touching sys.path; return the loaded one on UI reload."""
    if name in sys.modules:
        return sys.modules[name]
    init = init_of(name)
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {init}", name=name)
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
    except BaseException:
        for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return package


for package_name in PACKAGES:
    refuse_if_taken(package_name)
for package_name in PACKAGES:
    load(package_name)
if __name__ != "remora_packages":  # ComfyUI's entry needs the packages alone
    sys.modules["remora"].register()
