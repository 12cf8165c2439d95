"""Remora as a web UI calls it: the layer between a host file and the session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from lib_lora import LoraError

from .generation.options import Overridden, enabled, from_parameters, hashes_wanted, settings, to_parameters
from .generation.options import grammar as grammar_wanted
from .generation.paste import with_own_names, with_own_regions
from .generation.session import Activation, Skipped
from .generation.xyz import axes
from .hosts import Outcome, Used
from .kept.always_on import parameters
from .text import placed, regions
from .text.placed import PlacedTag
from .text.prompt import NOT_CLOSED, PromptError, parse_arguments
from .text.tag import Pass, Tag

if TYPE_CHECKING:
    from lib_lora import Clock, Rows

    from .generation.options import Values
    from .generation.session import Session
    from .hosts import Axis, Batch, Host

logger = logging.getLogger(__name__)

_COMMENT = (
    "; if its name has a #: AUTOMATIC1111 and Forge take the rest of the line for a comment, so rename the file, or "
    "turn off “Enable comments” in their settings"
)


class Guest:
    """Implements `hosts.Remora` over one session."""

    def __init__(self, host: Host, session: Session, unloaded: Callable[[], None]) -> None:
        self._host = host
        self._session = session
        self._unloaded = unloaded

    @property
    def enabled(self) -> bool:
        """Return whether Remora applies LoRA tags; if not, the host applies them itself."""
        if not enabled(self._host):
            self._session.useless = self._session.fault = ""  # to be tried again once it is on
            return False
        return not self._session.useless

    @property
    def grammar(self) -> bool:
        """Return whether brackets around tags mean something."""
        return grammar_wanted(self._host)

    @property
    def handed_back(self) -> str:
        """Return why the host applies the tags itself though Remora is on; empty if Remora applies them or is off."""
        reason = self._session.useless if enabled(self._host) else ""
        if reason:
            self._session.say(reason)
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
            bad: dict[Skipped, LoraError] = {}
            images = [self._read(arguments, batch, bad) for arguments in batch.images]
            unread += self._session.skip_or_raise(bad, wanted.skip_bad)
            besides = [tag.without(batch.without) for tag in always]
            unheeded = placed.unread(written)
            activation = self._session.begin_batch(images, wanted, besides, batch.seeds, batch.at, unheeded)
            notes = (*activation.notes, *activation.far_off(batch.steps, batch.cfg))
            activation = replace(activation, left_out=(*unread, *activation.left_out), notes=notes)
            self._session.last = activation
        except BaseException as error:
            if not self._session.failed:
                self._session.failed = (Skipped("", f"{type(error).__name__}: {error}"),)
            self._session.end()
            raise
        return Outcome(
            images=tuple(self._used(activation, image) for image in range(activation.images)),
            settings=_parameters(values, activation, always, [*chain.from_iterable(images)], written),
            hashes_wanted=hashes_wanted(values),
            problems=_problems(activation),
            warnings=self._session.warnings,
        )

    def text_key(self) -> Hashable:
        """Return a key of everything that changes the text encoders' output; equal keys mean equal outputs."""
        return self._session.last.text_key

    def text_keys(self) -> Sequence[Hashable]:
        """Return the same key for each image of the batch."""
        return self._session.last.text_keys

    def image(self, index: int | None) -> None:
        """Make the text encoders use the LoRA of this image of the batch; None, of the image of each row."""
        self._session.use_image(index)

    def bytes_to_place(self) -> int:
        """Return the bytes of the GPU that the active LoRA will take beside what they take now."""
        return self._session.bytes_to_place()

    def rows(self, rows: Rows | None) -> None:
        """Set which image each row of a denoiser call belongs to; None as `lib_lora.Engine.set_rows`."""
        self._session.set_rows(rows)

    def clock(self, clock: Clock | None) -> None:
        """Set the clock that tells the step of each denoiser call."""
        self._session.set_clock(clock)

    def pasted(self, parameters: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
        """Return the prompt of a pasted parameters text, with LoRA names as they are here, and its settings."""
        prompt = with_own_names(parameters, self._session.catalog)
        return self._with_own_regions(prompt, parameters), from_parameters(parameters)

    def _with_own_regions(self, prompt: str, parameters: Mapping[str, str]) -> str:
        """Store the regions that the prompt names; return the prompt with their names as they are here."""
        given = regions.read_parameter(parameters.get(regions.PARAMETER, ""))
        prompt, new = with_own_regions(prompt, given, self._session.regions.all)
        for name, region in new.items():
            try:
                self._session.regions.keep(name, region)
            except (regions.RegionTextError, OSError) as error:
                logger.warning("remora: the region %s of the parameters text is not kept: %s", name, error)
        return prompt

    def follow_model(self, at: Pass | None = None) -> bool:
        """Move to the host's present model, even if the host did not report a change."""
        return self._session.follow_model(at)

    def model_changed(self) -> None:
        """Handle that the host loaded a model: the next batch activates its LoRA on it."""
        self._session.model_changed()

    def generation_ended(self) -> None:
        """Deactivate all LoRA."""
        self._session.end()

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended; of pictures whose tags the host applied, nothing is known."""
        self._session.pictures_made(pictures if self.enabled else ())

    def cannot_apply(self, error: Exception, *, in_picture: bool) -> None:
        """Leave the tags to the host from now on, until Remora is turned off and on or another model is loaded.

        Raises:
            LoraError: a picture is being made, and the settings stop the generation.
        """
        sentence = (
            f"the web UI's own LoRA could not be taken off the model ({type(error).__name__}: {error}), so it gets the "
            "tags, until another model is loaded or Remora is turned off and on in the settings"
        )
        logger.error("remora: %s", sentence, exc_info=error)
        self._session.fault = sentence
        if in_picture and not settings(self._host).skip_bad:
            self._session.failed = (Skipped("", sentence),)
            raise LoraError(sentence) from error

    def failed(self, sentence: str) -> None:
        """Log an error and show it in the tab: tags of the present picture have no effect.

        Raises:
            LoraError: the settings stop the generation.
        """
        logger.error("remora: %s", sentence)
        self._session.failed = (Skipped("", sentence),)
        if not settings(self._host).skip_bad:
            raise LoraError(sentence)

    def app_started(self, app: Any) -> None:
        """Add Remora's routes to the host's FastAPI application."""
        from .api import add_routes  # fastapi is imported where a host serves with it

        add_routes(app, self._session)

    def axes(self) -> Sequence[Axis]:
        """Return what X/Y/Z plots can vary."""
        return axes(self._session)

    def tab(self) -> Any:
        """Return the tab as gradio Blocks."""
        from .tab import build_tab  # gradio, too

        return build_tab()

    def unloaded(self) -> None:
        """Handle that the host unloads its scripts."""
        self._unloaded()

    def _used(self, activation: Activation, image: int) -> tuple[Used, ...]:
        catalog = self._session.catalog
        return tuple(
            Used(one.name, one.file.path, partial(catalog.known_hash, one.file), partial(catalog.sha256, one.file))
            for one in activation.active
            if activation.images == 1 or image in one.images
        )

    def _read(self, arguments: Sequence[str], batch: Batch, bad: dict[Skipped, LoraError]) -> list[Tag]:
        """Parse one image's tags; those that cannot be parsed go to `bad`."""
        tags, names = [], self._session.names
        for written in arguments:
            one = written if isinstance(written, PlacedTag) else PlacedTag(written)
            if one.limits.negative and not one.meant:
                continue  # words
            try:
                if one.is_open:
                    why = NOT_CLOSED + (_COMMENT if self._host.has_comments else "")
                    raise PromptError(f"<lora:{_first_line(one)}", one.start - len("<lora:"), why, "")
                tag = parse_arguments(one, batch.default, names)
                tags.append((one.limits.applied(tag) if one.meant else tag).without(batch.without))
            except LoraError as error:
                bad[Skipped.unread(_first_line(one) if one.is_open else str(one), error)] = error
        return tags


def _problems(activation: Activation) -> tuple[str, ...]:
    """Return what the user is told; a LoRA with two tags may have the same sentence twice."""
    said = (*activation.skipped, *activation.warnings, *activation.notes, *activation.unread)
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


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
