"""How adapter files spell their keys: one file per spelling, found by `registry.discover`.

`base` says what a spelling has. What trainers write beside the tensors is read here, too: `PeftConfig`, `base_model`.
"""

from ._dotted import layers_above as layers_above
from ._header import TrainedLayer as TrainedLayer
from ._peft_patterns import Table as Table
from ._peft_patterns import read_pattern as read_pattern
from ._trainer_config import PeftConfig as PeftConfig
from ._trainer_config import base_model as base_model
