"""The checks of a web UI's page, `python -m tests.real --browser`, on the embedded one: they pass, and find faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extension.ui.serving import Served
from tests.real import page
from tests.real.__main__ import main
from tests.real.checks import FailedError, Trial
from tests.real.client import WebUI

pytestmark = [pytest.mark.browser, pytest.mark.long]

LORAS = ("zorp", "night", "neon")


def test_the_checks_of_the_page_pass_and_find_faults(
    served: Served, browser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened_by = Measuring(browser, served.url, tmp_path)

    @contextmanager
    def running(url: str, pictures: Path | None) -> Iterator[page.Browser]:
        yield opened_by

    monkeypatch.setattr(page, "browser", running)
    names = [check.__name__ for check in page.CHECKS.values()]
    asked = [served.url, *(f"--lora={name}" for name in LORAS), "--steps=1", "--browser", f"--screenshots={tmp_path}"]
    status = main([*asked, *(f"--only={name}" for name in names)])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[1].split()[0] for line in lines] == ["yes"] * len(names)
    assert status == 0
    assert opened_by.sizes == ["64", "64", "1"]  # not those of a page that is just opened
    assert {"tab-light.png", "tab-dark.png", "generated.png"} == {path.name for path in tmp_path.iterdir()}

    monkeypatch.setattr(page, "_SMALLEST", 40)
    assert main([*asked, "--only=can_be_read"]) == 1
    assert "| **no**: with the light theme, these cannot be read: " in capsys.readouterr().out
    with pytest.raises(FailedError, match="the page hears keys that are pressed in the tab: Escape"):
        page.keys_stay(trial(served), Leaking(browser, served.url))
    noisy = page.Browser(browser, served.url)
    with noisy.tab() as opened:
        opened.evaluate("() => console.error('remora: something is wrong')")
    with pytest.raises(FailedError, match="the console has 1 errors: remora: something is wrong"):
        page.is_quiet(trial(served), noisy)


def trial(served: Served) -> Trial:
    return Trial(WebUI(served.url), LORAS, {})


class Measuring(page.Browser):
    """A browser that notes width, height and steps of the picture that is made in the page."""

    sizes: Sequence[str] = ()

    def picture(self, page: Any, name: str) -> None:
        super().picture(page, name)
        if name == "generated":
            fields = [page.locator(f"#{one} input[type=number]") for one in ("width", "height", "steps")]
            self.sizes = [one.input_value() for one in fields]


class Leaking(page.Browser):
    """A browser in whose page the tab lets keys out."""

    @contextmanager
    def tab(self, theme: str = "dark") -> Iterator[Any]:
        with super().tab(theme) as opened:
            again = "event => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: event.key}))"
            opened.evaluate(f"() => document.getElementById('remora-tab').addEventListener('keydown', {again}, true)")
            yield opened
