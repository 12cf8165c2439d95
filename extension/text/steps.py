"""Steps as the first extensions for AUTOMATIC1111's web UI count them, so that saved prompts keep their pictures.

They read a counter that the web UI writes at the end of a step: it says 0 in the first step and in the second, and
n - 1 in step n (all from 0). Sources: cheald/sd-webui-loractl loractl/lib/utils.py, `calculate_weight`;
hako-mikan/sd-webui-lora-block-weight scripts/lora_block_weight.py, `denoiser_callback`.
"""

from __future__ import annotations

from dataclasses import replace

from lib_lora import Amount, Curve, Moment, Window


class TagCurve(Curve):
    """The points of a tag. A pass of two steps is too short for the formula, and goes from end to end."""

    def at(self, moment: Moment | None) -> float:
        """Return the value at a moment, by that counter.

        Raises:
            MomentError: the moment lacks what the curve depends on.
        """
        if moment is None or self.unit != "step" or moment.step is None:
            return super().at(moment)
        if self.points[-1][0] > 1.0:
            return super().at(replace(moment, step=max(moment.step - 1, 0)))
        if moment.steps is not None and moment.steps > 2:
            moment = replace(moment, step=max(moment.step - 1, 0), steps=moment.steps - 1)
        return super().at(moment)


def amount_by_host(written: Amount) -> Amount:
    """Return an amount of a tag, whose places are counted by that counter."""
    return TagCurve(written.points, written.unit, written.shape) if isinstance(written, Curve) else written


def window_by_host(written: Window) -> Window:
    """Return the window of a tag: as the counter says 0 twice, a start or stop at step 1 is one at 0."""
    start, stop = (0.0 if number == 1 else number for number in (written.start, written.stop))
    return replace(written, start=start, stop=stop, within=written.within and window_by_host(written.within))


class TurnByHost(Window):
    """A turn of `[a|b]`: the web UI reads the same counter, so that the first option has the first two steps.

    Source: AUTOMATIC1111/stable-diffusion-webui modules/prompt_parser.py, `reconstruct_cond_batch`.
    """

    def holds(self, moment: Moment) -> bool:
        """Tell whether it is this turn, by that counter, within the window around it."""
        counted = moment if moment.step is None else replace(moment, step=max(moment.step - 1, 0))
        return Window(turn=self.turn).holds(counted) and (self.within is None or self.within.holds(moment))
