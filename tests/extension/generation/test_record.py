"""The record of a session's pictures: bounded, and each picture has the LoRA of its own place in its batch."""

from __future__ import annotations

import io

from PIL import Image

from extension.generation.record import LoraUse, Record

A, B = LoraUse("a", None, "1", "applied"), LoraUse("b", None, "0.5", "applied")


def names(record: Record, seed: int | None = None) -> list[list[str]]:
    return [[lora.name for lora in one.loras] for one in record.pictures(seed=seed)]


def test_each_picture_has_the_lora_of_its_seed_and_a_batch_that_was_not_begun_has_none() -> None:
    record = Record()
    record.begin([1, 2], [(A,), (B,)])
    record.begin([3, 4], [(A, B)])
    record.made([(seed, None) for seed in (1, 2, 3, 4)])
    record.made([(1, None)])
    assert names(record) == [[], ["a", "b"], ["a", "b"], ["b"], ["a"]]
    assert names(record, seed=1) == [[], ["a"]]
    assert [one.number for one in record.pictures()] == [5, 4, 3, 2, 1]


def test_where_only_the_first_batch_tells_its_seeds_the_place_in_the_batch_counts() -> None:
    record = Record()
    record.begin([7, 8], [(A,), (B,)])
    record.made([(seed, None) for seed in (7, 8, 9, 10)])
    assert names(record) == [["b"], ["a"], ["b"], ["a"]]


def test_a_generation_that_made_nothing_leaves_nothing_to_the_next_one() -> None:
    record = Record()
    record.begin([1], [(A,)])
    record.made([])
    record.made([(1, None)])
    assert names(record) == [[]]


def test_what_the_model_shows_later_is_told_of_the_latest_batch() -> None:
    record = Record()
    record.begin([1], [(A,)])
    record.begin([2], [(A,)])
    record.tell([(LoraUse("a", None, "1", "none"),)])
    record.made([(1, None), (2, None)])
    assert [one.loras[0].state for one in record.pictures()] == ["none", "applied"]


def test_the_record_is_bounded_and_a_number_is_never_used_again() -> None:
    record = Record(most=3)
    record.made([(seed, None) for seed in range(5)])
    assert (record.count, [one.seed for one in record.pictures()]) == (5, [4, 3, 2])
    assert record.picture(2) is None
    found = record.picture(3)
    assert found is not None
    assert found.seed == 2


def test_a_thumbnail_is_small_and_keeps_the_shape() -> None:
    record = Record()
    record.made([(1, Image.new("RGBA", (4000, 1000), (200, 10, 10, 255))), (2, Image.new("L", (20, 10))), (3, "film")])
    film, small, wide = (one.thumbnail for one in record.pictures())
    assert film is None
    sizes = [Image.open(io.BytesIO(one)).size for one in (small, wide) if one]
    assert sizes == [(20, 10), (192, 48)]
