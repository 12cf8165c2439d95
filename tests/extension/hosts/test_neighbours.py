"""Other extensions beside Remora: what each does that touches LoRA, by stand-ins made from what their sources do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import extension
from extension.generation.options import ENABLED
from lib_lora import RowsError
from tests.fakes.forge import KINDS, FakeForge

ALL = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def kind() -> str:
    return "forge_classic"  # whose layers are torch's, as A1111's


def pictures(p: Any) -> Tensor:
    return torch.stack(p.images)


def conflicts() -> tuple[str, ...]:
    assert extension._session is not None
    return tuple(extension._session.host.conflicts())


def script(web: FakeForge, **attributes: Any) -> ModuleType:
    """Load another extension's script."""
    module = ModuleType("script.py")
    vars(module).update(attributes)
    data = SimpleNamespace(script_class=None, path="script.py", basedir=".", module=module)
    web.modules["modules.scripts"].scripts_data.append(data)
    return module


def unet(web: FakeForge) -> Any:
    return web.model.forge_objects.unet.model.diffusion_model


def query(web: FakeForge) -> Any:
    return unet(web).input_blocks[1][1].transformer_blocks[0].attn2.to_q


# --- those that conflict ---


def test_nobody_is_named_who_is_not_there(web: FakeForge) -> None:
    script(web, title="ControlNet", Script=object)
    assert conflicts() == ()


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({"loradealer": 1, "load_loras_blocks": 1}, "Block Weight"),
        ({"lora_namer": 1, "setuploras": 1}, "Regional Prompter"),
        ({"composable_lora": 1, "ComposableLoraScript": 1}, "Composable LoRA"),
        ({"AttentionCouple": 1}, "Forge Couple"),
    ],
)
def test_an_extension_that_works_on_the_built_in_is_named_once(
    web: FakeForge, attributes: dict[str, Any], name: str
) -> None:
    script(web, **attributes)
    script(web, **attributes)  # a script class for each tab
    (sentence,) = conflicts()
    assert name in sentence


def test_half_of_the_marks_are_not_enough(web: FakeForge) -> None:
    script(web, loradealer=1)
    script(web, lora_namer=1)
    assert conflicts() == ()


class BlockWeight:
    """hako-mikan/sd-webui-lora-block-weight: edits the built-in's networks, and makes it load them anew each time."""

    def __init__(self, web: FakeForge) -> None:
        self.web, self.edited = web, 0

    def process(self, p: Any) -> None:
        self.web.model.current_lora_hash = None

    def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
        for network in sys.modules["networks"].loaded_networks:
            network.unet_multiplier = 0.0
            self.edited += 1
        assert extra_network_data["lora"][0].items[0] == "a"  # it reads the tags itself


@ALL
def test_block_weight_edits_nothing_and_breaks_nothing(web: FakeForge) -> None:
    want, bare = pictures(web.generate("cat<lora:a:1>")), pictures(web.generate("cat"))
    neighbour = BlockWeight(web)
    for _ in range(2):
        assert torch.equal(pictures(web.generate("cat<lora:a:1>", scripts=[neighbour])), want)
    assert neighbour.edited == 0
    assert torch.equal(pictures(web.generate("cat")), bare)


class RegionalPrompter:
    """hako-mikan/sd-webui-regional-prompter in latent mode: Linear's forward, and the built-in's loader, replaced."""

    def __init__(self, web: FakeForge) -> None:
        self.calls = 0
        self.networks = sys.modules["networks"]

    def __enter__(self) -> None:
        self.found, self.loader = nn.Linear.forward, self.networks.load_networks

        def forward(layer: nn.Linear, x: Tensor) -> Tensor:
            self.calls += 1
            return self.found(layer, x)

        def load_networks(*args: Any) -> None:
            self.loader(*args)

        nn.Linear.forward = forward
        self.networks.load_networks = load_networks

    def __exit__(self, *_: object) -> None:
        nn.Linear.forward = self.found


@pytest.mark.parametrize("kind", ["forge_classic", "reforge"])
def test_regional_prompter_puts_its_forward_on_top_and_takes_it_off(web: FakeForge) -> None:
    """T19: three times the same picture, and the one from before after it."""
    web.reload()
    for layer in unet(web).modules():
        if hasattr(layer, "ldm_patched_cast_weights"):
            layer.ldm_patched_cast_weights = False  # so that torch's forward is reached
    want = pictures(web.generate("cat<lora:a:1>"))
    neighbour = RegionalPrompter(web)
    for _ in range(3):
        with neighbour:
            assert torch.equal(pictures(web.generate("cat<lora:a:1>")), want)
    assert neighbour.calls
    assert torch.equal(pictures(web.generate("cat<lora:a:1>")), want)


class ForgeCouple:
    """Haoming02/sd-forge-couple: an attention patch that repeats the rows of the conditioned half."""

    def __init__(self, web: FakeForge) -> None:
        self.web = web

    def process(self, p: Any) -> None:
        """Nothing."""

    def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
        p.patches = {"attn2_patch": [lambda q, k, v, options: (q.repeat(3, 1, 1), k.repeat(3, 1, 1), v)]}


@ALL
def test_rows_that_attention_repeats_are_refused_where_they_would_be_mistaken(web: FakeForge) -> None:
    """Of a batch of two, [0, 1, 0, 1, 0, 1] might be three regions, and [0, 0, 0, 1, 1, 1] three windows."""
    neighbour = ForgeCouple(web)
    with pytest.raises(RowsError, match="batches of one"):
        web.generate("cat<lora:a:1>", "cat<lora:b:1>", scripts=[neighbour])
    alike = pictures(web.generate("cat<lora:a:1>", "dog<lora:a:1>"))
    assert torch.equal(pictures(web.generate("cat<lora:a:1>", "dog<lora:a:1>", scripts=[neighbour])), alike)
    alone = pictures(web.generate("cat<lora:a:1>"))
    assert torch.equal(pictures(web.generate("cat<lora:a:1>", scripts=[neighbour])), alone)


# --- those that do not ---


class Wildcards:
    """adieyal/sd-dynamic-prompts: another prompt for each image, put in place before the batches are made."""

    def __init__(self, prompts: list[str]) -> None:
        self.prompts = prompts

    def process(self, p: Any) -> None:
        p.all_prompts = list(self.prompts)

    def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
        """Nothing."""


@ALL
def test_dynamic_prompts_give_each_image_its_lora(web: FakeForge) -> None:
    """T9: the batch's first prompt has none, the others one each; so the parameters say."""
    prompts = ["cat", "cat<lora:a:1>", "cat<lora:b:1>"]
    p = web.generate("__x__", "__x__", "__x__", scripts=[Wildcards(prompts)])
    for image, prompt in zip(p.images, prompts, strict=True):
        alone = web.generate(prompt).images[0]
        assert (image - alone).abs().max() <= 2e-6 * alone.abs().max()
    assert [one.get("Lora hashes", "")[:1] for one in p.infotexts] == ["", "a", "b"]
    assert conflicts() == ()


@ALL
def test_a_detailer_generates_in_the_middle_with_loras_of_its_own(web: FakeForge) -> None:
    """T2, T11: ADetailer runs `process_images` for each picture; the batches after it have their own again."""
    want = pictures(web.generate("cat<lora:a:1>", "dog<lora:b:1>", batch_size=1))
    detail = pictures(web.generate("face<lora:unet:1>"))
    made: list[Tensor] = []

    class Detailer(Wildcards):
        def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
            if p.iteration == 1 and not made:  # the first batch is made
                made.append(torch.zeros(()))
                made.append(pictures(web.generate("face<lora:unet:1>")))
                web.modules["modules.extra_networks"].activate(p, extra_network_data)

    p = web.generate("x", "y", batch_size=1, scripts=[Detailer(["cat<lora:a:1>", "dog<lora:b:1>"])])
    assert torch.equal(pictures(p), want)
    assert torch.equal(made[1], detail)


def control_lllite(layer: nn.Module) -> Callable[[], None]:
    """Mikubill/sd-webui-controlnet, ControlLLLite: a closure over the layer's forward, which is put back."""
    found = layer.forward
    layer.forward = lambda x, **kwargs: found(x + 0.1, **kwargs)

    def off() -> None:
        layer.forward = found

    return off


def ip_adapter(layer: nn.Module) -> Callable[[], None]:
    """Replace the forward as IP-Adapter does: by a method of its own, bound to the module."""
    found = layer.forward

    def hacked(self: nn.Module, x: Tensor) -> Tensor:
        return found(x) + 0.1

    layer.forward = MethodType(hacked, layer)

    def off() -> None:
        layer.forward = found

    return off


def hidiffusion(layer: nn.Module) -> Callable[[], None]:
    """megvii-research/HiDiffusion: another class for the same object, with a forward of its own."""
    parent = type(layer)

    class Changed(parent):  # type: ignore[misc, valid-type]
        _parent = parent

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.to(x), self.bias.to(x))

    layer.__class__ = Changed

    def off() -> None:
        layer.__class__ = parent

    return off


@ALL
@pytest.mark.parametrize("put", [control_lllite, ip_adapter, hidiffusion])
@pytest.mark.parametrize("when", ["before", "between two", "before the texts"])
def test_layers_that_others_have_changed_are_served(web: FakeForge, put: Callable[..., Any], when: str) -> None:
    """T21: put on before an activation, between two of the same, or after it as scripts do; and taken off again."""
    web.reload()
    bare, with_lora = pictures(web.generate("cat")), pictures(web.generate("cat<lora:unet:1>"))
    off = put(query(web))
    changed_bare = pictures(web.generate("cat"))
    off()
    if when == "between two":
        web.generate("cat<lora:unet:1>")
    if when == "before the texts":

        class Late(Wildcards):
            def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
                nonlocal off
                off = put(query(web))

        changed = pictures(web.generate("x", scripts=[Late(["cat<lora:unet:1>"])]))
    else:
        off = put(query(web))
        changed = pictures(web.generate("cat<lora:unet:1>"))
    effect, want = (changed - changed_bare).flatten(), (with_lora - bare).flatten()
    assert torch.cosine_similarity(effect, want, dim=0) > 0.9
    off()
    assert torch.equal(pictures(web.generate("cat<lora:unet:1>")), with_lora)
    assert torch.equal(pictures(web.generate("cat")), bare)
    assert conflicts() == ()


@ALL
@pytest.mark.parametrize("second", [None, ["cat<lora:unet:1>"]])
def test_tiled_diffusion_has_regions_with_loras_of_their_own(
    web: FakeForge, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pkuliyi2015/multidiffusion-upscaler: in the middle of a step it puts a region's tags in force, and ends them.

    The rest of the step, and the next one, are made with the tags of the prompt; the built-in keeps the region's.
    """
    networks = web.modules["modules.extra_networks"]
    want = pictures(web.generate("cat<lora:a:1>", hr_prompt=second))
    _, region = networks.parse_prompts(["dog<lora:b:1>"])
    seen: list[tuple[str, ...]] = []

    def in_force() -> tuple[str, ...]:
        assert extension._session is not None
        return tuple(one.name for one in extension._session.last.active)

    class Regions(Wildcards):
        def after_extra_networks_activate(self, p: Any, extra_network_data: Any) -> None:
            self.p = p

    neighbour = Regions(["cat<lora:a:1>"])

    ends: list[bool] = []

    def step(_: int) -> None:
        neighbour.scripts, neighbour.p.scripts = neighbour.p.scripts, None
        networks.activate(neighbour.p, region)
        seen.append(in_force())
        networks.deactivate(neighbour.p, region)
        seen.append(in_force())
        assert not ends  # between two regions nothing is taken off the model
        neighbour.p.scripts = neighbour.scripts

    web.on_step = step
    assert extension._session is not None
    end = extension._session.end
    monkeypatch.setattr(extension._session, "end", lambda: (ends.append(True), end()))
    p = web.generate("x", scripts=[neighbour], hr_prompt=second)
    assert ends  # those of the picture
    assert torch.equal(pictures(p), want)
    passes = [("a",), *([("unet",)] if second else [])]
    assert seen == [names for own in passes for names in (("b",), own) * 2]
    assert "b: " not in p.infotexts[0]["Lora hashes"]
    assert conflicts() == ()


def test_the_built_in_is_given_a_regions_tags_where_it_serves(web: FakeForge) -> None:
    web.opts.data[ENABLED] = False
    p = web.generate("cat<lora:a:1>")
    networks = web.modules["modules.extra_networks"]
    _, region = networks.parse_prompts(["dog<lora:b:1>"])
    networks.activate(p, region)
    networks.deactivate(p, region)
    assert web.builtin.activated[-1] == ["b"]
    assert extension._session is not None
    assert extension._session.last.active == ()


def test_tiled_vae_has_nothing_to_do_with_it(web: FakeForge) -> None:
    """It replaces the forwards of the VAE's two halves, and the VAE is no part of ours."""
    web.reload()
    assert extension._session is not None
    assert set(extension._session.host.components()) == {"unet", "text_encoder"}
