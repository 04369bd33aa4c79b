import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.arguments import MAX_BYTES, MAX_DEPTH, ArgumentError, parse_arguments
from tests.shared import shared


def test_agrees_with_every_verdict() -> None:
    for case in json.loads((shared("workloads") / "schemas" / "raw_arguments.json").read_text())["cases"]:
        try:
            accepted = isinstance(parse_arguments(case["text"]), dict)
        except ArgumentError:
            accepted = False
        assert case["acceptable"] in (accepted, None), case["id"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "EMPTY"),
        (" \n", "EMPTY"),
        ("null", "NOT_AN_OBJECT"),
        ('{"a":1,}', "MALFORMED_JSON"),
        ('{"a":NaN}', "MALFORMED_JSON"),
        ('{"a":1e400}', "NUMBER_OUT_OF_RANGE"),
        ('{"a":9223372036854775808}', "NUMBER_OUT_OF_RANGE"),
        ('{"a":' + "9" * 5000 + "}", "NUMBER_OUT_OF_RANGE"),
        ('{"a":{"b":1,"b":1}}', "DUPLICATE_KEY"),
        ('{"a":"\\ud800"}', "BAD_TEXT"),
        ('{"\\u0000":1}', "BAD_TEXT"),
        ('{"a":"\ud800"}', "BAD_TEXT"),
        ('{"a":"' + "x" * MAX_BYTES + '"}', "TOO_LARGE"),
        ('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "TOO_DEEP"),
        ("[" * 60000, "TOO_DEEP"),
        ('{"a":"\x1a"}', "MALFORMED_JSON"),
    ],
)
def test_refusals_have_stable_codes(text: str, code: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_arguments(text)
    assert refused.value.code == code


def test_limits_are_inclusive() -> None:
    inner = MAX_DEPTH - 1
    assert parse_arguments('{"a":' + "[" * inner + "]" * inner + "}")
    assert parse_arguments('{"a":"' + "x" * (MAX_BYTES - 8) + '"}')
    assert parse_arguments('{"a":"' + "[{" * 1000 + '"}') == {"a": "[{" * 1000}
    assert parse_arguments('{"a":9007199254740993}') == {"a": 9007199254740993}


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("xyz", max_size=4), _VALUES, max_size=5))
def test_what_was_written_is_read(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(json.dumps(value, ensure_ascii=False)) == value


@given(st.text())
def test_any_text_is_an_object_or_a_refusal(text: str) -> None:
    with contextlib.suppress(ArgumentError):
        assert isinstance(parse_arguments(text), dict)
