"""Another program that edits the presets of a web UI: reads one change a line from stdin, and answers each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from extension.kept.presets import PresetError, PresetsFile


def main(folder: Path) -> None:
    presets = PresetsFile(lambda: folder)
    for line in sys.stdin:
        name, text = json.loads(line)
        try:
            if text is None:
                presets.remove(name)
            else:
                presets.put(name, text)
            said = "kept"
        except (PresetError, OSError) as error:
            said = f"refused: {error}"
        sys.stdout.write(f"{json.dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
