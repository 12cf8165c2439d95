"""The pictures in the web UI's output folders, and the LoRA that each of them used by its own parameters text.

`embedded` reads the text of one file, `uses` the LoRA of a text, `index` keeps both, `scan` fills it in the background.
"""

from .embedded import DamagedError, Embedded, comment_text, embedded_in, read_embedded
from .index import LoraKey, LoraRow, PictureFile, PictureIndex, Sought
from .scan import Outputs
from .uses import Use, Uses, read_uses, tags_of

__all__ = [
    "DamagedError",
    "Embedded",
    "LoraKey",
    "LoraRow",
    "Outputs",
    "PictureFile",
    "PictureIndex",
    "Sought",
    "Use",
    "Uses",
    "comment_text",
    "embedded_in",
    "read_embedded",
    "read_uses",
    "tags_of",
]
