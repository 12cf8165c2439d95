"""The LoRA files a user has: found, read by their headers, known again at the next start, shown and noted on."""

from .facts import Facts, Structure, Training, read_training
from .index import Index, Row
from .notes import EDITABLE, Notes, NotesError, notes_lock, read_notes, write_notes
from .scan import Progress, Scanner, notes_of
from .walk import READABLE, CatalogFile, Choice, Found, beside, walk

__all__ = [
    "EDITABLE",
    "READABLE",
    "CatalogFile",
    "Choice",
    "Facts",
    "Found",
    "Index",
    "Notes",
    "NotesError",
    "Progress",
    "Row",
    "Scanner",
    "Structure",
    "Training",
    "beside",
    "notes_lock",
    "notes_of",
    "read_notes",
    "read_training",
    "walk",
    "write_notes",
]
