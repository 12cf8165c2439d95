"""Files as trainers write them, by random choice, each with the change of every layer that it must make.

The changes are written from the trainers' code, apart from the library. A layer's change is None where the file says
something of it that cannot be known or done: then it has to be left out, or the report has to say what is assumed.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .files import save

WIDTH = 16
RANKS = (2, 4, 8)


class Block(nn.Module):
    """Layers of each kind that a file may speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(WIDTH, 24)
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.ConvTranspose2d(WIDTH, WIDTH, 2)


class Small(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])


def small() -> Small:
    """Return the model; all have the same weights."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return Small().requires_grad_(False).double()


LAYERS = tuple(f"blocks.{i}.{name}" for i in range(2) for name in ("to_q", "to_out", "conv"))
Change = tuple[Tensor | None, Tensor | None]
"""Of a weight and of a bias; None for none."""


@dataclass
class Made:
    """A file and what it must do."""

    path: Path
    label: str
    model: Small
    changes: dict[str, Change | None]
    """Layer -> its change at strength 1; None where it has to be left out."""
    told: bool
    """Whether something tells the scale. If not, that has to be said, and changes are right but for a factor."""


@dataclass(frozen=True)
class Spelling:
    """How a trainer writes keys."""

    name: str
    start: str
    down: str = "lora_A.weight"
    up: str = "lora_B.weight"
    flat: bool = False
    peft: bool = True
    """Whether nothing but a header or a configuration tells alpha."""

    def key(self, layer: str, param: str) -> str:
        return f"{self.start}{layer.replace('.', '_') if self.flat else layer}.{param}"


KOHYA = Spelling("kohya", "lora_unet_", "lora_down.weight", "lora_up.weight", flat=True, peft=False)
SPELLINGS = (
    KOHYA,
    Spelling("onetrainer", "lora_transformer_", "lora_down.weight", "lora_up.weight", flat=True, peft=False),
    Spelling("comfy", "diffusion_model.", "lora_down.weight", "lora_up.weight", peft=False),
    Spelling("old diffusers", "unet.", "lora.down.weight", "lora.up.weight", peft=False),
    Spelling("peft", "base_model.model."),
    Spelling("peft, named", "base_model.model.", "lora_A.default.weight", "lora_B.default.weight"),
    Spelling("diffusers", "unet."),
    Spelling("ai-toolkit", "diffusion_model."),
    Spelling("bare", "", "lora_A.default.weight", "lora_B.default.weight"),
)
DOTTED = tuple(one for one in SPELLINGS if one.peft)

HEADERS: Mapping[str, Callable[[float, int], dict[str, str]]] = {
    "alpha": lambda alpha, rank: {"alpha": f"{alpha:g}", "rank": str(rank)},
    "alpha alone": lambda alpha, rank: {"alpha": str(alpha)},
    "lora_alpha": lambda alpha, rank: {"lora_alpha": f"{alpha:g}", "lora_rank": str(rank)},
    "network_alpha": lambda alpha, rank: {"network_alpha": str(alpha), "network_dim": str(rank)},
    "ss_network_alpha": lambda alpha, rank: {"ss_network_alpha": str(alpha), "ss_network_dim": str(rank)},
    "flat component": lambda alpha, rank: {"unet.lora_alpha": f"{alpha:g}", "unet.r": str(rank)},
    "json": lambda alpha, rank: {"lora_adapter_metadata": json.dumps({"unet.lora_alpha": alpha, "unet.r": rank})},
    "json, plain": lambda alpha, rank: {"lora_adapter_metadata": json.dumps({"lora_alpha": alpha, "r": rank})},
    "json of a script": lambda alpha, rank: {"adapter_config": json.dumps({"lora_alpha": alpha, "r": rank})},
    "other trainer": lambda alpha, rank: {
        "ss_network_alpha": str(alpha),
        "ss_network_dim": str(rank),
        "ss_network_module": "fizgig.minimax",
    },
}


class Maker:
    """Makes one file by random choice.

    Args:
        seed: of all choices.
        folder: an empty one.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.generator = torch.Generator().manual_seed(seed)
        self.model = small()
        self.tensors: dict[str, Tensor] = {}
        self.metadata: dict[str, str] = {}
        self.config: dict[str, object] | None = None
        self.changes: dict[str, Change | None] = {}
        self.name = "a.safetensors"
        self.rank = self.dice.choice(RANKS)
        self.alpha = float(self.dice.choice((1, 8, 64)))
        self.label = [str(seed)]
        self.told = True

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * 0.3

    def weight(self, layer: str) -> Tensor:
        return self.model.get_submodule(layer).get_parameter("weight").data

    def bias(self, layer: str) -> Tensor:
        return self.model.get_submodule(layer).get_parameter("bias").data

    def make(self) -> Made:
        """Write the file and what lies beside it."""
        kind = self.dice.choice((self.lora,) * 4 + (self.lokr, self.loha, self.middle, self.bora, self.ia3, self.whole))
        kind()
        self.put_neighbour()
        if self.config is not None:
            (self.folder / "adapter_config.json").write_text(json.dumps(self.config))
        path = save(
            self.folder / self.name, {key: one.contiguous() for key, one in self.tensors.items()}, self.metadata
        )
        return Made(path, ", ".join(self.label), self.model, self.changes, self.told)

    def put_neighbour(self) -> None:
        """Write a configuration of another file into the folder, whole or broken."""
        if self.config is not None or self.dice.random() < 0.5:
            return
        texts = {
            "of another scale": {"r": 16, "lora_alpha": 256},
            "of LoHa": {"peft_type": "LOHA", "r": 3, "alpha": 7},
            "of PiSSA": {"peft_type": "LORA", "r": 5, "lora_alpha": 3, "init_lora_weights": "pissa"},
        }
        which = self.dice.choice((*texts, "broken"))
        text = "{" if which == "broken" else json.dumps(texts[which])
        (self.folder / "adapter_config.json").write_text(text)
        self.label.append(f"neighbour {which}")

    def scale_by(self, spelling: Spelling, layers: tuple[str, ...]) -> float:
        """Write alpha where one trainer writes it; return the scale that was trained, 1 where nothing tells."""
        ways = ["tensor", "header", "header", "nothing", "stale", "rs"]
        way = self.dice.choice([*ways, "own config", "own config"] if spelling.peft else ways[:4])
        self.label.append(way)
        scale = self.alpha / self.rank
        if way == "tensor":
            for layer in layers:
                self.tensors[spelling.key(layer, "alpha")] = torch.tensor(self.alpha)
            self.metadata |= self.dice.choice(list(HEADERS.values()))(self.alpha * 3, self.rank)
            return scale
        if way == "header":
            which = self.dice.choice([name for name in HEADERS if spelling.peft or "json" not in name])
            self.label.append(which)
            self.metadata |= HEADERS[which](self.alpha, self.rank)
            return scale
        if way == "rs":
            flag = self.dice.choice(({"use_rslora": "true"}, {"ss_rs_lora": "True"}, {"rs_lora": "1"}))
            self.metadata |= {"lora_alpha": str(self.alpha), "r": str(self.rank), **flag}
            return self.alpha / math.sqrt(self.rank)
        if way == "stale":  # of the state before a resize
            self.metadata |= HEADERS["lora_alpha"](self.alpha, 77)
            self.told = False
            return 1.0
        if way == "own config":
            self.metadata |= self.dice.choice(
                ({}, {"rank": str(self.rank)}, {"lora_rank": str(self.rank), "alpha": ""})
            )
            self.name = self.dice.choice(("adapter_model.safetensors", "pytorch_lora_weights.safetensors"))
            self.config = {
                "peft_type": "LORA",
                "r": self.rank,
                "lora_alpha": self.alpha,
                "target_modules": ["to_q", "to_out", "conv"],
            }
            return scale
        self.told = not spelling.peft
        return 1.0

    def pair(self, spelling: Spelling, layer: str, rank: int | None = None) -> Tensor:
        """Add a pair; return its product."""
        shape, rank = tuple(self.weight(layer).shape), rank or self.rank
        down = self.randn(rank, *shape[1:])
        up = self.randn(shape[0], rank, *(1,) * (len(shape) - 2))
        self.tensors |= {spelling.key(layer, spelling.down): down, spelling.key(layer, spelling.up): up}
        return (up.double().flatten(1) @ down.double().flatten(1)).reshape(shape)

    def lora(self) -> None:
        spelling = self.dice.choice(SPELLINGS)
        layers = tuple(self.dice.sample(LAYERS, 4))
        self.label += ["lora", spelling.name]
        products = {layer: self.pair(spelling, layer) for layer in layers}
        scale = self.scale_by(spelling, layers)
        for layer, product in products.items():
            self.changes[layer] = (product * scale, None)
        extras = [self.unknown_factor, self.rank_zero, self.transposed, self.dora]
        if spelling.peft:
            extras += [self.biases, self.biases, self.norms, self.module_to_save]
        for extra in self.dice.sample(extras, self.dice.choice((0, 1, 1, 2))):
            extra(spelling, layers)

    def unknown_factor(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        name = self.dice.choice(("lora_route.weight", "lora_gate", "router.weight", "magnitude_c", "lora_C.weight"))
        self.label.append(name)
        self.tensors[spelling.key(layers[0], name)] = self.randn(self.rank, self.rank)
        self.changes[layers[0]] = None

    def rank_zero(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        layer = next((one for one in LAYERS if one not in layers), "")
        shape = tuple(self.weight(layer).shape)
        self.label.append("rank 0")
        self.tensors[spelling.key(layer, spelling.down)] = torch.zeros(0, *shape[1:])
        self.tensors[spelling.key(layer, spelling.up)] = torch.zeros(shape[0], 0, *(1,) * (len(shape) - 2))
        self.changes[layer] = (None, None)

    def transposed(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        self.label.append("transposed convolution")
        self.tensors[spelling.key("blocks.0.up", spelling.down)] = self.randn(self.rank, WIDTH, 2, 2)
        self.tensors[spelling.key("blocks.0.up", spelling.up)] = self.randn(WIDTH, self.rank, 1, 1)
        self.changes["blocks.0.up"] = None

    def dora(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        layer, change = layers[1], self.changes[layers[1]]
        if not self.told or change is None or change[0] is None or change[1] is not None:
            return
        names = ("lora_magnitude_vector.weight", "magnitude") if spelling.peft else ("dora_scale",)
        size = 1 + self.randn(self.weight(layer).shape[0]).abs()
        self.label.append("dora")
        self.tensors[spelling.key(layer, self.dice.choice(names))] = size if spelling.peft else size.reshape(-1, 1)
        whole = (self.weight(layer) + change[0]).flatten(1)
        whole = (whole / whole.norm(dim=1, keepdim=True) * size.double().unsqueeze(1)).reshape(change[0].shape)
        self.changes[layer] = (whole - self.weight(layer), None)

    def biases(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        """`bias="all"` or `"lora_only"`."""
        end = self.dice.choice(("bias", "base_layer.bias"))
        self.label.append(end)
        for layer in layers:
            new, change = self.randn(self.bias(layer).shape[0]), self.changes[layer]
            self.tensors[spelling.key(layer, end)] = new
            if change is not None and self.tensors.get(spelling.key(layer, "lora_C.weight")) is None:
                self.changes[layer] = (change[0], new.double() - self.bias(layer))

    def norms(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        end = self.dice.choice(("", "modules_to_save.default.", "modules_to_save."))
        new, bias = 1 + self.randn(WIDTH), self.randn(WIDTH)
        self.label.append(f"{end}norm")
        self.tensors |= {
            spelling.key("blocks.1.norm", f"{end}weight"): new,
            spelling.key("blocks.1.norm", f"{end}bias"): bias,
        }
        own = "blocks.1.norm"
        self.changes[own] = (new.double() - self.weight(own), bias.double() - self.bias(own))

    def module_to_save(self, spelling: Spelling, layers: tuple[str, ...]) -> None:
        layer = next(one for one in LAYERS if one not in layers and one not in self.changes)
        new = self.randn(*self.weight(layer).shape)
        self.label.append("module to save")
        self.tensors[spelling.key(layer, self.dice.choice(("weight", "modules_to_save.default.weight")))] = new
        self.changes[layer] = (new.double() - self.weight(layer), None)

    def middle(self) -> None:
        """MoSLoRA and LoRA-XS."""
        spelling, layers = self.dice.choice(DOTTED[:2]), tuple(self.dice.sample(LAYERS, 3))
        name = self.dice.choice(("lora_mixer.weight", "lora_AB.weight", "default_lora_latent_mapping.weight"))
        self.label += [name, spelling.name]
        scale = self.scale_by(spelling, layers)
        for layer in layers:
            shape, mixer = tuple(self.weight(layer).shape), self.randn(self.rank, self.rank)
            self.pair(spelling, layer)
            down, up = (
                self.tensors[spelling.key(layer, one)].double().flatten(1) for one in (spelling.down, spelling.up)
            )
            self.tensors[spelling.key(layer, name)] = mixer
            change = (up @ mixer.double() @ down).reshape(shape)
            self.changes[layer] = (change * scale, None)

    def bora(self) -> None:
        spelling, layer = self.dice.choice((KOHYA, SPELLINGS[2])), "blocks.0.to_q"
        self.label += ["bora", spelling.name]
        change = self.pair(spelling, layer) * self.alpha / self.rank
        self.tensors[spelling.key(layer, "alpha")] = torch.tensor(self.alpha)
        rows, columns = 1 + self.randn(24, 1).abs(), 1 + self.randn(1, WIDTH).abs()
        names = self.dice.choice((("bora_scale_r", "bora_scale_c"), ("bora_r_scale", "bora_c_scale")))
        self.tensors |= {spelling.key(layer, names[0]): rows, spelling.key(layer, names[1]): columns}
        whole = self.weight(layer) + change
        whole = whole / whole.norm(dim=1, keepdim=True) * rows.double()
        whole = whole / whole.norm(dim=0, keepdim=True) * columns.double()
        self.changes[layer] = (whole - self.weight(layer), None)

    def loha(self) -> None:
        layer = "blocks.0.to_q"
        self.label.append("loha")
        sides = [self.randn(*size) for size in ((24, self.rank), (self.rank, WIDTH)) * 2]
        names = [f"hada_{one}" for one in ("w1_a", "w1_b", "w2_a", "w2_b")]
        self.tensors |= {KOHYA.key(layer, name): side for name, side in zip(names, sides, strict=True)}
        scale = self.scale_by(KOHYA, (layer,))
        one, two, three, four = (side.double() for side in sides)
        self.changes[layer] = ((one @ two) * (three @ four) * scale, None)

    def lokr(self) -> None:
        """Two full matrices, by trainers that differ in what alpha is."""
        layer, first, second = self.dice.choice(("blocks.0.to_q", "blocks.1.to_q")), self.randn(4, 4), self.randn(6, 4)
        self.tensors |= {KOHYA.key(layer, "lokr_w1"): first, KOHYA.key(layer, "lokr_w2"): second}
        dim, scale = 32, 1.0
        who = self.dice.choice(
            ("lycoris", "lycoris, rs", "lycoris, table", "alpha as given", "table", "blissful", "unknown", "ai-toolkit")
        )
        self.label += ["lokr", who]
        alpha: float = dim
        if who.startswith("lycoris"):
            self.metadata |= {"ss_network_module": "lycoris.kohya", "ss_network_dim": "32", "ss_network_alpha": "1"}
            arguments: dict[str, object] = {"algo": "lokr"}
            if who.endswith("rs"):
                alpha, scale, arguments["rs_lora"] = dim * math.sqrt(dim), math.sqrt(dim), "True"
            elif who.endswith("table"):
                alpha, arguments["lora_reg_dims"] = 8, {"lora_unet_blocks_.*to_q": 8}
            self.metadata["ss_network_args"] = json.dumps(arguments)
        elif who == "alpha as given":
            alpha, scale = 1.0, 1 / dim
            self.metadata |= {"ss_network_dim": "32", "ss_network_alpha": "1"}
        elif who == "table":
            alpha, scale = 1.0, 1 / 8
            table = json.dumps({"lora_unet_blocks_.*to_q": 8})
            self.metadata |= {"ss_network_dim": "32", "ss_network_alpha": "1", "lora_reg_dims": table}
        elif who == "blissful":
            alpha, scale = 2.0, 2 / 6
            self.tensors["lokr_factor"] = torch.tensor(4)
        elif who == "unknown":
            alpha, self.told = 1.0, False
        self.tensors[KOHYA.key(layer, "alpha")] = torch.tensor(alpha)
        self.changes[layer] = (torch.kron(first.double(), second.double()) * scale, None)

    def ia3(self) -> None:
        """PEFT's, on square convolutions among others."""
        self.label.append("ia3")
        feed = self.dice.choice((["conv"], [], r".*\.(conv|ff)", None))
        if feed is not None:
            self.name = "adapter_model.safetensors"
            self.config = {"peft_type": "IA3", "target_modules": ["to_q", "conv"], "feedforward_modules": feed}
        for layer in ("blocks.0.conv", "blocks.1.conv"):
            scale = 1 + self.randn(1, WIDTH, 1, 1)
            self.tensors[DOTTED[0].key(layer, "ia3_l")] = scale
            excess = scale.double() - 1
            weight, bias = self.weight(layer), self.bias(layer)
            on_output = (weight * excess.reshape(-1, 1, 1, 1), bias * excess.flatten())
            self.changes[layer] = None if feed is None else (weight * excess, None) if feed else on_output
        if self.dice.random() < 0.5:
            layer, scale = "blocks.0.to_q", 1 + self.randn(24, 1)
            self.tensors[DOTTED[0].key(layer, "ia3_l")] = scale
            excess = scale.double() - 1
            self.changes[layer] = (self.weight(layer) * excess, self.bias(layer) * excess.flatten())

    def whole(self) -> None:
        """Biases or norms and nothing else, as PEFT saves them."""
        self.label.append("whole alone")
        for layer in self.dice.sample(LAYERS, 2):
            new = self.randn(self.bias(layer).shape[0])
            self.tensors[DOTTED[0].key(layer, "bias")] = new
            self.changes[layer] = (None, new.double() - self.bias(layer))
        if self.dice.random() < 0.5:
            self.norms(DOTTED[0], ())
