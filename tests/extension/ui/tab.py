"""The tab as a user works with it, in whatever page it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONG = 60_000  # milliseconds
SHADOW = "document.getElementById('remora-tab').shadowRoot"
"""Where the tab is, to JavaScript; selectors of Playwright find it by themselves."""


@dataclass(frozen=True)
class Tab:
    """A page with the tab, which has come up."""

    page: Any
    prompt_selector: str = "#prompt textarea"

    @property
    def root(self) -> Any:
        return self.page.locator("#remora-tab")

    @property
    def prompt(self) -> str:
        return str(self.page.input_value(self.prompt_selector))

    def write(self, prompt: str) -> None:
        """Write into the prompt box, as it is in the page, and wait until the tab knows."""
        box = self.page.locator(self.prompt_selector)
        typed = "box.value = text; box.dispatchEvent(new Event('input', {bubbles: true}))"
        box.evaluate(f"(box, text) => {{ {typed} }}", prompt)
        self.page.wait_for_function("text => window.remoraTab.state.prompt === text", arg=prompt, timeout=LONG)

    def ready(self) -> Tab:
        """Wait until the library is there."""
        there = "() => window.remoraTab?.state.loaded && window.remoraTab.state.server"
        self.page.wait_for_function(there, timeout=LONG)
        return self

    def pane(self, name: str) -> None:
        """Show a pane where only one fits."""
        button = self.root.get_by_role("group", name="What is shown").get_by_role("button", name=name)
        if button.count() and button.get_attribute("aria-pressed") != "true":
            button.click()

    def insert(self, *names: str) -> None:
        self.pane("Library")
        for name in names:
            self.root.get_by_role("button", name=f"Insert {name} into the prompt").click()

    def row(self, name: str, within: str = "Stack") -> Any:
        self.pane("Stack")
        return self.root.get_by_role("list", name=within, exact=True).locator("> li").filter(has_text=name)

    def more(self, name: str, section: str, within: str = "Stack") -> Any:
        """Show one section of a row's settings, and return the row."""
        row = self.row(name, within)
        button = row.get_by_role("button", name=f"More: schedule, region, passes, blocks of {name}")
        if button.get_attribute("aria-expanded") != "true":
            button.click()
        row.get_by_role("group", name=f"Settings of {name}").get_by_role("button", name=section).click()
        return row

    def strength(self, name: str, half: str = "Strength") -> Any:
        self.pane("Stack")
        what = f"{half} of {name}" if half == "Strength" else f"{half} strength of {name}"
        return self.root.get_by_role("spinbutton", name=what, exact=True)

    def button(self, name: str) -> Any:
        return self.root.get_by_role("button", name=name)

    def saved(self) -> None:
        """Wait until the server has what the page shows."""
        self.page.wait_for_timeout(300)  # for a change that the server is asked about first
        self.page.wait_for_function(
            "window.remoraTab.kept.pending === null && !window.remoraTab.kept.unsaved", timeout=LONG
        )
        self.root.get_by_text("“Always on” is saved.").wait_for(timeout=LONG)

    def prompt_is(self, text: str) -> None:
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector).value === text",
            arg=[self.prompt_selector, text],
            timeout=LONG,
        )
