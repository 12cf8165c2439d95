"""Images whose strengths are multiples of each other's are found, and no others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lib_lora.strengths.proportion import proportions

NUMBERS = st.sampled_from([0.0, 0.1, 0.3, -0.3, 0.9, 1.0, -1.0, 1e-7, 2.0, 30.0])


@st.composite
def sheets(draw: st.DrawFn) -> list[list[float]]:
    """Strengths of some images, many of them multiples of others."""
    cells = draw(st.integers(1, 4))
    shapes = draw(st.lists(st.lists(NUMBERS, min_size=cells, max_size=cells), min_size=1, max_size=3))
    chosen = draw(st.lists(st.tuples(st.sampled_from(shapes), NUMBERS), min_size=1, max_size=6))
    return [[factor * one for one in shape] for shape, factor in chosen]


def parallel(a: list[float], b: list[float]) -> bool:
    """Whether one is a multiple of the other, and either both are nothing or neither is."""
    if any(a) != any(b):
        return False
    size = max(map(abs, a)) * max(map(abs, b))
    return all(abs(a[i] * b[j] - a[j] * b[i]) <= 1e-13 * size for i in range(len(a)) for j in range(len(a)))


@given(sheets())
def test_all_images_are_there_once_scaled_down_from_the_first(sheet: list[list[float]]) -> None:
    images, cells = range(len(sheet)), range(len(sheet[0]))
    made = proportions(sheet, [*images, 0], [*cells, *cells])
    assert sorted(image for one in made for image in one.images) == list(images)
    for one in made:
        first = sheet[one.images[0]]
        assert one.acting == {cell for cell in cells if first[cell]}
        assert one.ratios[0] == 1
        assert all(abs(a) >= abs(b) for a, b in zip(one.ratios, one.ratios[1:], strict=False))
        for image, ratio in zip(one.images, one.ratios, strict=True):
            for own, of_first in zip(sheet[image], first, strict=True):
                assert abs(own - ratio * of_first) <= 1e-13 * max(map(abs, first))


@given(sheets())
def test_two_images_are_together_if_and_only_if_they_are_parallel(sheet: list[list[float]]) -> None:
    made = proportions(sheet, range(len(sheet)), range(len(sheet[0])))
    where = {image: i for i, one in enumerate(made) for image in one.images}
    for a, own in enumerate(sheet):
        for b, other in enumerate(sheet):
            assert (where[a] == where[b]) == parallel(own, other)


def test_only_the_cells_in_question_count() -> None:
    sheet = [[1.0, 0.5, 0.0], [0.5, 0.25, 7.0]]
    assert [one.images for one in proportions(sheet, (0, 1), (0, 1))] == [(0, 1)]
    assert [one.images for one in proportions(sheet, (0, 1), (0, 1, 2))] == [(0,), (1,)]
