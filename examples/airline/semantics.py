"""What the airline's tools do: pure functions over a `World`, no I/O.

Each function takes the world and the call's arguments and returns the tool's result. A call that the airline refuses
raises `Refusal` and has changed nothing: every check runs before the first `put`. Amounts are dollars, not rounded.

Most writes are not protected against repetition: the same call again books, pays or refunds again. That it happens
once is the business of whoever calls: see the idempotency key in `examples/worlds/storage.py`.
"""

from collections.abc import Iterator
from copy import deepcopy

from examples.airline import airports
from examples.worlds.world import Record, RecordKey, Refusal, World

NOW = "2024-05-15T15:00:00"  # the clock of this made-up airline stands still
RESERVATION_IDS = ("HATHAT", "HATHAU", "HATHAV")  # ids of new reservations, in the order of their use
CERTIFICATE_IDS = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
INSURANCE_PER_PASSENGER = 30
NONFREE_BAGGAGE = 50
PREPAID = ("gift_card", "certificate")  # payment methods that hold an amount

# -- reads -----------------------------------------------------------------------------------------------------------


def get_user_details(world: World, *, user_id: str) -> Record:
    return _existing(world, "users", user_id, "User")


def get_reservation_details(world: World, *, reservation_id: str) -> Record:
    return _existing(world, "reservations", reservation_id, "Reservation")


def get_flight_status(world: World, *, flight_number: str, date: str) -> str:
    _, entry = _flight_on(world, flight_number, date)
    return str(entry["status"])


def search_direct_flight(world: World, *, origin: str, destination: str, date: str) -> list[Record]:
    """Every available flight between the two on that day, in file order."""
    found = _available(world, origin, date)
    return [flight for flight in found if flight["destination"] == destination]


def search_onestop_flight(world: World, *, origin: str, destination: str, date: str) -> list[list[Record]]:
    """Pairs of available flights; the second leaves, by the clock's text, no earlier than the first arrives."""
    pairs = []
    for first in _available(world, origin, date):
        arrival = first["scheduled_arrival_time_est"]
        # A quirk of the benchmark: the next day's number is not padded, so early days of a month find nothing.
        day = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
        pairs += [
            [{**first, "date": date}, {**second, "date": day}]
            for second in search_direct_flight(world, origin=first["destination"], destination=destination, date=day)
            if second["scheduled_departure_time_est"] >= arrival
        ]
    return pairs


def list_all_airports(world: World) -> list[Record]:
    del world  # the airports do not change
    return [{"iata": iata, "city": city} for iata, city in airports.CITIES.items()]


# -- writes ----------------------------------------------------------------------------------------------------------


def book_reservation(
    world: World,
    *,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: list[Record],
    passengers: list[Record],
    payment_methods: list[Record],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> Record:
    user = deepcopy(get_user_details(world, user_id=user_id))
    reservation_id = _new_reservation_id(world)
    entries = [_entry(world, flight, cabin, len(passengers)) for flight in flights]
    total = sum(entry["price"] for entry in entries) * len(passengers) + NONFREE_BAGGAGE * nonfree_baggages
    total += INSURANCE_PER_PASSENGER * len(passengers) if insurance == "yes" else 0
    _check_payments(user, payment_methods, total)
    for payment in payment_methods:
        _take(user, payment["payment_id"], payment["amount"])
    reservation = {
        "reservation_id": reservation_id,
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": entries,
        "passengers": deepcopy(passengers),
        "payment_history": deepcopy(payment_methods),
        "created_at": NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    user["reservations"].append(reservation_id)
    for flight in flights:
        _take_seats(world, flight, cabin, len(passengers))
    world.put("users", user_id, user)
    world.put("reservations", reservation_id, reservation)
    return reservation


def cancel_reservation(world: World, *, reservation_id: str) -> Record:
    """Refunds every entry of the payment history; seats and balances stay, refunds settle elsewhere."""
    reservation = deepcopy(get_reservation_details(world, reservation_id=reservation_id))
    history = reservation["payment_history"]
    history += [{"payment_id": paid["payment_id"], "amount": -paid["amount"]} for paid in list(history)]
    reservation["status"] = "cancelled"
    world.put("reservations", reservation_id, reservation)
    return reservation


def send_certificate(world: World, *, user_id: str, amount: int) -> str:
    user = deepcopy(get_user_details(world, user_id=user_id))
    methods = user["payment_methods"]
    new_id = next((i for i in CERTIFICATE_IDS if i not in methods), None)
    if new_id is None:
        raise Refusal("Too many certificates")
    methods[new_id] = {"source": "certificate", "id": new_id, "amount": amount}
    world.put("users", user_id, user)
    return f"Certificate {new_id} added to user {user_id} with amount {amount}."


def update_reservation_baggages(
    world: World, *, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> Record:
    reservation = deepcopy(get_reservation_details(world, reservation_id=reservation_id))
    more = nonfree_baggages - reservation["nonfree_baggages"]
    _pay(world, reservation, payment_id, NONFREE_BAGGAGE * max(0, more))
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    world.put("reservations", reservation_id, reservation)
    return reservation


def update_reservation_flights(
    world: World, *, reservation_id: str, cabin: str, flights: list[Record], payment_id: str
) -> Record:
    """A flight that stays keeps its price; seats do not move."""
    reservation = deepcopy(get_reservation_details(world, reservation_id=reservation_id))
    people, old = len(reservation["passengers"]), reservation["flights"]
    kept = {(entry["flight_number"], entry["date"]): entry for entry in reversed(old)}
    if cabin != reservation["cabin"]:
        kept = {}
    new = [kept.get((f["flight_number"], f["date"])) or _entry(world, f, cabin, people) for f in flights]
    _pay(world, reservation, payment_id, (sum(f["price"] for f in new) - sum(f["price"] for f in old)) * people)
    reservation["flights"] = deepcopy(new)
    reservation["cabin"] = cabin
    world.put("reservations", reservation_id, reservation)
    return reservation


def update_reservation_passengers(world: World, *, reservation_id: str, passengers: list[Record]) -> Record:
    reservation = deepcopy(get_reservation_details(world, reservation_id=reservation_id))
    if len(passengers) != len(reservation["passengers"]):
        raise Refusal("Number of passengers does not match")
    reservation["passengers"] = deepcopy(passengers)
    world.put("reservations", reservation_id, reservation)
    return reservation


def transfer_to_human_agents(world: World, *, summary: str) -> str:
    del world, summary  # the ledger keeps that it happened
    return "Transfer successful"


# -- what a write may change -----------------------------------------------------------------------------------------


def touched(world: World, arguments: Record) -> list[RecordKey]:
    """The records that a write with these arguments changes, or whose seats it counts: what it must lock."""
    keys = [("flights", flight["flight_number"]) for flight in arguments.get("flights", ())]
    if "user_id" in arguments:
        keys.append(("users", arguments["user_id"]))
    if "payment_methods" in arguments:  # a booking: all bookings compete for the next id
        keys += [("reservations", reservation_id) for reservation_id in RESERVATION_IDS]
    if "reservation_id" in arguments:
        keys.append(("reservations", arguments["reservation_id"]))
        reservation = world.get("reservations", arguments["reservation_id"])
        if reservation is not None:
            keys.append(("users", reservation["user_id"]))  # a reservation never changes its owner
    return keys


# -- shared steps ----------------------------------------------------------------------------------------------------


def _existing(world: World, table: str, key: str, what: str) -> Record:
    record = world.get(table, key)
    if record is None:
        raise Refusal(f"{what} {key} not found", f"{what.upper()}_NOT_FOUND")
    return record


def _flight_on(world: World, flight_number: str, date: str) -> tuple[Record, Record]:
    """The flight and its entry of that day."""
    flight = _existing(world, "flights", flight_number, "Flight")
    if date not in flight["dates"]:
        raise Refusal(f"Flight {flight_number} not found on date {date}", "FLIGHT_NOT_FOUND_ON_DATE")
    return flight, flight["dates"][date]


def _available(world: World, origin: str, date: str) -> Iterator[Record]:
    for _, flight in world.all("flights"):
        entry = flight["dates"].get(date)
        if flight["origin"] == origin and entry is not None and entry["status"] == "available":
            shown = ("flight_number", "origin", "destination", "scheduled_departure_time_est")
            yield {
                **{name: flight[name] for name in (*shown, "scheduled_arrival_time_est")},
                **{name: entry[name] for name in ("status", "available_seats", "prices")},
            }


def _entry(world: World, wanted: Record, cabin: str, people: int) -> Record:
    """A flight as a reservation keeps it, at today's price; refused where it is not available for so many."""
    number, date = wanted["flight_number"], wanted["date"]
    flight, entry = _flight_on(world, number, date)
    if entry["status"] != "available":
        raise Refusal(f"Flight {number} not available on date {date}", "FLIGHT_NOT_AVAILABLE")
    if entry["available_seats"][cabin] < people:
        raise Refusal(f"Not enough seats on flight {number}", "NOT_ENOUGH_SEATS")
    route = {"origin": flight["origin"], "destination": flight["destination"]}
    return {"flight_number": number, "date": date, "price": entry["prices"][cabin], **route}


def _take_seats(world: World, wanted: Record, cabin: str, people: int) -> None:
    flight, _ = _flight_on(world, wanted["flight_number"], wanted["date"])
    flight = deepcopy(flight)
    flight["dates"][wanted["date"]]["available_seats"][cabin] -= people
    world.put("flights", wanted["flight_number"], flight)


def _new_reservation_id(world: World) -> str:
    for reservation_id in RESERVATION_IDS:
        if world.get("reservations", reservation_id) is None:
            return reservation_id
    raise Refusal("Too many reservations")


def _check_payments(user: Record, payments: list[Record], total: int) -> None:
    used_up = set()
    for payment in payments:
        payment_id = payment["payment_id"]
        method = user["payment_methods"].get(payment_id)
        if method is None or payment_id in used_up:
            raise Refusal(f"Payment method {payment_id} not found", "PAYMENT_METHOD_NOT_FOUND")
        if method["source"] in PREPAID and method["amount"] < payment["amount"]:
            raise Refusal(f"Not enough balance in payment method {payment_id}", "NOT_ENOUGH_BALANCE")
        if method["source"] == "certificate":
            used_up.add(payment_id)
    paid = sum(payment["amount"] for payment in payments)
    if paid != total:
        text = f"Payment amount does not add up, total price is {total}, but paid {paid}"
        raise Refusal(text, "PAYMENT_DOES_NOT_ADD_UP")


def _take(user: Record, payment_id: str, amount: int) -> None:
    """A gift card gets smaller, a certificate is used up whole; credit cards settle elsewhere."""
    method = user["payment_methods"][payment_id]
    if method["source"] == "gift_card":
        method["amount"] -= amount
    elif method["source"] == "certificate":
        del user["payment_methods"][payment_id]


def _pay(world: World, reservation: Record, payment_id: str, cost: int) -> None:
    """Pay for a change of a reservation (not yet stored); a negative cost is given back."""
    user = deepcopy(get_user_details(world, user_id=reservation["user_id"]))
    method = user["payment_methods"].get(payment_id)
    if method is None:
        raise Refusal("Payment method not found")
    if method["source"] == "certificate":
        raise Refusal("Certificate cannot be used to update reservation")
    if method["source"] == "gift_card":
        if method["amount"] < cost:
            raise Refusal("Gift card balance is not enough")
        method["amount"] -= cost
        world.put("users", reservation["user_id"], user)
    if cost != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": cost})
