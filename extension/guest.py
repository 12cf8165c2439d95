"""Remora as a web UI calls it: the layer between a host file and the session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from lib_lora import LoraError

from .generation.activation import Passes
from .generation.options import Overridden, enabled, from_parameters, hashes_wanted, settings, to_parameters
from .generation.options import grammar as grammar_wanted
from .generation.outcomes import TagOutcome, read_tags
from .generation.paste import with_own_names, with_own_regions
from .generation.xyz import axes
from .hosts import Outcome, Remora, Used
from .kept.always_on import parameters
from .text import placed, regions
from .text.placed import PlacedTag
from .text.tag import Pass, Place, Tag

if TYPE_CHECKING:
    from lib_lora import Clock, Rows

    from .generation.activation import Activation
    from .generation.options import Values
    from .generation.session import Session
    from .hosts import Axis, Batch, Host
    from .kept.region_files import RegionFiles
    from .library.hashes import Hashes
    from .text.known import Known

logger = logging.getLogger(__name__)

_OFF = "Remora is turned off in the settings, so the web UI's own LoRA got the tag"
_TURN_ON = "turn on “Apply LoRA with Remora”"
_LOG = "read the log, and turn off the extension that it names"
_OTHER_MODEL = "load another model, or turn Remora off and on in the settings"


class Guest(Remora):
    """Implements `hosts.Remora` over one session."""

    def __init__(self, host: Host, session: Session, unloaded: Callable[[], None]) -> None:
        self._host = host
        self._session = session
        self._unloaded = unloaded

    @property
    def enabled(self) -> bool:
        if not enabled(self._host):
            self._session.model.try_again()  # once it is on again
            return False
        return not self._session.model.useless

    @property
    def grammar(self) -> bool | None:
        return grammar_wanted(self._host) if self.enabled else None

    @property
    def handed_back(self) -> str:
        reason = self._session.model.useless if enabled(self._host) else ""
        if reason:
            self._session.log.say(reason)
        return reason

    def batch(self, batch: Batch) -> Outcome:
        """Activate the LoRA of a batch in place of all others.

        Raises:
            LoraError: a tag, name or file failed and the settings stop the generation; no LoRA is active.
        """
        values = Overridden(self._host, batch.settings)
        wanted, written = settings(values), tuple(chain.from_iterable(batch.images))
        try:
            always, unread = self._session.always_tags(wanted.skip_bad)
            images, bad, words = _read(batch, self._session.names, has_comments=self._host.has_comments)
            apart = (*unread, *self._session.skip_or_raise(bad, wanted.skip_bad), *words)
            besides = [tag.without(batch.without) for tag in always]
            told = batch.seeds, batch.at, apart, batch.steps, batch.goes_on
            activation = self._session.begin_batch(images, wanted, besides, *told)
            notes = (*activation.notes, *activation.far_off(batch.steps, batch.cfg))
            advice = activation.advice_on(batch.without, batch.advice)
            activation = self._session.passes.latest = replace(activation, notes=notes, advice=advice)
        except BaseException as error:
            if not self._session.failed:
                self._session.failed = (TagOutcome.of_all(f"{type(error).__name__}: {error}"),)
            self._session.end()
            raise
        return Outcome(
            images=tuple(_used(activation, image, self._session.catalog.hashes) for image in range(activation.images)),
            settings=_parameters(values, activation, always, [*chain.from_iterable(images)], written),
            hashes_wanted=hashes_wanted(values),
            problems=_problems(activation),
            warnings=partial(self._session.warnings, self._session.passes),
        )

    def handed_over(self, images: Sequence[Sequence[str]], at: Pass) -> Outcome:
        why = self.handed_back
        advice = _OTHER_MODEL if why else _TURN_ON
        self._session.hand_over([TagOutcome(*one, "handed", why or _OFF, advice, why) for one in _tags(images)], at)
        return Outcome(warnings=partial(self._session.warnings, self._session.passes))

    @property
    def pictures(self) -> object:
        return self._session.passes

    def go_on_with(self, pictures: object) -> None:
        if isinstance(pictures, Passes):
            self._session.go_on_with(pictures)

    def text_key(self) -> Hashable:
        return self._session.last.text_key

    def text_keys(self) -> Sequence[Hashable]:
        return self._session.last.text_keys

    def image(self, index: int | None) -> None:
        self._session.use_image(index)

    def bytes_to_place(self) -> int:
        return self._session.model.bytes_to_place(self._session.last.active)

    def rows(self, rows: Rows | None) -> None:
        self._session.model.set_rows(rows)

    def clock(self, clock: Clock | None) -> None:
        self._session.model.set_clock(clock)

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        prompt = with_own_names(parameters, self._session.catalog)
        return _keep_regions(prompt, parameters, self._session.regions), from_parameters(parameters)

    def follow_model(self, at: Pass | None = None) -> bool:
        return self._session.follow_model(at)

    def model_changed(self) -> None:
        self._session.model_changed()

    def generation_ended(self) -> None:
        self._session.end()

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended; of pictures whose tags the host applied, nothing is known."""
        self._session.pictures_made(pictures if self.enabled else ())

    def cannot_apply(self, error: Exception, *, in_picture: bool) -> None:
        sentence = (
            f"the web UI's own LoRA could not be taken off the model ({type(error).__name__}: {error}), so it gets the "
            "tags, until another model is loaded or Remora is turned off and on in the settings"
        )
        logger.error("remora: %s", sentence, exc_info=error)
        self._session.model.fault = sentence
        if in_picture and not settings(self._host).skip_bad:
            self._session.failed = (TagOutcome.of_all(sentence),)
            raise LoraError(sentence) from error

    def ended_by(self, error: BaseException) -> None:
        self._session.ended_by(error)

    def failed(self, sentence: str, images: Sequence[Sequence[str]] = (), at: Pass = "base") -> Outcome:
        logger.error("remora: %s", sentence)
        tags = [TagOutcome(*one, "failed", sentence, _LOG, sentence) for one in _tags(images)]
        if not settings(self._host).skip_bad:
            self._session.failed = tuple(tags) or (TagOutcome.of_all(sentence),)
            raise LoraError(sentence)
        if tags:
            self._session.hand_over(tags, at)
        else:
            self._session.passes.note(sentence)
        return Outcome(problems=(sentence,), warnings=partial(self._session.warnings, self._session.passes))

    def app_started(self, app: Any) -> None:
        """Add Remora's routes to the host's FastAPI application, and log what does not work beside it."""
        from .api import add_routes  # fastapi is imported where a host serves with it

        add_routes(app, self._session)
        for sentence in self._host.conflicts() if self.enabled else ():  # last: it reads what others have
            logger.warning("remora: %s", sentence)

    def axes(self) -> Sequence[Axis]:
        return axes(self._session)

    def tab(self) -> Any:
        from .tab import build_tab  # gradio, too

        return build_tab()

    def unloaded(self) -> None:
        self._unloaded()


def _keep_regions(prompt: str, parameters: Mapping[str, str], kept: RegionFiles) -> str:
    """Store the regions that the prompt names; return the prompt with their names as they are here."""
    given = regions.read_parameter(parameters.get(regions.PARAMETER, ""))
    negative = parameters.get("Negative prompt", "")
    prompt, new = with_own_regions(prompt, given, kept.all, negative)
    for name, region in new.items():
        try:
            kept.keep(name, region)
        except (regions.RegionTextError, OSError) as error:
            logger.warning("remora: the region %s of the parameters text is not kept: %s", name, error)
    return prompt


def _used(activation: Activation, image: int, hashes: Hashes) -> tuple[Used, ...]:
    """Return the active LoRA of one image."""
    return tuple(
        Used(one.name, one.file.path, partial(hashes.known, one.file), partial(hashes.sha256, one.file))
        for of_entry in activation.active
        for one in of_entry.parts
        if activation.images == 1 or image in one.images
    )


def _read(
    batch: Batch, names: Known, *, has_comments: bool
) -> tuple[list[list[Tag]], dict[TagOutcome, LoraError], list[TagOutcome]]:
    """Parse the tags of each image; also return the tags that cannot be parsed, and the tags that are words."""
    images: list[list[Tag]] = []
    bad: dict[TagOutcome, LoraError] = {}
    words: dict[TagOutcome, None] = {}
    for written in batch.images:
        tags, unread, as_words = read_tags(written, names, batch.default, has_comments=has_comments)
        images.append([tag.without(batch.without) for tag in tags])
        bad |= unread
        words |= dict.fromkeys(as_words)
    return images, bad, list(words)


def _tags(images: Sequence[Sequence[str]]) -> list[tuple[Place, str]]:
    """Return the places and the names of the tags of a batch, each once."""
    tags = [PlacedTag.of(text, number) for texts in images for number, text in enumerate(texts)]
    return list(dict.fromkeys((tag.place, tag.name) for tag in tags))


def _problems(activation: Activation) -> tuple[str, ...]:
    """Return what the user is told; a LoRA with two tags may have the same sentence twice."""
    said = (*activation.skipped, *activation.warnings, *activation.notes, *activation.hints, *activation.several)
    return tuple(dict.fromkeys(said))


def _parameters(
    values: Values, activation: Activation, always: Sequence[Tag], own: Sequence[Tag], written: Sequence[str]
) -> dict[str, str]:
    """Return what the parameters text says of the settings and tags of active LoRA."""
    if not activation.active:
        return {}
    return {
        **to_parameters(values),
        **parameters(always, activation.always),
        **regions.parameters(tag.mask for tag in (*always, *own)),
        **placed.parameters(written),
    }
