"""Any argument of any public call is taken, or refused by a LoraError that says in one sentence what to write."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import nn

import lib_lora
from lib_lora import (
    ArgumentError,
    BlockWeights,
    Curve,
    Element,
    Engine,
    Entry,
    Halves,
    LoraError,
    Moment,
    PerImage,
    PipelineEngine,
    Reading,
    Region,
    Stack,
    Strength,
    Window,
    load_network,
    replace_lora_calls,
)
from tests.fakes.files import pair, save
from tests.selection import examples

CALLS = int(os.environ.get("REMORA_FUZZ_CALLS", "0"))
"""How many times each public call is made; 0 for 150 with `--all`, and fewer without."""

RESULTS = {"ActivationReport", "Family", "Glance", "MemoryReport", "NetworkReport", "Network", "Uncalled", "Unused"}
"""What Remora makes and users only read."""
PROCESS = {"install", "uninstall", "register", "unregister"}
"""What changes the whole process; tried apart."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)


class Pipe:
    def __init__(self) -> None:
        self.unet, self.text_encoder = Net(), Net()
        self.components = {"unet": self.unet, "text_encoder": self.text_encoder}


class Pool:
    """Values of many types, right ones among them, and the objects whose methods are called."""

    def __init__(self, folder: Path) -> None:
        self.file = save(folder / "a.safetensors", pair("lora_unet_q", (8, 8), 2))
        self.broken = folder / "broken.safetensors"
        self.broken.write_bytes(b"\x05")
        self.pipe = replace_lora_calls(Pipe())
        self.engine = lib_lora.attach(self.pipe)
        self.engine.load(self.file, name="style")
        entry, left, curve = Entry(self.file), Region.rectangle(0, 0, 0.5, 1), Curve([(0, 1.0), (5, 0.0)])
        rule = Element(("IN00",), (), 0.5)
        numbers = [
            0,
            1,
            -1,
            2,
            3.5,
            0.5,
            10**400,
            1e308,
            float("nan"),
            float("inf"),
            True,
            Fraction(1, 3),
            Decimal(2),
            1j,
        ]
        arrays = [np.float32(0.5), np.arange(3), torch.ones(2), torch.tensor(1.0), torch.float16]
        paths = [
            self.file,
            str(self.file),
            folder,
            self.broken,
            str(folder / "none"),
            b"a",
            "a\0b",
            "",
            "x" * 5000,
            "a/b",
        ]
        names = [
            "style",
            "unet",
            "text_encoder",
            "merged",
            "linear",
            "step",
            "in",
            "bfloat16",
            "q",
            "\n",
            "é",
            "\udc80",
        ]
        values = [
            entry,
            left,
            curve,
            rule,
            Strength(curve),
            Strength(region=left),
            Window(start=1),
            Moment(1, 5),
            Reading(),
        ]
        more = [
            BlockWeights([1] * 12),
            BlockWeights(None, (rule,)),
            Halves(1, 0),
            PerImage([1, 0]),
            Stack([entry]),
            Stack(),
        ]
        objects = [
            None,
            object(),
            object,
            Net(),
            Pipe,
            len,
            lambda: None,
            lambda *_: None,
            iter([1]),
            io.BytesIO(b"x"),
            Ellipsis,
        ]
        self.plain = [*numbers, *arrays, *paths, *names, *values, *more, *objects, self.pipe, self.engine]
        self.right: dict[str, list[object]] = {
            "path": [self.file],
            "source": [self.file],
            "name": ["style"],
            "components": [{"unet": self.pipe.unet}],
            "pipeline": [self.pipe],
            "component": ["unet"],
        }

    def value(self, name: str, random: Random, depth: int = 0) -> object:
        kind = random.random()
        if kind < 0.2 and name in self.right:
            return random.choice(self.right[name])
        if kind < 0.75 or depth > 2:
            return random.choice(self.plain)
        inside = [self.value("", random, depth + 1) for _ in range(random.randrange(4))]
        if kind < 0.82:
            return inside
        if kind < 0.87:
            return tuple(inside)
        keys = ["unet", "text_encoder", "down", "mid", "block_0", "q", 0, None, ("a",), "style"]
        return {random.choice(keys): one for one in inside}


def public(pool: Pool) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield each public function, constructor, and method with arguments."""
    region, curve, entry = Region(2, 2, bytes(4)), Curve([(0, 1.0), (1, 0)]), Entry(pool.file)
    network = load_network(pool.file, {"unet": pool.pipe.unet})
    objects = [region, curve, entry, Strength(curve), Window(start=2), network, pool.engine, pool.pipe]
    for name in lib_lora.__all__:
        value = getattr(lib_lora, name)
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        if callable(value) and name not in RESULTS | PROCESS | {"LoraCalls", "AdapterFile"} and not is_error:
            try:
                inspect.signature(value)
            except ValueError:  # of a Literal
                continue
            if getattr(value, "__module__", "").startswith("lib_lora"):
                yield name, value
    yield "Region.rectangle", Region.rectangle
    yield "AdapterFile.open", lib_lora.AdapterFile.open
    yield "Engine.for_pipeline", Engine.for_pipeline
    yield "PipelineEngine.for_pipeline", PipelineEngine.for_pipeline
    for value in objects:
        for name, method in inspect.getmembers(type(value), inspect.isfunction):
            if not name.startswith("_") and len(inspect.signature(method).parameters) > 1:
                yield f"{type(value).__name__}.{name}", partial(method, value)


def called(call: Callable[..., object], pool: Pool, random: Random) -> tuple[dict[str, object], Exception | None]:
    """Make one call with random arguments; return these, and the error."""
    keywords: dict[str, object] = {}
    positional: list[object] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [pool.value("name", random) for _ in range(random.randrange(3))]
        elif parameter.kind is parameter.VAR_KEYWORD:
            continue
        elif parameter.default is parameter.empty or random.random() < 0.3:
            value = pool.value(parameter.name, random)
            if parameter.kind is parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                positional.append(value)
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.default)
    given = {"positional": positional, **keywords}
    try:
        made = call(*positional, **keywords)
        if isinstance(made, AbstractContextManager) and not isinstance(made, Engine):
            with made:
                pass
        if isinstance(made, Engine) and made is not pool.engine:
            made.close()
    except Exception as error:  # noqa: BLE001  # any error is what is looked for
        return given, error
    return given, None


@pytest.mark.filterwarnings("ignore")  # a number of an array of one number
def test_no_argument_ends_in_another_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    pool, wrong, made, refused = Pool(tmp_path), list[str](), 0, 0
    calls = dict(public(pool))
    assert len(calls) > 50
    for name, call in calls.items():
        if name.endswith((".close", ".__enter__")):
            continue
        random = Random(name + os.environ.get("REMORA_FUZZ_SEED", ""))
        for _ in range(CALLS or examples(150)):
            given, error = called(call, pool, random)
            made += 1
            if error is None:
                continue
            refused += 1
            if not isinstance(error, LoraError):
                wrong.append(f"{name}: {type(error).__name__}: {error!s:.90} for {given!r:.200}")
            elif "\n" in str(error) or " at 0x" in str(error) or len(str(error)) > 600:
                wrong.append(f"{name}: {str(error)!r:.300}")
            if "style" not in pool.engine.names:
                pool.engine.load(pool.file, name="style")
    kinds = dict.fromkeys([" ".join(text.split()[:3]) for text in wrong])
    assert not wrong, f"{len(wrong)} of {made} calls:\n" + "\n".join(
        [next(w for w in wrong if " ".join(w.split()).startswith(k)) for k in kinds]
    )
    assert refused > made / 5


@pytest.mark.parametrize("wrong", [None, 5, "Linear", [5], [nn.Linear(2, 2)], [object], object()])
def test_what_install_and_register_take(wrong):
    for call in (lib_lora.install, lib_lora.register):
        with pytest.raises(LoraError):
            call(wrong)


@pytest.mark.parametrize("call", ["load_lora_weights", "fuse_lora", "unfuse_lora"])
def test_an_option_that_diffusers_does_not_have_is_named(tmp_path, call):
    pool = Pool(tmp_path)
    source = {"load_lora_weights": [pool.file]}.get(call, [])
    with pytest.raises(ArgumentError, match=f"{call} has no argument weight_nme"):
        getattr(pool.pipe, call)(*source, weight_nme="a.safetensors")
    assert pool.engine.names == ("style",)
