"""Calls written as Python: `[weather(city="Rome", days=2), clock()]`, with literals only as arguments."""

from __future__ import annotations

import ast
import json

from router.message.events import Call


def pythonic_calls(text: str) -> list[Call] | None:
    """The calls of a whole text, or None if it is something else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    calls = [_call(node) for node in nodes]
    return [call for call in calls if call is not None] if nodes and None not in calls else None


def _call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
            json.dumps(arguments[keyword.arg])
        except (ValueError, TypeError, RecursionError):
            return None
    return Call(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))
