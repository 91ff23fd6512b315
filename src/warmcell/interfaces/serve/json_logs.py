"""The server's log: text or JSON lines, on stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def configure_logging(level: str, form: str, prefix: str = "") -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(levelname)s: {prefix}%(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":  # uvicorn reports every connection there
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
