"""What is stored of a profile must stay what it was: a digest that changed would take back what people approved."""

from typing import Any, ClassVar

from policy.profile import ApprovalRule, Budgets, Model, Prices, Profile

# Every field of the first release, with a value that is not its default where it has one.
FIRST = Profile(
    name="first",
    version="7",
    model=Model(
        api="openai-responses", name="m", base_url="https://models.example/v1", api_key_env="KEY",
        headers={"X-Team": "desk"}, azure_deployment="d", azure_api_version="v", parameters={"temperature": 0},
        max_output_tokens=1000, timeout=60.0, stream=True, idle_seconds=30.0, parallel_calls=False, server_state=True,
        provider_tools_on_loss="stop",
    ),
    instructions="Help.",
    tools=("pay",),
    budgets=Budgets(
        turns=5, calls=6, calls_per_tool={"pay": 2}, writes=3, input_tokens=1000, output_tokens=900, cost_usd=0.5,
        wall_seconds=60.0, parallel=2, input_seconds=30.0, result_bytes=5000, no_progress_turns=2,
    ),
    prices=Prices(input=1.0, cached=0.5, output=2.0),
    required_tools=("pay",),
    approvals=(
        ApprovalRule(
            tools=("pay",), over={"amount": 10.0}, tenants=("acme",), tainted=True, approvers=2, separate=True,
            ttl_seconds=600.0,
        ),
    ),
    tainted_writes="ask",
    output_schema={"type": "object"},
)  # fmt: skip
LEAST = Profile(name="least", model=Model(api="openai-chat", name="m", base_url="$URL"), instructions="Help.")


def test_recipes_of_the_first_release_keep_their_digests() -> None:
    """If this fails: a new field must be named in `later` of its model; see `policy.profile`."""
    assert FIRST.digest == "324aa8fc8480d575d3db6bf204c743b4f71dd36e8914efd2bb93e8333b23401b"
    assert LEAST.digest == "c28d7ca0701f0bb6f0b29f644fda90c4510254d7da3aa7a080ff7ffc8dd3389f"


class _Later(Budgets):
    later: ClassVar[frozenset[str]] = frozenset({"pages"})
    pages: int | None = None


def _stored(budgets: Budgets) -> dict[str, Any]:
    whole = LEAST.model_copy(update={"budgets": budgets}).model_dump(mode="json", serialize_as_any=True)
    return dict(whole["budgets"])


def test_a_later_field_is_stored_once_it_says_something() -> None:
    assert _stored(_Later()) == _stored(Budgets())
    assert _stored(_Later(pages=4)) == _stored(Budgets()) | {"pages": 4}
