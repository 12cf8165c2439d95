"""When a file was trained, where what its trainer meant by a parameter changed over time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def trained_on(metadata: Mapping[str, str]) -> date | None:
    """The day on which a training began, or the file was made; None where a header does not say, or says nonsense.

    Args:
        metadata: the header's: kohya's `ss_training_started_at` and `ss_training_finished_at`, in seconds since 1970,
            else `modelspec.date`, ISO 8601.
    """
    for name in ("ss_training_started_at", "ss_training_finished_at"):
        try:
            return (_EPOCH + timedelta(seconds=float(metadata.get(name, "")))).date()
        except (ValueError, OverflowError):
            continue
    try:
        return date.fromisoformat(metadata.get("modelspec.date", "")[:10])
    except ValueError:
        return None
