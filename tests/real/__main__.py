"""Check Remora in a web UI that runs, by the pictures it makes: `python -m tests.real URL`.

It makes LoRA files for the loaded model and removes them at the end, or takes three that are there. It prints a table
in Markdown, and its exit status is 1 where a check failed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from .checks import CHECKS, AbsentError, FailedError, Trial
from .client import WebUI, WebUIError
from .files import make_loras

_SIDE = 64

Check: TypeAlias = "partial[str]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="address of the web UI, whose HTTP API is on")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--lora-dir", type=Path, help="LoRA folder of the web UI, which gets files made for its model")
    source.add_argument("--lora", action="append", help="name of a LoRA that is there; three of them")
    parser.add_argument(
        "--checkpoint", type=Path, help="file or folder of the model, where the web UI does not tell it"
    )
    parser.add_argument("--only", action="append", help="name of a check, such as hires; all by default")
    parser.add_argument("--browser", action="store_true", help="also try the tab in the page; needs Chromium")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="where --browser puts pictures of the page")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sampler", default="Euler")
    parser.add_argument("--side", type=int, default=_SIDE, help=f"pixels of a side (default: {_SIDE})")
    arguments = parser.parse_args(argv)
    if arguments.lora is not None and len(arguments.lora) != 3:
        parser.error("--lora is needed three times")
    fields = {"steps": arguments.steps, "sampler_name": arguments.sampler, "seed": 7, "cfg_scale": 5}
    fields |= {"width": arguments.side, "height": arguments.side}
    ui = WebUI(arguments.url)
    try:
        ui.state()
    except (OSError, WebUIError) as error:
        parser.exit(2, f"no Remora answers at {arguments.url}: {error}\n")
    with _lossless(ui), _loras(ui, arguments.lora, arguments.lora_dir, arguments.checkpoint) as names:
        trial = Trial(ui, names, fields)
        checks: dict[str, Check] = {title: partial(check, trial) for title, check in CHECKS.items()}
        with _page(trial, arguments.screenshots, wanted=arguments.browser) as of_page:
            checks |= of_page
            results = {
                title: run(check)
                for title, check in checks.items()
                if arguments.only is None or check.func.__name__ in arguments.only
            }
        host = ui.state()["host"]
    sys.stdout.write(table(host, results))
    return 1 if any(result.startswith("**") for result in results.values()) else 0


def run(check: Check) -> str:
    """Run one check; return what the table says of it."""
    try:
        return f"yes {check()}".strip()
    except AbsentError as error:
        return f"not tried: {error}"
    except FailedError as error:
        return f"**no**: {error}"
    except WebUIError as error:
        return f"**error**: {error!s:.300}"
    except Exception as error:  # noqa: BLE001  # a check that breaks must not hide the others' results
        traceback.print_exc()
        return f"**error**: {type(error).__name__}: {error!s:.200}"


def table(host: str, results: Mapping[str, str]) -> str:
    """Write the results as a table in Markdown."""
    lines = [f"| what was tried | {host} |", "|---|---|"]
    for title, result in results.items():
        cell = " ".join(result.split()).replace("|", "\\|")
        lines.append(f"| {title} | {cell} |")
    return "\n".join(lines) + "\n"


@contextmanager
def _page(trial: Trial, pictures: Path | None, *, wanted: bool) -> Iterator[Mapping[str, Check]]:
    """Yield the checks of the page, in an open browser."""
    if not wanted:
        yield {}
        return
    from . import page  # which needs packages that the other checks do not

    with page.browser(trial.ui.url, pictures) as browser:
        yield {title: partial(check, trial, browser) for title, check in page.CHECKS.items()}


@contextmanager
def _lossless(ui: WebUI) -> Iterator[None]:
    """Have the web UI send pictures without loss."""
    before = ui.ask("/sdapi/v1/options").get("samples_format", "png")
    if before != "png":
        ui.set(samples_format="png")
    try:
        yield
    finally:
        if before not in ("png", None):  # SD.Next tells nothing of a setting that is as at first
            ui.set(samples_format=before)


@contextmanager
def _loras(
    ui: WebUI, names: Sequence[str] | None, folder: Path | None, checkpoint: Path | None
) -> Iterator[Sequence[str]]:
    """Yield the names of three LoRA that the web UI knows."""
    if folder is None:
        yield names or ()
        return
    made: Sequence[str] = ()
    try:
        made = make_loras(checkpoint or _checkpoint(ui), folder)
        ui.ask("/sdapi/v1/refresh-loras", {})
        ui.ask("/remora/v1/refresh", {})
        yield made
    finally:
        for name in made:
            (folder / f"{name}.safetensors").unlink()


def _checkpoint(ui: WebUI) -> Path:
    """Return the file or folder of the loaded model."""
    title = ui.ask("/sdapi/v1/options")["sd_model_checkpoint"]
    for model in ui.ask("/sdapi/v1/sd-models"):
        if title.partition(" [")[0] in (model["title"].partition(" [")[0], model["model_name"]):
            file = Path(model["filename"])
            if file.exists():
                return file
    raise SystemExit(f"the web UI does not tell where its model {title} is; name it: --checkpoint PATH")


if __name__ == "__main__":
    sys.exit(main())
