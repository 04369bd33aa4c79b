"""What the scripted model says in this scenario: plain JSON data in the form of `examples.scripted_model.script`.

`python -m examples.support.script` prints it.
"""

import json
from typing import Any

SCRIPT_ID = "support"
ORDER_ID = "ORD-123456"
AMOUNT_CENTS = 2450
CURRENCY = "EUR"


def script(order_id: str = ORDER_ID, amount_cents: int = AMOUNT_CENTS, currency: str = CURRENCY) -> dict[str, Any]:
    """The four turns: two reads at once, the draft, the refund of that draft, the explanation."""
    terms = {"order_id": order_id, "amount_cents": amount_cents}
    submit = {"draft_id": "$result.2.data.draft_id", **terms, "currency": currency}
    return {
        "id": SCRIPT_ID,
        "turns": [
            {"calls": [_call("get_order", order_id=order_id), _call("get_refund_policy")]},
            {"calls": [_call("draft_refund", **terms, reason="damaged")]},
            {"calls": [_call("submit_refund", **submit)]},
            {"text": f"The refund of {amount_cents / 100:.2f} {currency} for order {order_id} has been paid out."},
        ],
    }


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


if __name__ == "__main__":
    print(json.dumps(script(), indent=2))
