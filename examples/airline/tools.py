"""The airline's fourteen tools: which function, which models, which effect."""

from typing import Any

from pydantic import RootModel

from examples.airline import models, semantics
from examples.worlds.calculator import calculate
from examples.worlds.domain import Domain, Tool
from examples.worlds.models import Expression, Nothing, Record, Summary, Text
from orchestrator.domain.model import Effect


class Records(RootModel[list[dict[str, Any]]]):
    """Several records."""


class Pairs(RootModel[list[list[dict[str, Any]]]]):
    """Pairs of flights, each in the order in which they are flown."""


READ, CREATE, OVERWRITE = Effect.READ, Effect.CREATE, Effect.OVERWRITE

TOOLS = (
    Tool(calculate, READ, Expression, Text, "Work out an arithmetic expression. Changes nothing."),
    Tool(
        semantics.get_user_details,
        READ,
        models.User,
        Record,
        "Give one user with payment methods and reservations. Changes nothing.",
    ),
    Tool(
        semantics.get_reservation_details,
        READ,
        models.Reservation,
        Record,
        "Give one reservation with flights, passengers and payments. Changes nothing.",
        concurrency=12,
    ),
    Tool(
        semantics.get_flight_status,
        READ,
        models.FlightOnDate,
        Text,
        "Give the status of one flight on one day. Changes nothing.",
    ),
    Tool(
        semantics.search_direct_flight,
        READ,
        models.Route,
        Records,
        "Find direct flights between two airports on one day. Changes nothing.",
        concurrency=8,
    ),
    Tool(
        semantics.search_onestop_flight,
        READ,
        models.Route,
        Pairs,
        "Find connections of two flights between two airports on one day. Changes nothing.",
        concurrency=4,
    ),
    Tool(semantics.list_all_airports, READ, Nothing, Records, "List all airports and their cities. Changes nothing."),
    Tool(
        semantics.book_reservation,
        CREATE,
        models.Booking,
        Record,
        "Book flights and take the payments. The customer must have confirmed all of it.",
        confirm=True,
    ),
    Tool(
        semantics.cancel_reservation,
        CREATE,
        models.Reservation,
        Record,
        "Cancel a whole reservation and refund it. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.send_certificate,
        CREATE,
        models.Certificate,
        Text,
        "Give a user a certificate, as a compensation.",
        confirm=True,
    ),
    Tool(
        semantics.update_reservation_baggages,
        CREATE,
        models.BaggageChange,
        Record,
        "Change the baggage of a reservation; more of it is paid for. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.update_reservation_flights,
        CREATE,
        models.FlightChange,
        Record,
        "Change flights or cabin of a reservation; the difference is paid or given back. "
        "The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.update_reservation_passengers,
        OVERWRITE,
        models.PassengerChange,
        Record,
        "Change who the passengers of a reservation are, not how many. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.transfer_to_human_agents,
        CREATE,
        Summary,
        Text,
        "Hand the customer over to a person: on request, or where these tools cannot help.",
    ),
)

AIRLINE = Domain(
    name="airline",
    tools=TOOLS,
    owned={"reservation_id": "reservations", "user_id": "users"},
    touched=semantics.touched,
)
