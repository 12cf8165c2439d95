"""Whatever a file holds: every key is used or spoken of, no layer gets another's numbers, and order does not matter.

Each tensor of a made file is full of a number of its own, so what an adapter holds tells which keys it was made of.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_lora import LoraError, UnknownFormatError, load_network
from lib_lora.files.file import AdapterFile
from lib_lora.files.formats.base import FILE_WIDE
from lib_lora.naming.network import Network
from lib_lora.naming.parsed import ParsedFile
from lib_lora.naming.places import Target
from tests.fakes.files import hollow, save
from tests.fakes.keys import parse_key
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import LAYERS, NAMES, Model, weight_of
from tests.families.base import Writer
from tests.selection import examples

from .test_families import FAMILIES, Origin, bound_rows, factors, index, layers_of

WRITERS = {
    name: sorted(writer for writer, how in family.writers.items() if not how.component)
    for name, family in FAMILIES.items()
    if family.writers
}


@lru_cache
def rows(family: str, writer: str) -> dict[str, list[Origin]]:
    return layers_of(FAMILIES[family], FAMILIES[family].writers[writer])


def shape_of(family: str, writer: str, layer: str) -> tuple[int, ...]:
    own = rows(family, writer)[layer]
    down, _ = factors(family, "")[own[0][0]]
    return (sum(high - low for _, low, high in own), *down.shape[1:])


def within(inner: list[Origin], outer: list[Origin]) -> bool:
    """Whether all of some rows are among others."""
    return all(any(a == b and low <= first and last <= high for b, low, high in outer) for a, first, last in inner)


@dataclass(frozen=True)
class Made:
    """A layer as one trainer writes it."""

    family: str
    writer: str
    layer: str
    rank: int
    fault: str = ""
    """What is wrong with it, if anything."""

    @property
    def how(self) -> Writer:
        return FAMILIES[self.family].writers[self.writer]

    def infos(self) -> dict[str, tuple[int, ...]]:
        """Key -> shape."""
        out, inside, *kernel = shape_of(self.family, self.writer, self.layer)
        shapes: dict[str, tuple[int, ...]] = {
            "lora_down.weight": (self.rank, inside + (self.fault == "wrong inputs"), *kernel),
            "lora_up.weight": (out + (self.fault == "wrong outputs"), self.rank, *(1 for _ in kernel)),
            "alpha": (2,) if self.fault == "two alphas" else (),
        }
        if self.fault == "no up":
            del shapes["lora_up.weight"]
        return {key: shape for param, shape in shapes.items() if (key := self.how.key(self.layer, param)) is not None}


@dataclass
class Case:
    """A file."""

    made: list[Made]
    junk: dict[str, tuple[int, ...]]
    infos: dict[str, tuple[int, ...]] = field(default_factory=dict)
    owners: dict[str, list[Made]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.infos |= self.junk
        for one in self.made:
            self.metadata.update(one.how.metadata)
            for key, shape in one.infos().items():
                self.owners.setdefault(key, []).append(one)
                self.infos.setdefault(key, shape)

    def write(self, folder: str, order: Sequence[str]) -> Path:
        """Write the keys in an order; each tensor is filled with its key's number."""
        numbers = {key: float(number) for number, key in enumerate(self.infos, start=1)}
        path = hollow(Path(folder, "a.safetensors"), {key: (self.infos[key], "F32") for key in order}, self.metadata)
        with path.open("r+b") as stream:
            stream.seek(8 + int.from_bytes(stream.read(8), "little"))
            for key in order:
                stream.write(torch.full(self.infos[key], numbers[key]).numpy().tobytes())
        return path

    def key(self, number: float) -> str:
        return list(self.infos)[round(number) - 1]


FAULTS = ["", "", "", "", "wrong inputs", "wrong outputs", "no up", "two alphas"]
PARTS = [
    "lora_unet_",
    "unet.",
    "diffusion_model.",
    "lycoris_",
    "transformer.",
    "text_encoder.",
    "unet:",
    "bundle_emb.",
    "",
]
PARAMS = [
    "lora_down.weight",
    "lora_A.weight",
    "alpha",
    "lora_A.second.weight",
    "up",
    "dora_scale",
    "weight",
    "w_norm",
    "diff_b",
]
JUNK = st.one_of(
    st.text(min_size=1, max_size=30).filter(lambda text: text != "__metadata__"),
    st.builds(
        lambda part, layer, param: f"{part}{layer}.{param}",
        st.sampled_from(PARTS),
        st.sampled_from(["x", "mid_block.attentions.0.proj_in", "middle_block_1_proj_in", "0", "7:up", "conv_in"]),
        st.sampled_from(PARAMS),
    ),
)
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@st.composite
def files(draw: st.DrawFn) -> Case:
    """Draw a family's layers in its trainers' formats, mixed, some of them faulty, with other keys among them."""
    family = draw(st.sampled_from(sorted(WRITERS)))
    places = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        writer = draw(st.sampled_from(WRITERS[family]))
        names = list(rows(family, writer))
        # few layers, so that some are there twice
        layer = names[draw(st.sampled_from(places)) % len(names)]
        made.append(Made(family, writer, layer, draw(st.integers(1, 3)), draw(st.sampled_from(FAULTS))))
    return Case(made, draw(st.dictionaries(JUNK, SHAPES, max_size=4)))


@contextmanager
def resolved(case: Case, name: str, order: Sequence[str] = ()) -> Iterator[Network]:
    """Return a file on the model of a family."""
    with tempfile.TemporaryDirectory() as folder:
        path = case.write(folder, order or list(case.infos))
        yield Network(ParsedFile(AdapterFile.open(path)), [index(name)])


def unused(network: Network) -> list[tuple[str, str, str]]:
    return sorted((one.key, one.reason, one.detail) for one in network.report.unused)


def used(case: Case, network: Network) -> dict[Target, dict[str, set[str]]]:
    """Where an adapter is -> its tensors -> the keys that their numbers are of."""
    return {
        one.target: {
            name: {case.key(value) for value in tensor.unique().tolist()} for name, tensor in one.adapter.tensors()
        }
        for one in network.bindings
    }


def check_accounts(case: Case, network: Network) -> None:
    """Each key is in the report once and with a reason, or in an adapter, or the alpha of one, or an embedding."""
    left = [one.key for one in network.report.unused]
    assert len(left) == len(set(left))
    assert all(one.reason for one in network.report.unused)
    inside = {key for tensors in used(case, network).values() for keys in tensors.values() for key in keys}
    assert not inside & set(left)
    beside = {place_of(case, key)[:2] for key in inside}
    for key in case.infos.keys() - inside - set(left):
        component, module, param = place_of(case, key)
        assert (param == "alpha" and (component, module) in beside) or module in network.embeddings, key


def place_of(case: Case, key: str) -> tuple[str | None, str, str]:
    parsed = parse_key(key, case.metadata.get(key))[1]
    assert parsed is not None, key
    return parsed.component, parsed.module, parsed.param


@given(files())
@settings(max_examples=examples(60), deadline=None)
def test_every_key_is_used_or_spoken_of_and_no_layer_gets_anothers_numbers(case):
    name = case.made[0].family
    try:
        with resolved(case, name) as network:
            check_accounts(case, network)
            targets = {one.target: bound_rows(FAMILIES[name], one) for one in network.bindings}
            for target, tensors in used(case, network).items():
                for key in {key for keys in tensors.values() for key in keys} - case.junk.keys():
                    for made in case.owners[key]:
                        assert within(targets[target], rows(made.family, made.writer)[made.layer]), key
            if not case.junk:
                check_all_is_there(case, network)
    except UnknownFormatError:
        assert all(one.fault for one in case.made), "a good layer is enough for a file to be an adapter"


def check_all_is_there(case: Case, network: Network) -> None:
    """Return the layers whose adapter is whole and the only one, without numbered ones, which may be ambiguous."""
    named = [one for one in case.made if one.how.format != "cloneofsimo"]
    if len(named) < len(case.made):
        return
    left = {one.key for one in network.report.unused}
    places = [changed_by(one) for one in named]
    for made, place in zip(named, places, strict=True):
        if not made.fault and sum(bool(place & other) for other in places) == 1:
            assert not left & made.infos().keys()


def changed_by(made: Made) -> set[str]:
    """Return the model's layers that a layer of the file changes."""
    parsed = parse_key(next(iter(made.infos())))[1]
    assert parsed is not None
    place = index(made.family).find(parsed.module, flattened=parsed.flattened)
    assert place is not None, made
    return {one.path for one in place.windows}


@given(files(), st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_the_order_of_the_keys_makes_no_difference(case, chance):
    name, order = case.made[0].family, list(case.infos)
    chance.shuffle(order)
    outcomes = []
    for keys in (list(case.infos), order):
        try:
            with resolved(case, name, keys) as network:
                report = network.report
                outcomes.append((used(case, network), unused(network), report.format, report.architecture, report.hit))
        except UnknownFormatError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


@given(files(), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=examples(60), deadline=None)
def test_another_familys_model_gives_a_report(case, name):
    """Never an exception but the library's own, whatever accidentally fits."""
    with suppress(UnknownFormatError), resolved(case, name) as network:
        check_accounts(case, network)


EVERY_PARAM = [
    *("lora_up.weight", "lora_down.weight", "lora_mid.weight", "lora_up.bias", "alpha", "dora_scale", "scalar"),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "on_input", "weight"),
    *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    *("a1.weight", "a2.weight", "b1.weight", "b2.weight", "bm.weight", "diff", "diff_b", "set_weight"),
    *("w_norm", "b_norm", "oft_blocks", "oft_blocks.0", "oft_blocks.1", "oft_diag", "rescale", "bias_indices"),
    *("bias_values", "bias_size", "q_layer.weight", "p_layer.weight", "lambda_layer", "base_q", "base_p"),
    *("base_lambda", "lora_E", "ranknum", "ia3_l", "boft_R", "boft_s", "oft_R.weight", "oft_R.scaled_oft", "hra_u"),
    *("vera_lambda_b", "vera_lambda_d", "lora_magnitude_vector", "lora_embedding_A", "lora_embedding_B"),
]
TOGETHER = [
    ("lora_up.weight", "lora_down.weight"),
    ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    ("lokr_w1", "lokr_w2"),
    ("lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"),
    ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    ("a1.weight", "a2.weight", "b1.weight", "b2.weight"),
    ("q_layer.weight", "p_layer.weight", "lambda_layer"),
    ("bias_indices", "bias_values", "bias_size"),
    ("boft_R", "boft_s"),
    ("vera_lambda_b", "vera_lambda_d"),
    ("lora_up.weight", "lora_down.weight", "lora_E"),
    ("weight", "on_input"),
]
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 64, 320, 640, 768, 960, 1280])
ANY_SHAPE = st.lists(SIZES, max_size=5).map(tuple).filter(lambda shape: math.prod(shape) <= 2**21)
PLACES = {
    "lora_unet_": [
        "conv_in",  # (320, 4, 3, 3)
        "time_embedding_linear_1",  # (1280, 320)
        "down_blocks_0_attentions_0_proj_in",  # (320, 320, 1, 1)
        "down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k",  # (320, 768)
        "down_blocks_0_attentions_0_transformer_blocks_0_norm1",  # (320,)
    ],
    "unet.": ["down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q", "conv_norm_out"],
    "oft_unet_": ["mid_block_attentions_0_proj_in"],
    "base_model.model.": ["mid_block.attentions.0.proj_out"],
    "unet:": ["0", "4"],
}


@st.composite
def strange_files(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    """Parameters of any kinds in any shapes, on layers that are there."""
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(draw(st.integers(1, 4))):
        prefix = draw(st.sampled_from(sorted(PLACES)))
        layer = draw(st.sampled_from(PLACES[prefix]))
        params = [*draw(st.sampled_from(TOGETHER)), *draw(st.lists(st.sampled_from(EVERY_PARAM), max_size=2))]
        for param in params if prefix != "unet:" else ("up", "down"):
            found[f"{prefix}{layer}{':' if prefix == 'unet:' else '.'}{param}"] = draw(ANY_SHAPE)
    for param in draw(st.lists(st.sampled_from(["base_model.vera_A", "base_model.vera_B"]), max_size=2)):
        found[param] = draw(ANY_SHAPE)
    return found


@given(strange_files())
@settings(max_examples=examples(300), deadline=None)
def test_parameters_of_any_shape_are_used_or_spoken_of(infos):
    """Whatever shapes and kinds meet: no exception but the library's own, with a model and without."""
    with tempfile.TemporaryDirectory() as folder, suppress(LoraError):
        path = hollow(Path(folder, "a.safetensors"), {key: (shape, "F32") for key, shape in infos.items()})
        parsed = ParsedFile(AdapterFile.open(path))
        assert parsed.report().summary()
        network = Network(parsed, [index("sd1")])
        left = {one.key for one in network.report.unused}
        changed = {window.path for one in network.bindings for window in one.place.windows}
        for key in infos.keys() - left:
            one = parse_key(key)[1]
            assert one is not None, key
            place = index("sd1").find(one.module, flattened=one.flattened)
            assert one.module == FILE_WIDE or one.module.isdecimal() or (place is not None and place.name in changed), (
                key
            )
        assert changed or left == infos.keys(), "what all layers share is for nothing where none is changed"


KINDS = st.sampled_from(
    [(one, layer) for one in SAMPLES for layer, (kind, _, _) in LAYERS.items() if {kind, layer} & one.layers]
)
"""A kind, and a layer its parameters are made for."""
ON = st.sampled_from(
    ["linear", "conv 1x1", "conv 3x3, stride", "conv grouped", "embedding", "layer norm", "attention q"]
)
SMALL = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 24, 48]), max_size=4).map(tuple)


@given(KINDS, st.none() | ON, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_kind_with_a_parameter_gone_or_of_another_shape_is_whole_or_not_there(kind, other, data):
    """What is taken can be computed, whatever was done to its parameters, and on whatever layer it is."""
    sample, made_for = kind
    layer = other or made_for
    model = Model(LAYERS[layer][1]())
    tensors = sample.tensors(tuple(weight_of(Model(LAYERS[made_for][1]()), made_for).shape))
    for key in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2)):
        how = data.draw(st.sampled_from(["shape", "dtype", "gone"]))
        if how == "shape":
            tensors[key] = torch.rand(data.draw(SMALL)) * 0.1
        elif how == "dtype" and key in tensors:
            tensors[key] = tensors[key].to(data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.int64])))
        elif len(tensors) > 1:
            tensors.pop(key, None)
    name = NAMES.get(layer, "layer")
    prefix = sample.prefix.replace("layer", name if "." in sample.prefix[:-1] else name.replace(".", "_"))
    with tempfile.TemporaryDirectory() as folder, suppress(LoraError):
        if sample.config is not None:
            Path(folder, "adapter_config.json").write_text(json.dumps(sample.config))
        renamed = {key.replace(sample.prefix, prefix): value for key, value in tensors.items()}
        network = load_network(
            save(Path(folder, "adapter_model.safetensors"), renamed, sample.metadata), {"unet": model}
        )
        assert len(network.report.unused) == (0 if network.bindings else len(renamed))
        for one in network.bindings:
            assert network.delta_weight("unet", name).shape == one.target.shape
