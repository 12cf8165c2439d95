from __future__ import annotations

from extension.hosts.txt2img import Progress, Result
from extension.standalone import shown


def test_what_comes_from_outside_is_escaped() -> None:
    result = Result((), 1, lora_reports=("<b>x</b>",), notes=("<i>y</i>",))
    html = shown.outcome(result) + shown.failure(ValueError("<u>z</u>"))
    assert "&lt;b&gt;x" in html
    assert "&lt;i&gt;y" in html
    assert "&lt;u&gt;z" in html
    assert "<b>" not in html


def test_what_was_made_for_other_models_stands_above_all() -> None:
    html = shown.outcome(Result((), 1, lora_reports=("x",), notes=("y",), warnings=("<made for XL",)))
    assert html.startswith('<div class="remora-line remora-warning">&lt;made for XL</div>')


def test_a_report_says_by_its_colour_whether_all_of_the_file_acted() -> None:
    html = shown.outcome(Result((), 1, lora_reports=("x", "y", "merged"), states=("applied", "partly")))
    kinds = [line.split('"')[0] for line in html.split("remora-line ")[1:]]
    assert kinds == ["remora-lora", "remora-partly", "remora-lora"]


def test_a_lora_with_a_warning_has_no_second_line() -> None:
    warnings = ("x: 3 of 4 layers are left out", "No layer was called")
    html = shown.outcome(Result((), 1, lora_reports=("x: 1 of 4 layers", "y: 4 of 4 layers"), warnings=warnings))
    texts = [line.split("</div>")[0].split(">")[1] for line in html.split("remora-line ")[1:]]
    assert texts == [*warnings, "y: 4 of 4 layers"]


def test_a_hint_to_the_stack_names_each_lora_once() -> None:
    assert "see a, &lt;b&gt; in the stack of LoRA." in shown.pointer(["a", "<b>", "a"])
    assert "see the stack of LoRA." in shown.pointer([])


def test_an_error_without_words_still_shows_something() -> None:
    assert "KeyError" in shown.failure(KeyError())


def test_the_bar_says_where_a_job_is() -> None:
    assert "Waiting" in shown.bar(Progress(waiting=True))
    assert "Starting" in shown.bar(Progress())
    half = shown.bar(Progress(5, 10))
    assert "Step 5 of 10" in half
    assert "width:50%" in half
    assert "Ready" in shown.idle()
