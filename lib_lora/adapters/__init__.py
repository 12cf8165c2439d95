"""What the tensors of an adapter mean: one file per algorithm, or for the variants of one, found by `discover_classes`.

Other rooms import `base`, and from here which algorithm reads which parameters, and adapters around another adapter.
"""

from ._modifier import Modifier, PartOf, Refitted, part_of
from ._operation import Operation
from ._product import balanced
from ._recipe import Recipe, known_kinds, known_modifiers, recipe_of
from ._trainer import configured_alpha

__all__ = ["Modifier", "Operation", "PartOf", "Recipe", "Refitted", "balanced", "configured_alpha"]
__all__ += ["known_kinds", "known_modifiers", "part_of", "recipe_of"]
