"""The level of Remora's loggers, where a host's root logger hides all but errors."""

from __future__ import annotations

import logging

LOGGERS = (__name__.partition(".")[0], "lib_lora")


class LogLevels:
    """The levels that Remora's loggers had before."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def set(self, level: int | str) -> None:
        """Set a level where none is set; idempotent."""
        for name in LOGGERS:
            logger = logging.getLogger(name)
            if logger.level == logging.NOTSET:
                self._before[name] = logger.level
                logger.setLevel(level)

    def restore(self) -> None:
        """Set the levels as they were before."""
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        self._before.clear()
