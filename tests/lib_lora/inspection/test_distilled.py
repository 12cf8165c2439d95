"""The settings that published distilled LoRA were made for, by their names."""

from __future__ import annotations

import pytest

from lib_lora.inspection.distilled import distilled

PUBLISHED = {
    "pytorch_lora_weights": None,
    "lcm-lora-sdv1-5": ("LCM", (2, 8), (1.0, 2.0)),
    "LCM_LoRA_SDXL": ("LCM", (2, 8), (1.0, 2.0)),
    "sdxl_lightning_4step_lora": ("Lightning", (4, 4), (1.0, 1.0)),
    "sdxl_lightning_8step_lora": ("Lightning", (8, 8), (1.0, 1.0)),
    "Qwen-Image-Lightning-8steps-V2.0-bf16": ("Lightning", (8, 8), (1.0, 1.0)),
    "Wan2.2-Lightning_T2V-A14B-4steps-lora_HIGH_fp16": ("Lightning", (4, 4), (1.0, 1.0)),
    "Hyper-SD15-1step-lora": ("Hyper-SD Unified", (1, 1), (1.0, 1.0)),
    "Hyper-SDXL-8steps-lora": ("Hyper-SD", (8, 8), (1.0, 1.0)),
    "Hyper-SDXL-8steps-CFG-lora": ("Hyper-SD", (8, 8), (5.0, 8.0)),
    "Hyper-SD3-4steps-CFG-lora": ("Hyper-SD", (4, 4), (3.0, 7.0)),
    "Hyper-FLUX.1-dev-8steps-lora": ("Hyper-SD", (8, 8), (1.0, 3.5)),
    "dmd2_sdxl_4step_lora_fp16": ("DMD2", (4, 4), (1.0, 1.0)),
    "TCD-SDXL-LoRA": ("TCD", (4, 8), (1.0, 1.0)),
    "pcm_sdxl_smallcfg_4step_converted": ("PCM", (4, 4), (1.0, 2.0)),
    "pcm_sdxl_normalcfg_8step_converted": ("PCM", (8, 8), (2.0, 9.0)),
    "pcm_sdxl_lcmlike_lora_converted": ("PCM", (2, 8), (1.0, 2.0)),
    "flash_sdxl": ("Flash Diffusion", (4, 4), (1.0, 1.0)),
    "FLUX.1-Turbo-Alpha": ("Turbo Alpha", (8, 8), (1.0, 3.5)),
    "sd_xl_turbo_lora_v1": ("Turbo", (4, 4), (1.0, 2.5)),
    "Wan21_CausVid_14B_T2V_lora_rank32": ("CausVid", (4, 12), (1.0, 1.0)),
    "Wan21_T2V_14B_lightx2v_cfg_step_distill_lora_rank32": ("LightX2V", (4, 4), (1.0, 1.0)),
    # no distilled ones, though their names have such words
    "z_image_turbo_style": None,
    "lightning_strike": None,
    "hyperrealism": None,
    "flux_hyperrealistic": None,
    "lightning_lora": None,
    # their settings are in no source
    "pcm_deterministic_4step_shift3": None,
    "flash-sd3": None,
    "flash_photography": None,
    "my_character_2000steps": None,
    "turbo": None,
}


def test_published_names_tell_what_the_files_were_made_for() -> None:
    found = {name: distilled(name) for name in PUBLISHED}
    assert {name: one and (one.method, one.steps, one.cfg) for name, one in found.items()} == PUBLISHED


def test_the_name_in_training_counts_where_the_file_was_renamed() -> None:
    found = distilled("fast", "sdxl_lightning_4step_lora")
    assert found is not None
    assert (found.steps, found.sampler, found.scheduler) == ((4, 4), "Euler", "SGM Uniform")
    assert distilled("lcm-lora-folder/zorp") is None, "the folder of a file says nothing of it"


@pytest.mark.parametrize(
    ("steps", "cfg", "warning"),
    [
        (4, 1.0, ""),
        (8, 2.0, ""),
        (None, None, ""),
        (30, 1.0, "was made for 4 steps, not 30"),
        (4, 7.0, "was made for a CFG scale of 1, not 7"),
        (1, 7.5, "was made for 4 steps, not 1 and for a CFG scale of 1, not 7.5"),
    ],
)
def test_settings_that_are_far_off_are_told(steps: int | None, cfg: float | None, warning: str) -> None:
    found = distilled("dmd2_sdxl_4step_lora")
    assert found is not None
    assert found.warning(steps, cfg) == warning


def test_more_steps_are_not_far_off_where_the_authors_say_that_any_number_will_do() -> None:
    warnings = {name: found.warning(30, 1.0) for name in PUBLISHED if (found := distilled(name)) is not None}
    silent = {"TCD-SDXL-LoRA", "sd_xl_turbo_lora_v1", "Hyper-SD15-1step-lora"}
    assert {name for name, warning in warnings.items() if not warning} == silent
    unified = distilled("Hyper-SD15-1step-lora")
    assert unified is not None
    assert unified.sampler == "TCD"


def test_what_no_source_says_is_left_out() -> None:
    found = distilled("Wan2.2-Lightning_T2V-A14B-4steps-lora_HIGH_fp16")
    assert found is not None
    assert (found.sampler, found.scheduler, found.shift) == ("", "", None)


def test_the_header_counts_more_than_the_name():
    header = {"num_inference_steps": "4", "shift": "12", "guidance_scale": "0"}
    told = distilled("turbo", header=header)
    assert told is not None
    assert (told.method, told.steps, told.shift, told.cfg) == ("its header", (4, 4), 12.0, (1.0, 1.0))
    named = distilled("Wan21_T2V_14B_lightx2v_step_distill", header={"flow_shift": "3", "steps": "8", "alpha": "8"})
    assert named is not None
    assert (named.method, named.steps, named.shift) == ("LightX2V", (8, 8), 3.0)
    for training in ({"steps": "4"}, {"steps": "3000", "shift": "3"}, {"steps": "nan", "cfg": "x"}, {"ss_steps": "8"}):
        assert distilled("style", header=training) is None
