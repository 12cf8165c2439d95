"""Start the embedded web UI: `python -m extension.standalone --model MODEL --lora-dir LORAS`."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..addresses import is_loopback
from .demo import DEMO_PROMPT, DEMO_SEED, find_demo
from .layout import find_model
from .offline import OFFLINE

for _name, _value in OFFLINE.items():  # before the libraries are imported that read them
    os.environ.setdefault(_name, _value)

ROOT = Path(__file__).resolve().parents[2]
_NOISY = ("httpx", "transformers", "bitsandbytes", "torchao", "torch.utils._pytree")
"""What they warn of is about parts that are not used here."""
_STEPS = 4
_MOST_CONNECTIONS = 1000
_STOPPING = 10  # seconds that requests have to end after Ctrl+C

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until interrupted; return the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if problem := _misuse(arguments):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    try:
        source = _source(arguments)  # needs the standard library alone, so that it says no at once
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _step(1, "importing torch and diffusers")
    from lib_lora import LoraError

    try:
        return _serve(arguments, source)
    except (OSError, ValueError, RuntimeError, LoraError) as error:
        logger.debug("start failed", exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        return 1


def _step(number: int, what: str) -> None:
    logger.info("step %d of %d: %s", number, _STEPS, what)


def _parser() -> argparse.ArgumentParser:
    prog = "python install.py demo" if "--demo" in sys.argv else "python -m extension.standalone"  # as users write it
    parser = argparse.ArgumentParser(prog=prog, description="Start the embedded web UI.")
    parser.add_argument("--model", type=Path, help="diffusers folder, or checkpoint in one .safetensors file")
    parser.add_argument("--demo", action="store_true", help="use the small model and the LoRA that come with Remora")
    parser.add_argument("--lora-dir", type=Path, action="append", default=[], help="folder of LoRA files; repeatable")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: this machine only)")
    parser.add_argument("--port", type=int, default=7860)
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--auth", type=_login, metavar="USER:PASSWORD", help="require this user and password")
    who.add_argument("--without-login", action="store_true", help="require no login, also from other machines")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
    parser.add_argument("--offload", default="none", choices=("none", "model", "sequential", "group"))
    parser.add_argument("--output-dir", type=Path, default=ROOT / "outputs", help="folder for pictures")
    parser.add_argument(
        "--data-dir", type=Path, default=ROOT / "data", help="folder for presets and Remora's other data"
    )
    parser.add_argument(
        "--prediction-type", choices=("epsilon", "v_prediction"), help="for checkpoints that do not contain it"
    )
    parser.add_argument("--tokenizer", type=Path, help="folder with vocab.json and merges.txt of CLIP")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    return parser


def _login(text: str) -> str:
    user, _, password = text.partition(":")
    if not user or not password:
        raise argparse.ArgumentTypeError("write it as user:password")
    return text


def _check_port(host: str, port: int) -> None:
    """Check before a model is loaded that the port is free.

    Raises:
        OSError: the port is in use; the text says what to do.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if os.name != "nt":  # there it would allow what it should find out
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise OSError(f"port {port} on {host} cannot be used ({error}); choose another one with --port") from error


@dataclass(frozen=True)
class _Source:
    """What is served."""

    model: Path
    loras: list[Path]
    first_prompt: str = ""
    first_seed: int = -1


def _misuse(arguments: argparse.Namespace) -> str:
    """Return why these arguments cannot be meant, or nothing."""
    if arguments.model is None and not arguments.demo:
        return "choose a model with --model, or use --demo"
    if not (is_loopback(arguments.host) or arguments.auth or arguments.without_login):
        return (
            f"other machines reach {arguments.host}; add --auth user:password, or --without-login to let in "
            "everybody who does"
        )
    return ""


def _source(arguments: argparse.Namespace) -> _Source:
    """Return what to serve.

    Raises:
        OSError: the port is in use.
        ValueError: there is no such model, or the demo is damaged.
    """
    _check_port(arguments.host, arguments.port)
    loras = list(arguments.lora_dir)
    if arguments.model is not None:
        return _Source(find_model(arguments.model), loras)
    demo = find_demo()
    return _Source(demo.model, [*loras, demo.loras], DEMO_PROMPT, DEMO_SEED)


def _megabytes(model: Path) -> float:
    files = [model] if model.is_file() else model.rglob("*.safetensors")
    return sum(file.stat().st_size for file in files) / 1e6


def _open(arguments: argparse.Namespace) -> str:
    """Open the page in a browser soon, if one is wanted; return its address."""
    url = f"http://{'127.0.0.1' if arguments.host == '0.0.0.0' else arguments.host}:{arguments.port}"
    if not arguments.no_browser and not os.environ.get("CI"):
        threading.Timer(1.5, webbrowser.open, [url]).start()
    return url


def _serve(arguments: argparse.Namespace, source: _Source) -> int:
    import uvicorn

    from .jobs import Runner
    from .model import load_model, pick_device, pick_dtype
    from .protocol import TimedProtocol
    from .server import make_app
    from .studio import open_studio

    device = pick_device(arguments.device)
    dtype = pick_dtype(arguments.dtype, device)
    _step(2, f"loading {source.model.name} ({_megabytes(source.model):.0f} MB)")
    model = load_model(source.model, dtype, arguments.prediction_type, arguments.tokenizer)
    _step(3, f"looking for LoRA, moving the model to {device}")
    output_dir = arguments.output_dir.expanduser().resolve()
    data_dir = arguments.data_dir.expanduser().resolve()
    runner = Runner(open_studio(model, device, source.loras, output_dir, arguments.offload, data_dir))
    _step(4, "making the page")
    app = make_app(runner, output_dir, source.first_prompt, arguments.host, arguments.auth or "", source.first_seed)
    logger.info("%s on %s; open %s", model.name, device, _open(arguments))
    try:
        uvicorn.run(
            app,
            host=arguments.host,
            port=arguments.port,
            log_level="warning",
            ws="none",
            http=TimedProtocol,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_STOPPING,
        )
    finally:
        runner.close()
        runner.studio.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
