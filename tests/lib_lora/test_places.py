"""Names of layers, where two families do not agree on what one means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib_lora.files.components import DENOISER
from lib_lora.naming import index
from lib_lora.naming.architectures import _names
from lib_lora.naming.architectures.base import Alias, Architecture, Sign
from lib_lora.naming.index import LayerIndex

WIDTH = 8


def family(name: str, last: str, *, width: int) -> Architecture:
    """One that calls its last layer `final_layer.linear`, which is another in each family."""
    return Architecture(
        name=name,
        title=name,
        signs=(Sign(rf"^denoiser:proj_out:{width}$"),),
        aliases=(Alias(DENOISER, "final_layer.linear", last),),
    )


REEF = family("reef", "norm_out.linear_2", width=2 * WIDTH)
LAGOON = family("lagoon", "proj_out", width=WIDTH)


def model(width: int) -> nn.Module:
    """With both layers, so that its names alone leave the choice."""
    with torch.device("meta"):
        norm = nn.ModuleDict({"linear_2": nn.Linear(width, 3)})
        return nn.ModuleDict({"norm_out": norm, "proj_out": nn.Linear(width, 3)})


@pytest.fixture
def known(monkeypatch):
    """Return what makes some families the only known ones."""
    index._name_tables.cache_clear()
    yield lambda *families: monkeypatch.setattr(_names, "known_architectures", lambda: families)
    index._name_tables.cache_clear()


@pytest.mark.parametrize("families", [(REEF, LAGOON), (LAGOON, REEF)])
@pytest.mark.parametrize(("width", "last"), [(2 * WIDTH, "norm_out.linear_2"), (WIDTH, "proj_out")])
def test_a_name_means_what_the_models_own_family_says(width, last, families, known):
    """Whichever family is asked first, and whichever layer comes first."""
    known(*families)
    found = LayerIndex("transformer", model(width))
    assert found.find("final_layer.linear") == found.find(last)


@pytest.mark.parametrize("families", [(REEF, LAGOON), (LAGOON, REEF)])
def test_a_model_of_no_known_family_has_the_names_of_all(families, known):
    """What a merge of trees is called is better than nothing."""
    known(*families)
    assert LayerIndex("transformer", model(3 * WIDTH)).find("final_layer.linear") is not None


def test_names_of_two_families_do_not_make_each_other_longer_for_ever(known):
    """Together they give `embed.proj` the name `x.proj`, and that `embed.proj.1` again."""
    aliases = (Alias(DENOISER, "x.proj", "embed.proj"), Alias(DENOISER, "x.proj", "embed.proj.1"))
    with torch.device("meta"):
        one = nn.ModuleDict({"embed": nn.ModuleDict({"proj": nn.Linear(WIDTH, 3)})})
    known(*[Architecture(str(i), "", (), (alias,)) for i, alias in enumerate(aliases)])
    found = LayerIndex("transformer", one)
    assert found.find("x.proj") == found.find("embed.proj")
    assert len(found.dotted) < 10
