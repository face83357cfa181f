"""RL4Sys's logging: a logger whose methods take keywords, and a configuration whose format shows them."""

from __future__ import annotations

import json
import logging
import logging.config
import os
from enum import Enum
from typing import Any

import numpy as np

from rl4sys_zmq.config.options import check_value, log_level
from rl4sys_zmq.errors import ConfigError


class LogLevel(Enum):
    """The names of the logging levels."""

    DEBUG, INFO, WARNING, ERROR, CRITICAL = "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"


class StructuredLogger:
    """The logger of the standard library with this name, with methods that take a text and keywords.

    The attribute ``context`` of a record has the keywords as JSON; values that JSON does not have become text.
    `RL4SysLogConfig` has a format that shows it. The program's logging configuration decides about the level, also with
    `debug`, as in RL4Sys.
    """

    def __init__(self, name: str, debug: bool = False) -> None:
        self.logger, self.debug_mode = logging.getLogger(name), debug

    def debug(self, msg: str, **context: object) -> None:
        """Log a text and its context at level DEBUG."""
        self._log(logging.DEBUG, msg, context)

    def info(self, msg: str, **context: object) -> None:
        """Log a text and its context at level INFO."""
        self._log(logging.INFO, msg, context)

    def warning(self, msg: str, **context: object) -> None:
        """Log a text and its context at level WARNING."""
        self._log(logging.WARNING, msg, context)

    def error(self, msg: str, **context: object) -> None:
        """Log a text and its context at level ERROR."""
        self._log(logging.ERROR, msg, context)

    def _log(self, level: int, msg: str, context: dict[str, object]) -> None:
        if self.logger.isEnabledFor(level):  # the line of the record is the program's, two calls up
            shown = json.dumps(context, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))
            self.logger.log(level, msg, extra={"context": shown}, stacklevel=3)


class RL4SysLogConfig:
    """The logging of a program, as RL4Sys's programs configure it. Nothing is configured before `setup_logging`."""

    DEFAULT_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    STRUCTURED_FORMAT = f"{DEFAULT_FORMAT} - %(context)s"

    @staticmethod
    def get_default_config(
        log_level: str | LogLevel = "INFO", log_file: str | None = None, structured_logging: bool = False
    ) -> dict[str, Any]:
        """Return a configuration for `logging.config.dictConfig`: all records of the process to the standard output.

        `log_file` is a file to which they are appended as well. With `structured_logging`, the format has the context of
        `StructuredLogger`; other records have an empty one.

        Raises:
            ConfigError: If there is no such level.
        """
        level = _level(log_level)
        form = RL4SysLogConfig.STRUCTURED_FORMAT if structured_logging else RL4SysLogConfig.DEFAULT_FORMAT
        handlers: dict[str, dict[str, Any]] = {"console": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}}
        if log_file:
            handlers["file"] = {"class": "logging.FileHandler", "filename": log_file, "mode": "a"}
        formatter = {"()": "logging.Formatter", "fmt": form, "datefmt": "%Y-%m-%d %H:%M:%S", "defaults": {"context": "{}"}}
        return {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"rl4sys": formatter},
            "handlers": {name: {**handler, "level": level, "formatter": "rl4sys"} for name, handler in handlers.items()},
            "root": {"level": level, "handlers": [*handlers]},
        }

    @staticmethod
    def setup_logging(
        config_dict: dict[str, Any] | None = None,
        log_level: str | LogLevel = "INFO",
        log_file: str | None = None,
        debug: bool = False,
    ) -> None:
        """Configure the logging of the whole process.

        `config_dict` is for `logging.config.dictConfig`. If it is None, `get_default_config` gives it, from the other
        arguments, with the level DEBUG if `debug` is True.

        Raises:
            ConfigError: If the configuration is invalid, or the file cannot be opened.
        """
        config = config_dict or RL4SysLogConfig.get_default_config("DEBUG" if debug else log_level, log_file)
        try:
            logging.config.dictConfig(config)
        except (ValueError, TypeError, AttributeError, ImportError) as exc:
            raise ConfigError(f"the logging configuration is invalid: {exc.__cause__ or exc}") from exc


def setup_rl4sys_logging(debug: bool = False, log_file: str | None = None) -> None:
    """Configure the logging of the whole process, at level DEBUG if `debug` is True, and in `log_file` as well.

    The environment variables ``RL4SYS_DEBUG`` (true, 1 or yes), ``RL4SYS_LOG_LEVEL`` and ``RL4SYS_LOG_FILE`` apply where no
    argument is given.

    Raises:
        ConfigError: As for `RL4SysLogConfig.setup_logging`.
    """
    debug = debug or os.environ.get("RL4SYS_DEBUG", "").lower() in ("true", "1", "yes")
    level, file = os.environ.get("RL4SYS_LOG_LEVEL", "INFO"), log_file or os.environ.get("RL4SYS_LOG_FILE")
    RL4SysLogConfig.setup_logging(None, level, file, debug)


def _level(value: str | LogLevel) -> str:
    return check_value("log_level", str(value.value if isinstance(value, LogLevel) else value).upper(), log_level)
