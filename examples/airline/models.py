"""What the airline's own tools take."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from examples.worlds.models import Arguments


def _whole(value: Any) -> Any:
    """JSON Schema's integer includes 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
UserId = Annotated[str, Field(description="User id, such as 'sara_doe_496'.")]
ReservationId = Annotated[str, Field(description="Reservation id, such as 'ZFA04Y'.")]
Airport = Annotated[str, Field(description="Airport in three letters, such as 'JFK'.")]
Date = Annotated[str, Field(description="Day as YYYY-MM-DD, such as '2024-05-01'.")]
Cabin = Annotated[Literal["business", "economy", "basic_economy"], Field(description="Cabin of all flights.")]
PaymentId = Annotated[
    str, Field(description="One of the user's payment methods, such as 'credit_card_7815826'; see the user's details.")
]
TotalBaggages = Annotated[Whole, Field(description="All pieces of baggage, free ones included.")]
NonfreeBaggages = Annotated[Whole, Field(description="Pieces of baggage that are paid for.")]


class FlightOnDate(Arguments):
    flight_number: str = Field(description="Flight number, such as 'HAT001'.")
    date: Date


class Passenger(Arguments):
    first_name: str = Field(description="First name.")
    last_name: str = Field(description="Last name.")
    dob: str = Field(description="Date of birth as YYYY-MM-DD.")


class Payment(Arguments):
    payment_id: PaymentId
    amount: Whole = Field(description="Dollars.")


Passengers = Annotated[list[Passenger], Field(description="Every passenger.")]


class User(Arguments):
    user_id: UserId


class Reservation(Arguments):
    reservation_id: ReservationId


class Route(Arguments):
    origin: Airport
    destination: Airport
    date: Date


class Booking(Arguments):
    user_id: UserId
    origin: Airport
    destination: Airport
    flight_type: Literal["round_trip", "one_way"] = Field(description="Whether it also goes back.")
    cabin: Cabin
    flights: list[FlightOnDate] = Field(description="Every flight, in order.")
    passengers: Passengers
    payment_methods: list[Payment] = Field(description="What is paid by which method; together exactly the price.")
    total_baggages: TotalBaggages
    nonfree_baggages: NonfreeBaggages
    insurance: Literal["yes", "no"] = Field(description="Travel insurance for every passenger.")


class Certificate(Arguments):
    user_id: UserId
    amount: Whole = Field(description="Dollars.")


class BaggageChange(Arguments):
    reservation_id: ReservationId
    total_baggages: TotalBaggages
    nonfree_baggages: NonfreeBaggages
    payment_id: PaymentId


class FlightChange(Arguments):
    reservation_id: ReservationId
    cabin: Cabin
    flights: list[FlightOnDate] = Field(description="Every flight of the new reservation, also those that stay.")
    payment_id: PaymentId


class PassengerChange(Arguments):
    reservation_id: ReservationId
    passengers: Passengers
