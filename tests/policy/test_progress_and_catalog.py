"""The loop guard and the catalog filter."""

from policy.base import Principal
from policy.catalog import eligible
from policy.progress import brings_something_new

A, B = ("look", "d1"), ("look", "d2")


def test_a_first_and_a_second_look_are_progress_a_third_is_not() -> None:
    assert brings_something_new([], [A])
    assert brings_something_new([A], [A])
    assert not brings_something_new([A, A], [A])


def test_one_new_call_is_enough() -> None:
    assert brings_something_new([A, A], [A, B])
    assert brings_something_new([A, A], [("other", "d1")])


def test_repeats_within_one_turn_count() -> None:
    assert brings_something_new([A], [A, A])
    assert not brings_something_new([A, A], [A, A])
    assert not brings_something_new([], [])


def test_catalog_offers_what_the_scopes_allow_in_order() -> None:
    tools = [("c", frozenset({"w"})), ("a", frozenset()), ("b", frozenset({"r", "w"}))]
    assert eligible(tools, Principal("t", "s")) == ("a",)
    assert eligible(tools, Principal("t", "s", frozenset({"w"}))) == ("c", "a")
    assert eligible(tools, Principal("t", "s", frozenset({"r", "w", "x"}))) == ("c", "a", "b")
