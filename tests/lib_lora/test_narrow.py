"""A LoRA of an ordinary model on one whose first layer takes more channels, as for inpainting, and the reverse."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network
from tests.fakes.files import save
from tests.families import families

FAMILIES = families()
FP64 = 1e-6  # files hold fp32


def unet(channels: int) -> nn.Module:
    model = nn.Module()
    model.conv_in = nn.Conv2d(channels, 16, 3, padding=1).double()
    model.other = nn.Conv2d(channels, 16, 3, padding=1).double()
    return model


def flux(channels: int) -> nn.Module:
    model = nn.Module()
    model.x_embedder = nn.Linear(channels, 24).double()
    return model


def random(*shape: int) -> Tensor:
    return torch.randn(*shape)


CONV = {
    "lora": {"lora_down.weight": random(3, 4, 3, 3), "lora_up.weight": random(16, 3, 1, 1)},
    "loha": {
        **{f"hada_w{i}_a": random(16, 3) for i in (1, 2)},
        **{f"hada_w{i}_b": random(3, 36) for i in (1, 2)},
    },
    "full": {"diff": random(16, 4, 3, 3), "diff_b": random(16)},
}
LINEAR = {
    "lora": {"lora_down.weight": random(3, 8), "lora_up.weight": random(24, 3)},
    "lokr": {"lokr_w1": random(4, 2), "lokr_w2": random(6, 4)},
    "full": {"diff": random(24, 8)},
}


def dense(params: dict[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the change of the narrow weight, by the definition of each kind, scale 1."""
    one = {name: value.double() for name, value in params.items()}
    if "diff" in one:
        return one["diff"]
    if "lokr_w1" in one:
        return torch.kron(one["lokr_w1"], one["lokr_w2"])
    if "hada_w1_a" in one:
        return ((one["hada_w1_a"] @ one["hada_w1_b"]) * (one["hada_w2_a"] @ one["hada_w2_b"])).reshape(shape)
    return (one["lora_up.weight"].flatten(1) @ one["lora_down.weight"].flatten(1)).reshape(shape)


@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("kind", CONV)
def test_a_convolution_with_more_channels(kind, mode, tmp_path):
    model, x = unet(9), torch.randn(2, 9, 5, 5, dtype=torch.float64)
    path = save(tmp_path / "a.safetensors", {f"lora_unet_conv_in.{name}": value for name, value in CONV[kind].items()})
    base = model.conv_in(x)
    engine = Engine({"unet": model})
    for multiplier in (1.0, -0.7, 0.0):
        report = engine.activate(Stack([Entry(path, multiplier)], mode=mode)).entries[0]
        assert (report.hit, report.unused) == (1, ())
        bias = CONV[kind].get("diff_b", torch.zeros(16)).double()
        change = F.conv2d(x[:, :4], dense(CONV[kind], (16, 4, 3, 3)), bias, padding=1)
        expected = base + multiplier * change
        assert (model.conv_in(x) - expected).abs().max() <= FP64 * expected.abs().max()
    engine.close()
    assert torch.equal(model.conv_in(x), base)


@pytest.mark.parametrize("kind", LINEAR)
def test_a_linear_layer_with_more_channels(kind, tmp_path):
    model, x = flux(48), torch.randn(2, 7, 48, dtype=torch.float64)
    tensors = {f"diffusion_model.img_in.{name}": value for name, value in LINEAR[kind].items()}
    path = save(tmp_path / "a.safetensors", tensors)
    base = model.x_embedder(x)
    engine = Engine({"transformer": model})
    engine.activate(Stack([Entry(path, 0.5)]))
    expected = base + 0.5 * F.linear(x[..., :8], dense(LINEAR[kind], (24, 8)))
    assert (model.x_embedder(x) - expected).abs().max() <= FP64 * expected.abs().max()
    whole = load_network(path, {"transformer": model}).delta_weight("transformer", "x_embedder", torch.float64)
    assert whole.shape == (24, 48)
    assert not whole[:, 8:].any()
    engine.close()


@pytest.mark.parametrize(("inside", "of_the_file"), [(384, 64), (128, 128), (384, 384)])
def test_flux_for_inpainting_and_control(inside, of_the_file, tmp_path):
    """FLUX.1 Fill takes 384 channels and FLUX.1 Control 128, where LoRA are mostly of dev's 64."""
    with torch.device("meta"):
        model = FluxTransformer2DModel(in_channels=inside, out_channels=64, num_layers=1, num_single_layers=1)
    tensors = {
        "transformer.x_embedder.lora_A.weight": random(2, of_the_file),
        "transformer.x_embedder.lora_B.weight": random(3072, 2),
        "transformer.single_transformer_blocks.0.proj_mlp.lora_A.weight": random(2, 3072),
        "transformer.single_transformer_blocks.0.proj_mlp.lora_B.weight": random(12288, 2),
    }
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"transformer": model}).report
    assert (report.architecture, report.hit, report.unused) == ("flux", 2, ())


def reasons(path, model: nn.Module) -> list[str]:
    report = load_network(path, {"unet": model}).report
    assert report.hit == 0
    assert {item.cause for item in report.unused} == {"shape"}
    return [item.detail for item in report.unused]


def test_more_channels_in_the_file_than_in_the_model_are_reported(tmp_path):
    tensors = {
        "lora_unet_conv_in.lora_down.weight": random(3, 9, 3, 3),
        "lora_unet_conv_in.lora_up.weight": random(16, 3),
    }
    details = reasons(save(tmp_path / "a.safetensors", tensors), unet(4))
    assert details == ["unet.conv_in is 16 x 4 x 3 x 3 in the model, 16 x 9 x 3 x 3 in the file"] * 2


def test_only_the_layer_that_takes_the_latents_may_be_wider(tmp_path):
    tensors = {f"lora_unet_other.{name}": value for name, value in CONV["lora"].items()}
    details = reasons(save(tmp_path / "a.safetensors", tensors), unet(9))
    assert details == ["unet.other is 16 x 9 x 3 x 3 in the model, 16 x 4 x 3 x 3 in the file"] * 2


def test_another_familys_latents_are_no_fewer_channels(tmp_path):
    """FLUX.1 and FLUX.2 Klein have first layers of one name, and latents that have nothing to do with each other."""
    klein = FAMILIES["flux2_klein"].build(False)
    tensors = {"lora_unet_img_in.lora_down.weight": random(3, 64), "lora_unet_img_in.lora_up.weight": random(3072, 3)}
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"transformer": klein}).report
    assert {item.cause for item in report.unused} == {"shape"}


def test_what_depends_on_the_weight_as_a_whole_is_reported(tmp_path):
    tensors = {f"lora_unet_conv_in.{name}": value for name, value in CONV["lora"].items()}
    tensors["lora_unet_conv_in.dora_scale"] = torch.ones(16, 1, 1, 1)
    assert len(reasons(save(tmp_path / "a.safetensors", tensors), unet(9))) == 3


# layers of a pruned model, whose weight is W P^T ------------------------------------------------------------------


class Pruned(nn.Module):
    """A layer of AdaLN on the basis of the times' embeddings, as vladmandic/sdnext has MiniMax-H3."""

    def __init__(self, seed: int, basis: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.time_embedder = nn.Module()
        if basis:
            self.time_embedder.register_buffer("basis", torch.linalg.qr(torch.randn(8, 3).double()).Q.T.contiguous())
        block = nn.Module()
        block.adaln_proj = nn.Module()
        block.adaln_proj.linear = nn.Linear(3, 24).double()
        self.transformer_blocks = nn.ModuleList([block])

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer_blocks[0].adaln_proj.linear(x)


PRUNED = "transformer.transformer_blocks.0.adaln_proj.linear"


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("strength", [1.0, -0.7])
def test_a_change_of_the_whole_weight_comes_onto_the_basis_of_a_pruned_model(tmp_path, kind, strength):
    path = save(tmp_path / "a.safetensors", {f"{PRUNED}.{name}": value for name, value in LINEAR[kind].items()})
    for seed in (1, 2):  # another basis is another model
        model, x = Pruned(seed).requires_grad_(False), torch.randn(5, 3).double()
        plain = model(x)
        engine = Engine({"transformer": model})
        assert engine.activate(Stack([Entry(path, strength)])).entries[0].hit == 1
        want = plain + strength * x @ (dense(LINEAR[kind], (24, 8)) @ model.time_embedder.basis.T).T
        assert (model(x) - want).abs().max() < FP64 * want.abs().max()
        engine.activate(Stack([Entry(path, strength)], mode="merged"))
        assert (model(x) - want).abs().max() < FP64 * want.abs().max()
        engine.deactivate()
        assert torch.equal(model(x), plain)


@pytest.mark.parametrize("inside", [8, 7])
def test_without_a_basis_of_that_width_it_is_of_another_shape(tmp_path, inside):
    tensors = {f"{PRUNED}.lora_down.weight": random(2, inside), f"{PRUNED}.lora_up.weight": random(24, 2)}
    model = Pruned(1, basis=inside != 8)
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"transformer": model}).report
    assert (report.hit, {one.cause for one in report.unused}) == (0, {"shape"})
