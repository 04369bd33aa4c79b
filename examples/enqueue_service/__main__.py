"""python -m examples.enqueue_service: one ticket per line on standard input, as JSON; one answer per line.

`sent NUMBER`, `bad: WHY` (mend the ticket) or `later NUMBER: WHY` (hand it in again). Ends at the end of the input.
"""

import sys

from kombu.exceptions import OperationalError
from pydantic import ValidationError

from examples.enqueue_service.desk import Desk, Ticket
from orchestrator.domain.errors import TurnqueueError


def answer(desk: Desk, line: str) -> str:
    try:
        ticket = Ticket.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"bad: {'.'.join(map(str, first['loc'])) or 'ticket'}: {first['msg']}"
    try:
        desk.hand_on(ticket)
    except TurnqueueError as error:
        return f"bad: {error.message}"
    except OperationalError as error:
        return f"later {ticket.number}: {type(error).__name__}"
    return f"sent {ticket.number}"


def main() -> int:
    try:
        desk = Desk()
    except TurnqueueError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n")
        return 1
    for line in sys.stdin:
        print(answer(desk, line), flush=True)
    desk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
