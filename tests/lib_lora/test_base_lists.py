"""Checkpoints as they are published: each of their weights is a layer of diffusers' model, under its published name."""

from __future__ import annotations

import json

import pytest

from lib_lora.naming.index import LayerIndex
from tests.conftest import TORCH
from tests.families import families

BASES = {listed: base for family in families().values() for listed, base in family.bases.items()}


@pytest.mark.parametrize("listed", [listed for listed, base in BASES.items() if base.components])
def test_weights_are_found_in_the_shape_they_have(real_keys, listed):
    """Also those of norms, which adapters of other kinds change; each in one component alone, fused or not."""
    base = BASES[listed]
    indexes = [LayerIndex(name, build()) for name, build in base.components.items()]
    shapes = json.loads((real_keys / f"invokeai_base_{listed}.json").read_text())
    weights = {key.removesuffix(".weight"): tuple(shape) for key, shape in shapes.items() if key.endswith(".weight")}
    missed = []
    for layer, shape in weights.items():
        found = [place.shape for index in indexes if (place := index.find(layer)) is not None]
        if found != [shape]:
            missed.append(layer)
    assert missed == list(base.absent)
    assert len(weights) > len(missed)


@pytest.mark.skipif(TORCH < (2, 3), reason="diffusers has no models for some lists yet")
def test_every_list_is_asserted_somewhere(real_keys):
    adapters = {f"invokeai_{listed}" for family in families().values() for listed in family.lists}
    bases = {path.stem for path in real_keys.glob("toolkit_base_*.json")}  # in test_architectures
    known = adapters | bases | {f"invokeai_base_{name}" for name in BASES}
    lists = {path.stem for path in real_keys.glob("*.json") if not path.stem.endswith(".meta")}
    assert lists - known == set()
