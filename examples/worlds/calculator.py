"""The `calculate` tool, which all domains have: arithmetic in text, without ever evaluating code."""

import ast
import operator
import re
from collections.abc import Callable

from examples.worlds.world import Refusal, World

CHARACTERS = re.compile(r"[0-9+\-*/(). ]*")
MAX_EXPRESSION = 500  # characters; deeper nesting is nobody's arithmetic

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(world: World, *, expression: str) -> str:
    """The value as a float with two decimals at most, as text: `2 + 2` gives `4.0`."""
    del world  # one signature for all tools
    if not CHARACTERS.fullmatch(expression):
        raise Refusal("Invalid characters in expression")
    if len(expression) > MAX_EXPRESSION:
        raise Refusal("Expression too long")
    try:
        return str(round(float(_value(ast.parse(expression.strip(), mode="eval").body)), 2))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        raise Refusal("Invalid expression") from None


def _value(node: ast.expr) -> float:
    """Only the four operations and signs: power, though spelled with allowed characters, could take for ever."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")
