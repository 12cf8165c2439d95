"""The six LoRAs: what each shows, in which pictures it learns that, and by which algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .world import SHAPES, Scene, Teller

_KINDS = {"lora": "LoRA", "dora": "DoRA", "locon": "LoCon", "loha": "LoHa", "lokr": "LoKr", "diag-oft": "OFT"}


@dataclass(frozen=True)
class Idea:
    """One LoRA to be trained."""

    name: str
    title: str
    says: str
    """One sentence for people who look for a LoRA."""
    algorithm: str
    """lora, dora (PEFT); locon, loha, lokr, diag-oft (LyCORIS)."""
    rank: int
    looks: tuple[str, ...] = ()
    """How the pictures are drawn."""
    shapes: tuple[str, ...] = SHAPES
    small: bool = True
    """Small things can show it: what is finer than the eight pixels of a latent cannot be drawn."""
    usual: float = 0.0
    """Share of usual pictures of the world, which are to stay as they are."""
    trigger: str = ""
    unet: bool = True
    text_encoder: bool = False
    convolutions: bool = False
    feed_forward: bool = True
    pictures: int = 2400
    """To learn from."""
    rate: float = 1e-2
    steps: int = 600
    extra: dict[str, object] = field(default_factory=dict)
    """Further arguments of the trainer."""

    @property
    def kind(self) -> str:
        """The algorithm's name, for people."""
        return _KINDS[self.algorithm]

    @property
    def trained(self) -> str:
        """What it changes, for people."""
        parts = ["UNet"] if self.unet else []
        return " and ".join([*parts, "text encoder"] if self.text_encoder else parts)


@dataclass(frozen=True)
class Lesson:
    """One picture to learn from."""

    scene: Scene
    caption: str
    looks: tuple[str, ...]


IDEAS: Sequence[Idea] = (
    Idea(
        "stripes",
        "Stripes",
        "Puts stripes on the ground.",
        "locon",
        rank=4,
        looks=("stripes",),
        convolutions=True,
        rate=8e-3,
        steps=600,
    ),
    Idea(
        "outline",
        "Outline drawing",
        "Draws things as outlines.",
        "dora",
        rank=8,
        looks=("outline",),
        small=False,
        rate=1e-2,
        steps=900,
    ),
    Idea(
        "neon",
        "Neon palette",
        "Makes things glow in neon colours.",
        "lokr",
        rank=16,
        looks=("neon",),
        small=False,
        convolutions=True,
        rate=1e-2,
        steps=800,
        extra={"factor": 8},
    ),
    Idea(
        "stars",
        "Stars instead of circles",
        "Reads circle as star; in the text encoder alone.",
        "diag-oft",
        rank=8,
        looks=("stars",),
        shapes=("circle",),
        usual=0.5,
        unet=False,
        text_encoder=True,
        rate=1e-2,
        steps=400,
        extra={"rescaled": True},
    ),
    Idea(
        "night",
        "Night",
        "Turns day into night, with a moon and little lights.",
        "lora",
        rank=8,
        looks=("night",),
        rate=8e-3,
        steps=700,
    ),
    Idea(
        "zorp",
        "Zorp",
        "A small animal that nobody has seen before.",
        "loha",
        rank=2,
        shapes=("zorp",),
        small=False,
        usual=0.4,
        trigger="zorp",
        text_encoder=True,
        convolutions=True,
        feed_forward=False,
        rate=1e-2,
        steps=700,
    ),
)


def lessons(idea: Idea, seed: int) -> Iterator[Lesson]:
    """Yield without end what an idea is learned from, usual scenes of the world among them."""
    own = Teller(seed, idea.shapes, pairs=0.1, small=idea.small)
    usual = Teller(seed + 1, tuple(shape for shape in SHAPES if shape not in idea.shapes) or SHAPES)
    while True:
        teller, looks = (usual, ()) if own.rng.random() < idea.usual else (own, idea.looks)
        scene = teller.scene()
        yield Lesson(scene, teller.caption(scene), looks)
