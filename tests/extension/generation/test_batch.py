"""The LoRAs of several images as one stack."""

from __future__ import annotations

from pathlib import Path

from extension.generation.batch import Wish, entry_of, first, gather, text_keys
from extension.library.catalog import CatalogFile
from extension.text.prompt import parse
from extension.text.tag import Place
from lib_lora import PerImage, Stack

TEXTS = ("text_encoder",)


def image(prompt: str) -> list[Wish]:
    return [
        Wish(tag.name, tag.place, file, tag.rank, tag.multiplier, tag.alpha, tag.scale)
        for tag in parse(prompt).tags
        for file in [CatalogFile(Path(f"{tag.name}.safetensors"), tag.name, 1, 1)]
    ]


def stack(*prompts: str, in_order: bool = False) -> tuple[Stack, list[CatalogFile]]:
    entries = gather([image(prompt) for prompt in prompts], in_order=in_order)
    return Stack([entry_of(one, len(prompts)) for one in entries]), [first(one).file for one in entries]


def strengths(made: Stack, component: str = "unet") -> list[tuple[str, list[float]]]:
    return [(entry.name, [entry.strength(component, i) for i in range(made.images)]) for entry in made]


def test_images_that_agree_are_one() -> None:
    made, _ = stack("<lora:a:1><lora:b:0.5>", "<lora:a:1><lora:b:0.5>")
    assert made.images == 1
    assert strengths(made) == [("a", [1.0]), ("b", [0.5])]
    assert not any(isinstance(entry.multiplier, PerImage) for entry in made)


def test_each_image_has_its_own() -> None:
    made, _ = stack("<lora:a:1><lora:b:0.5>", "", "<lora:b:1:2>")
    assert strengths(made) == [("a", [1.0, 0.0, 0.0]), ("b", [0.5, 0.0, 2.0])]
    assert strengths(made, "text_encoder") == [("a", [1.0, 0.0, 0.0]), ("b", [0.5, 0.0, 1.0])]


def test_images_with_unlike_scales_have_entries_of_their_own() -> None:
    made, _ = stack("<lora:a:1:alpha=8>", "<lora:a:1:scale=0.5>", "<lora:a:0.5:alpha=8>")
    assert [(entry.alpha, entry.scale) for entry in made] == [(8.0, None), (None, 0.5)]
    assert strengths(made) == [("a", [1.0, 0.0, 0.5]), ("a", [0.0, 1.0, 0.0])]


def test_one_that_an_image_has_twice_acts_twice() -> None:
    made, _ = stack("<lora:a:1><lora:a:0.5>", "<lora:a:0.2>")
    assert strengths(made) == [("a", [1.0, 0.2]), ("a", [0.5, 0.0])]


def test_ranks_are_not_shared() -> None:
    made, _ = stack("<lora:a:1:1:4>", "<lora:a:1>")
    assert [(entry.rank, entry.strength("unet", 0)) for entry in made] == [(4, 1.0), (None, 0.0)]


def test_where_order_matters_images_that_disagree_share_nothing() -> None:
    made, _ = stack("<lora:a:1><lora:b:1>", "<lora:b:1><lora:a:1>", in_order=True)
    assert strengths(made) == [("a", [1.0, 0.0]), ("b", [1.0, 0.0]), ("b", [0.0, 1.0]), ("a", [0.0, 1.0])]
    made, _ = stack("<lora:a:1><lora:b:1>", "<lora:a:0><lora:b:2>", in_order=True)
    assert strengths(made) == [("a", [1.0, 0.0]), ("b", [1.0, 2.0])]


def test_text_keys_are_equal_where_the_text_encoders_output_is() -> None:
    made, files = stack("<lora:a:1:0.2>", "<lora:a:1:0.9>", "<lora:a:0:1>", "", "<lora:a:1:0.2><lora:u:0:1>")
    first, second, third, none, fifth = text_keys(made, files, TEXTS)
    assert first == second == fifth
    assert third == none == ()
    assert first != none
    assert text_keys(*stack("<lora:a:1>"), TEXTS) != text_keys(*stack("<lora:a:0.9>"), TEXTS)
    assert text_keys(*stack("<lora:a:1>"), ()) == ((),)


def test_a_file_that_changed_on_disk_is_another_one() -> None:
    old = CatalogFile(Path("a.safetensors"), "a", 1, 1)
    new = CatalogFile(Path("a.safetensors"), "a", 1, 2)
    keys = [
        text_keys(Stack([entry_of({0: Wish("a", Place("prompt", 0, "a"), file, None, 1.0)}, 1)]), [file], TEXTS)
        for file in (old, new)
    ]
    assert keys[0] != keys[1]
