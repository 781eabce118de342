"""Files of prompts: conversations that people wrote, without lengths or times.

MT-bench   JSON lines with `turns`
ShareGPT   a JSON list of objects with `conversations`, each a list of {"from", "value"}
any other  plain text, one prompt per paragraph
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workers.errors import ConfigError

Conversation = tuple[str, ...]  # its user turns
_USERS = ("human", "user")


def read_conversations(path: Path) -> list[Conversation]:
    """Every conversation in the file. Raises ConfigError if there is none."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompts in {path}: {error}") from error
    if text.startswith("["):
        conversations = [_sharegpt(path, index, item) for index, item in enumerate(_json(path, text))]
    elif text.startswith("{"):
        conversations = [
            _mt_bench(path, number, line) for number, line in enumerate(text.splitlines(), start=1)
        ]
    else:
        conversations = [(paragraph.strip(),) for paragraph in text.split("\n\n") if paragraph.strip()]
    conversations = [turns for turns in conversations if turns]
    if not conversations:
        raise ConfigError(f"{path} has no prompts")
    return conversations


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


def _sharegpt(path: Path, index: int, item: Any) -> Conversation:
    try:
        return tuple(
            turn["value"] for turn in item["conversations"] if turn["from"] in _USERS and turn["value"]
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, item {index} is no ShareGPT conversation: it wants `conversations`, "
            "a list of objects with `from` and `value`"
        ) from error


def _mt_bench(path: Path, number: int, line: str) -> Conversation:
    try:
        item: Any = json.loads(line)
        turns = item["turns"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, line {number} is no MT-bench question: it wants JSON with `turns`; "
            "traces are given with --trace"
        ) from error
    return tuple(str(turn) for turn in turns)
