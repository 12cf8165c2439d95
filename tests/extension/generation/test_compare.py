"""What is compared, and how the pictures come."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence

import pytest
from PIL import Image

from extension.generation.compare import ComparisonRun, Plan, plan
from extension.hosts.txt2img import RequestError, Txt2Img

PROMPT = "a fox <lora:a:0.8> x, <lora:b:1>"


class Painter:
    """Makes pictures of one colour; waits where it is told to."""

    fraction = 0.5
    samplers: Sequence[str] = ("Euler a",)

    def __init__(self) -> None:
        self.asked: list[Txt2Img] = []
        self.gate = threading.Event()
        self.gate.set()
        self.interrupted = False

    def check(self, request: Txt2Img) -> None:
        """Anything will do."""

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image.Image | None:
        self.asked.append(request)
        self.gate.wait(30)
        if "<lora:broken" in request.prompt:
            raise RequestError("LoRA 'broken' cannot be used")
        picture = Image.new("RGB", (64, 32), (len(self.asked) ** 2 * 10, 0, 0))
        picture.info["parameters"] = request.prompt
        return None if cancelled() else picture

    def interrupt(self) -> None:
        self.interrupted = True
        self.gate.set()


def test_strengths_of_each() -> None:
    made = plan("strengths", PROMPT, ["a", "b"], [0, 0.5])
    assert (made.columns, made.rows) == (("0", "0.5"), ("a", "b"))
    assert made.prompts == (
        "a fox <lora:a:0> x, <lora:b:1>",
        "a fox <lora:a:0.5> x, <lora:b:1>",
        "a fox <lora:a:0.8> x, <lora:b:0>",
        "a fox <lora:a:0.8> x, <lora:b:0.5>",
    )


def test_two_against_each_other() -> None:
    made = plan("against", PROMPT, ["a", "b"], [0, 1])
    assert (made.columns, made.rows) == (("a 0", "a 1"), ("b 0", "b 1"))
    assert made.prompts[1] == "a fox <lora:a:1> x, <lora:b:0>"
    assert made.prompts[2] == "a fox <lora:a:0> x, <lora:b:1>"


def test_with_and_without() -> None:
    made = plan("without", PROMPT, ["a", "b"], [])
    assert made.columns == ("with all", "without a", "without b", "without any")
    assert made.prompts == (PROMPT, "a fox x, <lora:b:1>", "a fox <lora:a:0.8> x,", "a fox x,")
    assert plan("without", PROMPT, ["b"], []).columns == ("without b", "with b")


def test_every_combination() -> None:
    made = plan("combinations", PROMPT, ["a", "b"], [])
    assert (made.columns, made.rows) == (("none", "a"), ("none", "b"))
    assert made.prompts == ("a fox x,", "a fox <lora:a:0.8> x,", "a fox x, <lora:b:1>", PROMPT)
    assert len(set(plan("combinations", PROMPT + "<lora:c:1>", ["a", "b", "c"], []).prompts)) == 8


def test_blocks_regions_and_schedules_of_each() -> None:
    prompt = "x <lora:a:1:mask=left:feather=0.1> <lora:b:0.5>"
    regions = plan("regions", prompt, ["a", "b"], ["None", "right"])
    assert (regions.columns, regions.rows) == (("None", "right"), ("a", "b"))
    assert regions.prompts[0] == "x <lora:a:1> <lora:b:0.5>"
    assert regions.prompts[3] == "x <lora:a:1:mask=left:feather=0.1> <lora:b:0.5:mask=right>"
    assert plan("blocks", prompt, ["b"], ["OUTALL"]).prompts[0].endswith("<lora:b:0.5:lbw=OUTALL>")
    assert plan("schedules", prompt, ["b"], ["stop=10"]).prompts[0].endswith("<lora:b:0.5:stop=10>")
    for mode, values in (("blocks", [1.0]), ("blocks", []), ("regions", [" "])):
        with pytest.raises(RequestError, match="texts to compare"):
            plan(mode, prompt, ["b"], values)
    with pytest.raises(RequestError, match="strengths are numbers"):
        plan("strengths", prompt, ["b"], ["left"])


@pytest.mark.parametrize(
    ("mode", "names", "values", "told"),
    [
        ("nope", ["a"], [1], "mode must be one of"),
        ("strengths", [], [1], "choose 1 to 8 different LoRA"),
        ("strengths", ["a", "a"], [1], "choose 1 to 8 different LoRA"),
        ("strengths", ["x"], [1], "'x' is not in the prompt"),
        ("strengths", ["a"], [], "give 1 to 150 strengths"),
        ("strengths", ["a"], [float("nan")], "strengths are numbers"),
        ("strengths", ["a", "b"], list(range(100)), "this would be 200 pictures"),
        ("against", ["a"], [1], "two LoRA are needed"),
        ("sheet", ["a", "b"], ["x"], "choose 1 LoRA for a sheet"),
    ],
)
def test_what_cannot_be_compared(mode: str, names: list[str], values: list[float], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        plan(mode, PROMPT, names, values)


def run(painter: Painter, made: Plan) -> ComparisonRun:
    comparison = ComparisonRun(painter, Txt2Img("", seed=5), made)
    comparison.start()
    return comparison


def test_pictures_come_one_after_the_other_with_one_seed() -> None:
    painter = Painter()
    comparison = run(painter, plan("strengths", PROMPT, ["a", "b"], [0, 1]))
    comparison.join(30)
    told = comparison.to_json()
    assert (told["done"], told["running"], told["cancelled"], told["problem"]) == ([True] * 4, False, False, "")
    assert [request.prompt for request in painter.asked] == list(comparison.plan.prompts)
    assert {request.seed for request in painter.asked} == {5}
    content = comparison.picture(2)
    assert content is not None
    assert Image.open(io.BytesIO(content)).getpixel((0, 0)) == (90, 0, 0)
    grid = Image.open(io.BytesIO(comparison.grid())).convert("RGB")
    assert {(10, 0, 0), (40, 0, 0), (90, 0, 0), (160, 0, 0)} <= {colour for _, colour in grid.getcolors(1 << 20) or []}
    assert comparison.picture(4) is None
    assert comparison.picture(-2) is None


def test_a_sheet_has_the_pictures_without_and_with_a_lora_and_their_difference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = plan("sheet", "<lora:a:0.8>", ["a"], ["a fox", "a cat"])
    assert made.columns == ("without a", "with a", "difference")
    foxes = ("a fox <lora:a:0>", "a fox <lora:a:0.8>", None)
    assert made.prompts == (*foxes, "a cat <lora:a:0>", "a cat <lora:a:0.8>", None)
    painter = Painter()
    recipe = {"mode": "sheet", "values": ["a fox", "a cat"]}
    comparison = ComparisonRun(painter, Txt2Img("", seed=5), made, recipe)
    comparison.start()
    comparison.join(30)
    assert comparison.to_json()["done"] == [True] * 6
    assert [request.seed for request in painter.asked] == [5, 5, 6, 6], "a seed for each row"
    difference, grid = comparison.picture(5), Image.open(io.BytesIO(comparison.grid()))
    assert difference is not None
    assert Image.open(io.BytesIO(difference)).getpixel((0, 0)) == (160 - 90, 0, 0)
    assert grid.info["parameters"] == "a fox <lora:a:0.8>"
    assert json.loads(grid.info["Remora comparison"]) == recipe
    broken = run(Painter(), plan("sheet", "<lora:broken:1>", ["broken"], ["a fox"]))
    broken.join(30)
    assert (broken.to_json()["done"], broken.to_json()["problem"]) == ([False] * 3, "LoRA 'broken' cannot be used")


def test_a_comparison_grows_by_rows_while_it_runs_and_after_it_ended() -> None:
    painter = Painter()
    painter.gate.clear()
    first = plan("alone", PROMPT, ["a", "b"], [0.5, 1])
    assert (first.columns, first.rows) == (("0.5", "1"), ("a", "b"))
    assert first.prompts[1:3] == ("a fox <lora:a:1> x,", "a fox x, <lora:b:0.5>")
    comparison = run(painter, first)
    comparison.grow(plan("alone", "a fox <lora:b:1> <lora:z:1> <lora:c:1>", ["c"], [0.5, 1]))
    painter.gate.set()
    comparison.join(30)
    assert comparison.to_json()["done"] == [True] * 6
    comparison.grow(plan("alone", "a fox <lora:d:1>", ["d"], [0.5, 1]))
    comparison.join(30)
    told = comparison.to_json()
    assert (told["rows"], told["done"], told["running"]) == (["a", "b", "c", "d"], [True] * 8, False)
    assert [one.prompt for one in painter.asked] == told["prompts"]
    assert told["prompts"][4] == "a fox <lora:z:1> <lora:c:0.5>", "without the LoRA of the other rows"
    assert {one.seed for one in painter.asked} == {5}
    for more in (plan("alone", PROMPT, ["a"], [0.5, 1]), plan("alone", "<lora:e:1>", ["e"], [1])):
        with pytest.raises(RequestError, match="only new rows with the same columns"):
            comparison.grow(more)
    with pytest.raises(RequestError, match="no more than 150 pictures"):
        comparison.grow(Plan(("0.5", "1"), tuple(map(str, range(72))), ("",) * 144))
    assert comparison.to_json() == told


def test_labels_of_the_grid_show_the_ends_of_long_names() -> None:
    def grid(column: str, row: str) -> bytes:
        comparison = run(Painter(), Plan((column,), (row,), (PROMPT,)))
        comparison.join(30)
        return comparison.grid()

    name = "incredibly_detailed_" * 10
    assert len({grid(f"{name}v1", ""), grid(f"{name}v2", "")}) == 2
    assert len({grid("", f"{name}v1"), grid("", f"{name}v2")}) == 2


def test_a_cancelled_one_keeps_what_was_made() -> None:
    painter = Painter()
    painter.gate.clear()
    comparison = run(painter, plan("strengths", PROMPT, ["a"], [0, 0.5, 1]))
    comparison.cancel()
    comparison.join(30)
    assert painter.interrupted
    told = comparison.to_json()
    assert (told["running"], told["cancelled"], sum(told["done"])) == (False, True, 0)
    assert len(painter.asked) <= 1
    Image.open(io.BytesIO(comparison.grid()))  # white


def test_one_that_fails_says_why_and_keeps_what_was_made(caplog: pytest.LogCaptureFixture) -> None:
    comparison = run(Painter(), Plan(("x", "y"), ("",), (PROMPT, "<lora:broken:1>")))
    comparison.join(30)
    told = comparison.to_json()
    assert (told["done"], told["problem"]) == ([True, False], "LoRA 'broken' cannot be used")
