"""The list of ten thousand LoRA files: the first scan, a later start, memory, and search and scrolling in a browser.

There is no peer: the goals are times that a user does not notice. The files are in folders of up to fifty. Their
headers are as kohya's trainer writes them for Stable Diffusion 1.5, XL and FLUX.1 in six ranks, with ten kilobytes of
metadata each, and holes in place of weights. A third have notes beside them, a fifth a picture.

The scan and the later start each run in a new process. Memory is what the scan adds to that process. Files with the
same keys, shapes and places are parsed once: these files have 18 different structures, and a real collection has more.

With `--pictures`, the program also measures which picture used which LoRA: small PNG files in 200 folders, with the
parameters text of A1111 and one to three of 500 LoRA. These figures are seconds of the processor.

In the browser, the program measures the time from a key event to the frame that shows the result, the median of 15. It
also counts frames in which a part of the list was empty, in 240 jumps and steps. The longest tasks are the times
of the tab's own code in frames that took over 50 ms; 0 means that there was no such frame.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from _common import ROOT, Record, parse, parser, report, table
from _models import SD15, TINY
from diffusers import UNet2DConditionModel
from load import layers as flux_layers
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import device, nn

SDXL = {
    "sample_size": 128,
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
}
RANKS = (4, 8, 16, 32, 64, 128)
FILES = 10_000
WORDS = (
    *("fur", "coat", "ink", "light", "film", "neon", "rain", "stone"),
    *("paper", "smoke", "glass", "moss", "copper", "velvet", "fog", "ember"),
)
GOALS = {
    "first scan": (60.0, "s"),
    "list while scanning": (1.0, "s"),
    "later start to a full list": (1.0, "s"),
    "memory of the server": (200.0, "MB"),
    "a keystroke of the search": (0.050, "s"),
    "blank frames while scrolling": (0.0, ""),
    "first paint": (1.0, "s"),
    "code of the tab": (500.0, "kB"),
    "longest task as the page opens": (0.050, "s"),
    "longest task in use": (0.050, "s"),
    "first reading of the pictures": (60.0, "s"),
    "another look at the pictures": (1.0, "s"),
    "a page of a LoRA's pictures": (0.1, "s"),
    "the count of each LoRA's pictures": (1.0, "s"),
}
HEADERS = ("what", "measured", "goal", "")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    made = parser(__doc__, rounds=1)
    made.add_argument("--files", type=int, default=FILES, help="how many")
    made.add_argument("--pictures", type=int, default=0, help="how many to read in an output folder")
    made.add_argument("--no-browser", action="store_true", help="leave out search and scrolling")
    options = parse(made, arguments)
    files = 20 if options.tiny else options.files
    with TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "loras", files, options.tiny)
        measured: dict[str, float] = {}
        for part in (first_scan, later_start):  # each in a process of its own, whose memory is nobody else's
            measured |= in_child(part, folder)
        if pictures := 50 if options.tiny else options.pictures:
            generate_pictures(folder / "pictures", pictures)
            measured |= in_child(read_pictures, folder)
        browser = next((found for one in CHROMIUM if (found := shutil.which(one))), None)
        if browser is not None and not options.no_browser and not options.tiny:
            measured |= in_browser(folder, browser)
    rows: list[Record] = [row(what, value) for what, value in measured.items()]
    report("library", options, table(HEADERS, [cells(one, options) for one in rows]), rows)
    return 0


def row(what: str, value: float) -> Record:
    """One figure and whether it is as good as wished."""
    goal, unit = GOALS[what]
    return {"what": what, "value": value, "unit": unit, "goal": goal, "goal_met": value <= goal}


def cells(one: Record, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    said = "-" if options.tiny else "met" if one["goal_met"] else "missed"
    return [one["what"], f"{one['value']:.3g} {one['unit']}".strip(), f"{one['goal']:g} {one['unit']}".strip(), said]


# --- the files ---


def generate(folder: Path, count: int, tiny: bool) -> None:
    """Write files in folders of up to fifty, a third with notes, a fifth with a picture."""
    chance = random.Random(0)
    families = {"sd15": unet_layers(TINY if tiny else SD15)}
    if not tiny:
        flux = {name.replace(".", "_"): size for name, size in flux_layers(19, 38).items()}
        families |= {"sdxl": unet_layers(SDXL), "flux": flux}
    picture = Image.effect_noise((512, 512), 80).convert("RGB")
    for number in range(count):
        family = chance.choice([*families])
        words = chance.sample(WORDS, 3)
        path = folder / family / f"{number // 50:03d}" / f"{'_'.join(words)}_{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, families[family], chance.choice(RANKS), metadata(words, family, chance))
        if number % 3 == 0:
            notes = {"activation text": words[0], "notes": f"number {number}", "remora": {"rating": number % 6}}
            path.with_suffix(".json").write_text(json.dumps(notes))
        if number % 5 == 0:
            picture.resize((256, 256)).save(path.with_suffix(".jpg"))


def unet_layers(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a UNet's attention: kohya's name -> (out, in)."""
    with device("meta"):
        unet = UNet2DConditionModel(**config)
    return {
        name.replace(".", "_"): (module.out_features, module.in_features)
        for name, module in unet.named_modules()
        if isinstance(module, nn.Linear) and "attentions" in name
    }


def metadata(words: Sequence[str], family: str, chance: random.Random) -> dict[str, str]:
    """Return ten kilobytes of metadata as kohya's trainer writes them."""
    tags = {words[0]: 40} | {f"{chance.choice(WORDS)} {n}": chance.randint(1, 39) for n in range(250)}
    return {
        "ss_output_name": "-".join(words),
        "ss_base_model_version": {"sd15": "sd_v1", "sdxl": "sdxl_base_v1-0", "flux": "flux1"}[family],
        "ss_sd_model_name": "base.safetensors",
        "ss_tag_frequency": json.dumps({f"10_{words[0]}": tags}),
        "ss_dataset_dirs": json.dumps({f"10_{words[0]}": {"n_repeats": 10, "img_count": 40}}),
        "ss_network_module": "networks.lora",
        "ss_learning_rate": "0.0001",
    }


def write(path: Path, sizes: Mapping[str, tuple[int, int]], rank: int, said: Mapping[str, str]) -> None:
    """Write a header, and a hole where the weights would be."""
    header: dict[str, Any] = {"__metadata__": dict(said)}
    place = 0
    for name, (out, inside) in sizes.items():
        for end, shape in ((".lora_down.weight", [rank, inside]), (".lora_up.weight", [out, rank]), (".alpha", [])):
            size = 2 * (shape[0] * shape[1] if shape else 1)
            header[f"lora_unet_{name}{end}"] = {"dtype": "F16", "shape": shape, "data_offsets": [place, place + size]}
            place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + place)


# --- the server's part ---


def generate_pictures(folder: Path, count: int) -> None:
    """Write small PNG files with parameters texts, which are too old to be still in the making."""
    chance = random.Random(0)
    picture = Image.new("RGB", (8, 8))
    old = time.time() - 60
    for number in range(count):
        used = [f"{WORDS[one % 16]}_{one}" for one in chance.sample(range(500), chance.randint(1, 3))]
        tags = "".join(f" <lora:{name}:{chance.choice(('0.6', '0.8', '1'))}>" for name in used)
        said = PngInfo()
        said.add_text(
            "parameters", f"a {' '.join(chance.sample(WORDS, 8))}{tags}\nSteps: 20, Seed: {number}, Size: 8x8"
        )
        path = folder / f"{number % 200:03d}" / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, pnginfo=said)
        os.utime(path, (old - number, old - number))
    for inner in folder.iterdir():
        os.utime(inner, (old, old))


def in_child(part: Any, folder: Path) -> dict[str, float]:
    """Return the figures that a function measures in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, float] = pool.apply(part, (folder,))
        return found


def first_scan(folder: Path) -> dict[str, float]:
    """Read all files, with a list asked for meanwhile."""
    from extension.api.library import listed
    from extension.library.catalog import Catalog

    memory = psutil.Process().memory_info().rss
    catalog = Catalog(lambda: [folder / "loras"], lambda: folder / "data")
    began = time.perf_counter()
    catalog.start()
    while not len(catalog.index):
        time.sleep(0.01)
    time.sleep(0.5)
    asked = time.perf_counter()
    full_list(catalog, listed)
    took = time.perf_counter() - asked
    catalog.wait(3600)
    scanned = time.perf_counter() - began
    grown = psutil.Process().memory_info().rss - memory
    catalog.close()
    return {"first scan": scanned, "list while scanning": took, "memory of the server": grown / 2**20}


def later_start(folder: Path) -> dict[str, float]:
    """Start again, and answer with the whole list."""
    from extension.api.library import listed
    from extension.library.catalog import Catalog

    began = time.perf_counter()
    catalog = Catalog(lambda: [folder / "loras"], lambda: folder / "data")
    catalog.start()
    full_list(catalog, listed)
    took = time.perf_counter() - began
    catalog.wait(3600)
    catalog.close()
    return {"later start to a full list": took}


def read_pictures(folder: Path) -> dict[str, float]:
    """Read all pictures, look at them again, and ask for the pictures of some LoRA."""
    from extension.outputs.index import LoraKey, Sought
    from extension.outputs.scan import Outputs

    outputs = Outputs(lambda: [folder / "pictures"], lambda: folder / "data")
    (folder / "data").mkdir(exist_ok=True)
    index = outputs.index
    assert index is not None, "it has a folder"
    first, again = processor(outputs.scan), processor(outputs.scan)

    def page(name: str) -> None:
        rows = index.loras_of(LoraKey(frozenset({name})))
        index.of_loras([row.id for row in rows], Sought(), 0, 60)

    names = [f"{WORDS[one % 16]}_{one}" for one in range(20)]
    pages = [processor(partial(page, name)) for name in names]
    return {
        "first reading of the pictures": first,
        "another look at the pictures": again,
        "a page of a LoRA's pictures": max(pages),
        "the count of each LoRA's pictures": processor(lambda: index.loras(Sought(), 10_000)),
    }


def processor(work: Callable[[], object]) -> float:
    """Return the seconds that the process computes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def full_list(catalog: Any, listed: Callable[[Any], Any]) -> None:
    """Return the bytes that a page receives when it opens."""
    catalog.read_for(0.3)
    rows, _ = catalog.index.since(0)
    json.dumps([listed(one) for one in rows])


# --- the browser's part ---


def in_browser(folder: Path, chromium: str) -> dict[str, float]:
    """Search and scroll in the embedded web UI's page."""
    from playwright.sync_api import sync_playwright

    with serving(folder) as address, sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.add_init_script(_TASKS)
        page.goto(address)
        page.wait_for_function(
            "window.remoraTab?.state.loaded && !window.remoraTab.library.catalog.scan.running", timeout=120_000
        )
        code = page.evaluate(_CODE)
        page.reload()  # the page as it opens with files that are known
        page.wait_for_function("window.remoraTab?.state.loaded", timeout=120_000)
        page.wait_for_timeout(3000)
        opening, paint = page.evaluate(_LONGEST), page.evaluate(_PAINT)
        keys = sorted(page.evaluate(_SEARCH))
        blank = page.evaluate(_SCROLL)
        page.evaluate(_USE)
        used = page.evaluate(_LONGEST)
        browser.close()
    return {
        "a keystroke of the search": keys[len(keys) // 2] / 1000,
        "blank frames while scrolling": float(blank),
        "first paint": paint / 1000,
        "code of the tab": code / 1000,
        "longest task as the page opens": opening / 1000,
        "longest task in use": used / 1000,
    }


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run the embedded web UI on the files."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "extension.standalone", "--no-browser", f"--port={port}", "--device=cpu"]
    command += [f"--output-dir={folder / 'out'}", f"--data-dir={folder / 'data'}", f"--lora-dir={folder / 'loras'}"]
    command += [f"--model={ROOT / 'demo' / 'remora-shapes'}"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


# Long frames name their scripts, so that the tasks of gradio's page, which is no part of the tab, do not count. The
# browser tells none that took less than 50 ms in all.
_TASKS = """
window.remoraTasks = [];
performance.setResourceTimingBufferSize(5000);
new PerformanceObserver(list => {
    for (const frame of list.getEntries())
        for (const script of frame.scripts)
            if (script.sourceURL.includes('/remora/')) window.remoraTasks.push(script.duration);
}).observe({type: 'long-animation-frame', buffered: true});
"""
_LONGEST = "() => Math.max(0, ...window.remoraTasks.splice(0))"
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
# Bytes of the tab's scripts and style sheet as they are when unpacked.
_CODE = """() => performance.getEntriesByType('resource').filter(one => /\\/remora\\/.*\\.(js|css)/.test(one.name))
    .reduce((sum, one) => sum + one.decodedBodySize, 0)"""
# Open the filters, sort in every way, and put a hundred LoRA into the prompt.
_USE = """async () => {
    const root = document.getElementById('remora-tab').shadowRoot;
    const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
    const button = name => [...root.querySelectorAll('button')].find(one => one.textContent.startsWith(name));
    button('Filters').click();
    await frame();
    const sort = [...root.querySelectorAll('.rt-filters label')].find(one => one.textContent.startsWith('Sort by'));
    const list = sort.querySelector('select');
    for (const {value} of [...list.options].reverse()) {
        list.value = value;
        list.dispatchEvent(new Event('change', {bubbles: true}));
        await frame();
    }
    const box = document.querySelector('#prompt textarea');
    box.value = window.remoraTab.library.catalog.all.slice(0, 100).map(one => `<lora:${one.name}:0.5>`).join(' ');
    box.dispatchEvent(new Event('input', {bubbles: true}));
    await frame();
    button('Stack')?.click();
    for (let wait = 0; wait < 60; wait += 1) await frame();
}"""
# From a key to the frame that shows what it found, in milliseconds: medians of 15 searches.
_SEARCH = """async () => {
    const box = document.getElementById('remora-tab').shadowRoot.querySelector('input[type=search]');
    const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
    const times = [];
    for (const word of ['fur', 'ink neon', 'stone paper 99']) {
        for (let length = 1; length <= Math.min(5, word.length); length += 1) {
            await frame();
            const began = performance.now();
            box.value = word.slice(0, length);
            box.dispatchEvent(new Event('input', {bubbles: true}));
            await new Promise(done => queueMicrotask(done));
            await frame();
            times.push(performance.now() - began);
        }
    }
    box.value = '';
    box.dispatchEvent(new Event('input', {bubbles: true}));
    await frame();
    return times;
}"""
# Frames in which some part of the list's box has no item, over 120 jumps and 120 small steps.
_SCROLL = """async () => {
    const box = document.getElementById('remora-tab').shadowRoot.querySelector('.rt-scroll');
    const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
    let blank = 0;
    for (let step = 0; step < 240; step += 1) {
        box.scrollTop = step % 2 ? box.scrollTop + 400 : Math.random() * (box.scrollHeight - box.clientHeight);
        await frame();
        const seen = box.getBoundingClientRect();
        for (const part of [0.02, 0.25, 0.5, 0.75, 0.98]) {
            const y = seen.top + part * seen.height;
            const items = [...box.querySelectorAll('li')].map(item => item.getBoundingClientRect());
            if (!items.some(item => item.top - 8 <= y && y <= item.bottom + 8)) { blank += 1; break; }
        }
    }
    return blank;
}"""


if __name__ == "__main__":
    sys.exit(main())
