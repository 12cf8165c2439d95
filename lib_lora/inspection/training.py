"""How a file was trained, by its header: kohya's and musubi-tuner's names, ModelSpec's, OneTrainer's and ai-toolkit's.

Sources: kohya-ss/sd-scripts train_network.py, flux_train_network.py and library/sai_model_spec.py; Nerogar/OneTrainer
modules/modelSaver/mixin/DtypeModelSaverMixin.py and modules/util/config/TrainConfig.py; ostris/ai-toolkit
toolkit/metadata.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from .distilled import distilled

_TRAINING: Mapping[str, tuple[str, ...]] = {
    "with": ("ss_network_module", "ot_config.peft_type", "software.name", "modelspec.implementation"),
    "options": ("ss_network_args",),
    "rank": ("ss_network_dim",),
    "alpha": ("ss_network_alpha",),
    "steps": ("ss_steps", "ss_max_train_steps", "training_info.step"),
    "epoch": ("ss_epoch", "training_info.epoch"),
    "epochs": ("ot_config.epochs",),
    "pictures": ("ss_num_train_images",),
    "batch size": ("ss_total_batch_size", "ss_batch_size_per_device", "ot_config.batch_size"),
    "resolution": ("ss_resolution", "ot_config.resolution", "modelspec.resolution"),
    "learning rate": ("ss_learning_rate", "ot_config.learning_rate"),
    "schedule": ("ss_lr_scheduler", "ot_config.learning_rate_scheduler"),
    "optimizer": ("ss_optimizer", "ot_config.optimizer.optimizer"),
    "prediction": ("modelspec.prediction_type",),
    "zero terminal SNR": ("ss_zero_terminal_snr", "ot_config.rescale_noise_scheduler_to_zero_terminal_snr"),
    "min SNR gamma": ("ss_min_snr_gamma",),
    "timesteps": ("ss_timestep_sampling", "ot_config.timestep_distribution"),
    "flow shift": ("ss_discrete_flow_shift",),
    "timestep shift": ("ot_config.timestep_shift",),
    "guidance": ("ss_guidance_scale",),
    "noise offset": ("ss_noise_offset", "ot_config.offset_noise_weight"),
    "limit of norms": ("ss_scale_weight_norms",),
}
"""What of the training a report shows -> where headers have it. A dot goes into an object that a text has as JSON."""
_OBJECTS = ("ot_config", "training_info", "software")
_NOTHING = frozenset({"", "none", "false"})
_V = ("ss_v_parameterization", "ot_config.force_v_prediction")
_LONGEST = 200


def trained(metadata: Mapping[str, str], name: str = "") -> dict[str, str]:
    """Return what the header says of the training, by the names for people.

    Args:
        metadata: the header's.
        name: of the file, without its ending; published names tell what a distilled LoRA was made for.
    """
    said = {**metadata, **{key: text for part in _OBJECTS for key, text in _flat(part, _object(metadata.get(part)))}}
    found = {shown: _first(said, keys) for shown, keys in _TRAINING.items()}
    if not found["prediction"] and _first(said, _V).lower() == "true":
        found["prediction"] = "v"
    made_for = distilled(name, metadata.get("ss_output_name", ""), header=metadata)
    found["distilled"] = "" if made_for is None else str(made_for)
    return {shown: value[:_LONGEST] for shown, value in found.items() if value}


def _object(text: str | None) -> object:
    """Return an object that a header has as JSON; None where it is none."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the texts, numbers and truth values of an object and of the objects in it, by their dotted names."""
    if not isinstance(value, dict):
        return
    for key, own in value.items():
        if isinstance(own, str | int | float):
            yield f"{name}.{key}", str(own)
        elif isinstance(own, dict) and name in _OBJECTS:
            yield from _flat(f"{name}.{key}", own)


def _first(said: Mapping[str, str], keys: Iterable[str]) -> str:
    values = [said.get(key, "").strip() for key in keys]
    return next((value for value in values if value.lower() not in _NOTHING), "")
