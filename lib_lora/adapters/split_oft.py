"""kohya's OFT of a fused layer of Flux: a rotation for each of q, k, v (and the MLP), as `oft_blocks.0`, `.1`, ….

The slices have the widths that their blocks make up, one after the other; each Q is bound by alpha times its own width.
Source: kohya networks/oft_flux.py, the forward. (Its merge joins the slices along the wrong axis.)
"""

from ._rotation import OutputRotation, check_blocks, number
from .base import Adapter, Origin, Params, Shapes, Site, Tensors
from .diag_oft import bound_of, skew_turn


class SplitOFT(OutputRotation):
    """Block rotations of slices of the outputs."""

    name = "split_oft"
    params = Params(frozenset({"oft_blocks.0"}), frozenset({"alpha"}))

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        names = shapes.keys() - cls.params.optional
        return len(names) > 0 and names == set(_names(len(names))) and all(len(shapes[name]) == 3 for name in names)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        names = _names(sum(name.startswith("oft_blocks.") for name in params))  # a modifier's are there, too
        slices = [params[name] for name in names]
        widths = [blocks.shape[0] * blocks.shape[1] for blocks in slices]
        if sum(widths) != site.shape[0]:
            raise ValueError(f"want oft_blocks.N of {site.shape[0]} outputs together, got {widths}")
        alpha = number(params, "alpha")
        for name, blocks, width in zip(names, slices, widths, strict=True):
            check_blocks(blocks, width, name)
        bounds = [bound_of(blocks, alpha, width, always=True) for blocks, width in zip(slices, widths, strict=True)]
        return cls(tuple(map(skew_turn, slices, bounds)), None)


def _names(count: int) -> list[str]:
    return [f"oft_blocks.{i}" for i in range(count)]
