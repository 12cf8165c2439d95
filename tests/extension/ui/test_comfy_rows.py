"""The rows of Remora Stack in a page that has what they use of ComfyUI's, and no more.

Source: src/scripts/domWidget.ts and src/scripts/app.ts of Comfy-Org/ComfyUI_frontend.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser
JAVASCRIPT = Path(__file__).resolve().parents[3] / "javascript"
ADDRESS = "http://comfy.test"
PAGE = """<!doctype html><html lang="en"><title>ComfyUI</title><main></main><script type="module">
const text = {name: "rows", value: "<lora:style:0.8>", options: {}};
window.node = {
    comfyClass: "RemoraStack",
    widgets: [text],
    setDirtyCanvas() {},
    addDOMWidget(name, type, element, options) {
        document.querySelector("main").append(element);
        this.widgets.push({name, options});
        return this.widgets[1];
    },
};
await import("/extensions/remora/remora.js");
window.extension.nodeCreated(window.node);
</script></html>"""
SCRIPTS = {
    "app": """export const app = {
    registerExtension: (one) => { window.extension = one; },
    extensionManager: {setting: {get: () => window.locale ?? "en"}},
};""",
    "api": "export const api = {fetchApi: (path) => fetch(`/api${path}`)};",
}


PRESS = """async button => {
    const page = button.getRootNode();
    button.focus();
    button.click();
    await null;
    return page.activeElement?.ariaLabel;
}"""
"""Presses a button, and returns the label of what has the focus before the browser does anything else."""
LISTED = {"loras": ["style.safetensors", "people/anna.v2.safetensors"]}


def answer(route: Any) -> None:
    """Answer as ComfyUI does, which has the folder of scripts of each pack and the route of the tab's modules."""
    path = route.request.url.removeprefix(ADDRESS)
    if path == "/":
        route.fulfill(body=PAGE, content_type="text/html")
    elif path == "/api/models/loras":
        route.fulfill(json=LISTED["loras"])
    elif path.startswith("/scripts/"):
        route.fulfill(body=SCRIPTS[Path(path).stem], content_type="text/javascript")
    else:
        route.fulfill(path=JAVASCRIPT / path.replace("/extensions/remora/", "comfy/").lstrip("/"))


def test_rows_are_the_text_of_the_node(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page, errors = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.route("**/*", answer)
    page.goto(f"{ADDRESS}/")
    rows = page.get_by_label("Stack of LoRA")
    rows.wait_for()

    def lines() -> list[str]:
        return str(page.evaluate("window.node.widgets[0].value")).split("\n")

    field = page.get_by_placeholder("Add a LoRA")
    field.fill("ANN")
    assert rows.locator("option").evaluate_all("all => all.map(one => one.value)") == ["people/anna.v2"]
    field.fill("people/anna.v2")
    field.press("Enter")
    assert lines() == ["<lora:style:0.8>", "<lora:people/anna.v2:1>"]
    page.get_by_label("Move style; arrow keys").press("ArrowDown")
    page.get_by_label("style on").uncheck()
    assert lines() == ["<lora:people/anna.v2:1>", "# <lora:style:0.8>"]
    page.get_by_role("spinbutton", name="Strength of people/anna.v2").fill("0.5")
    page.get_by_label("blocks of people/anna.v2").click()
    page.get_by_role("button", name="Fade in").click()
    page.get_by_role("button", name="Blocks", exact=True).click()
    page.get_by_label("weights of the blocks").press_sequentially("OUTALL>")
    assert lines()[0] == "<lora:people/anna.v2:0.5:0@0,0.5@1:lbw=OUTALL>"
    assert faults(page, "main") == []
    assert page.get_by_label("Remove people/anna.v2").evaluate(PRESS) == "Remove style", "it has the next key"
    assert lines() == ["# <lora:style:0.8>"]
    page.evaluate("node.widgets[0].value = '<lora:stile:1>'; node.onConfigure()")  # as a workflow is opened
    page.get_by_role("button", name="style in place of").click()
    assert lines() == ["<lora:style:1>"]
    page.evaluate("node.widgets[0].value = '<lora:new:1>'; node.onConfigure()")
    problem = rows.get_by_text("No LoRA file has this name.")
    problem.wait_for()
    monkeypatch.setitem(LISTED, "loras", [*LISTED["loras"], "new.safetensors"])
    page.evaluate("extension.refreshComboInNodes()")  # as the key R does
    problem.wait_for(state="detached")
    saved = page.evaluate("[node.widgets[0].hidden, node.widgets[1].serialize, node.widgets[1].options.serialize]")
    assert saved == [True, False, False]
    page.add_init_script("window.locale = 'ja'")
    page.goto(f"{ADDRESS}/")
    page.get_by_placeholder("LoRAを追加").wait_for()
    page.close()
    assert not errors, json.dumps(errors)
