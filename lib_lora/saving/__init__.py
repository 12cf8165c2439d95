"""Stacks and files of LoRA as one new file.

`save_stack` writes what an engine applies, `save_again` a saved file once more, `convert_file` another form of one
file, and `combine_files` several files as one. `bake_stack` writes a model with a stack in its weights, and
`extract_lora` the difference of two models. The core imports nothing of this room.
"""

from .again import save_again as save_again
from .baked import bake_stack as bake_stack
from .combination import combine_files as combine_files
from .combination import save_files as save_files
from .conversion import convert_file as convert_file
from .extraction import extract_lora as extract_lora
from .inputs import InputSamples as InputSamples
from .merging import Combination as Combination
from .merging import How as How
from .new_file import DTYPES as DTYPES
from .new_file import SavedFile as SavedFile
from .new_file import SavedLayer as SavedLayer
from .stack_file import SaveOptions as SaveOptions
from .stack_file import choices_of as choices_of
from .stack_file import save_stack as save_stack
