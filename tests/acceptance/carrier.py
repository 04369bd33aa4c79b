"""A carrier: parcels and address changes over HTTP, kept in PostgreSQL. The downstream of the parcel scenario.

It enforces idempotency keys for ever, remembers refusals under them, and loses answers where a test asks for it.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

SCHEMA = """
CREATE SCHEMA carrier;
CREATE TABLE carrier.parcels (
    parcel_id text PRIMARY KEY, tenant text NOT NULL, customer text NOT NULL, status text NOT NULL,
    address text NOT NULL, version int NOT NULL DEFAULT 1, note text NOT NULL DEFAULT '');
CREATE TABLE carrier.changes (
    change_id serial PRIMARY KEY, tenant text NOT NULL, key text NOT NULL, parcel_id text NOT NULL,
    address text NOT NULL, refused text, UNIQUE (tenant, key));
"""
Answer = tuple[int, dict[str, Any]]
UNAVAILABLE: Answer = (404, {"code": "PARCEL_UNAVAILABLE"})  # unknown and somebody else's look the same


@dataclass
class Carrier:
    """`faults`: what happens to the next changes: `early` is lost before it is applied, `lost` and `garbage` after."""

    url: str
    conninfo: str
    faults: deque[str] = field(default_factory=deque)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def parcel(self, parcel_id: str, *, tenant: str = "acme", customer: str = "alice", status: str = "packed") -> str:
        """A new parcel, as it stands before anybody asks."""
        self.sql(
            "INSERT INTO carrier.parcels (parcel_id, tenant, customer, status, address) VALUES (%s, %s, %s, %s, %s)",
            parcel_id, tenant, customer, status, "Old Road 1",
        )  # fmt: skip
        return parcel_id

    def address(self, parcel_id: str) -> str:
        [(address,)] = self.sql("SELECT address FROM carrier.parcels WHERE parcel_id = %s", parcel_id)
        return str(address)

    def changes(self, parcel_id: str) -> list[tuple[Any, ...]]:
        """(key, address) of what was applied: the witness of effects."""
        return self.sql("SELECT key, address FROM carrier.changes WHERE parcel_id = %s AND refused IS NULL", parcel_id)

    def ship(self, parcel_id: str) -> None:
        self.sql("UPDATE carrier.parcels SET status = 'shipped', version = version + 1 WHERE parcel_id = %s", parcel_id)


@contextmanager
def carrier(database_url: str) -> Iterator[Carrier]:
    """The server on loopback, over its own schema of the given database."""
    conninfo = database_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(SCHEMA)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    opened = Carrier(f"http://127.0.0.1:{server.server_port}", conninfo)
    server.carrier = opened  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield opened
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Tests look at `asked`."""

    @property
    def carrier(self) -> Carrier:
        found: Carrier = self.server.carrier  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        self.carrier.asked.append(("GET", self.path))
        parts = urlsplit(self.path)
        with psycopg.connect(self.carrier.conninfo) as connection:
            match parts.path.strip("/").split("/"):
                case ["parcels", parcel_id]:
                    answer = self._parcel(connection, parcel_id)
                case ["address-changes", "by-key", key]:
                    answer = _by_key(connection, self.headers["X-Tenant"], key) or UNAVAILABLE
                case ["pickup-slots"]:
                    answer = 200, {"day": parse_qs(parts.query)["day"][0], "slots": ["09:00+00:00", "14:00+00:00"]}
                case _:
                    answer = UNAVAILABLE
        self._send(*answer)

    def do_POST(self) -> None:
        self.carrier.asked.append(("POST", self.path))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.carrier.faults.popleft() if self.carrier.faults else None
        if fault == "early":
            self.close_connection = True
            return
        with psycopg.connect(self.carrier.conninfo) as connection:
            answer = self._change(connection, body)
        if fault == "lost":
            self.close_connection = True
        elif fault == "garbage":
            self._send(200, {"html": "<h1>It works!</h1>"})
        else:
            self._send(*answer)

    def _parcel(self, connection: psycopg.Connection[Any], parcel_id: str) -> Answer:
        row = connection.execute(
            "SELECT status, address, version, note FROM carrier.parcels "
            "WHERE parcel_id = %s AND tenant = %s AND customer = %s",
            (parcel_id, self.headers["X-Tenant"], self.headers["X-Customer"]),
        ).fetchone()
        if row is None:
            return UNAVAILABLE
        return 200, {"parcel_id": parcel_id, **dict(zip(("status", "address", "version", "note"), row, strict=True))}

    def _change(self, connection: psycopg.Connection[Any], body: dict[str, Any]) -> Answer:
        tenant, key = self.headers["X-Tenant"], self.headers["Idempotency-Key"]
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (key,))
        known = _by_key(connection, tenant, key)
        if known is not None:
            return known
        found = connection.execute(
            "SELECT status FROM carrier.parcels WHERE parcel_id = %s AND tenant = %s AND customer = %s FOR UPDATE",
            (body["parcel_id"], tenant, self.headers["X-Customer"]),
        ).fetchone()
        if found is None:
            return UNAVAILABLE
        refused = "ALREADY_SHIPPED" if found[0] != "packed" else None
        connection.execute(
            "INSERT INTO carrier.changes (tenant, key, parcel_id, address, refused) VALUES (%s, %s, %s, %s, %s)",
            (tenant, key, body["parcel_id"], body["address"], refused),
        )
        if refused is None:
            connection.execute(
                "UPDATE carrier.parcels SET address = %s, version = version + 1 WHERE parcel_id = %s",
                (body["address"], body["parcel_id"]),
            )
        return _by_key(connection, tenant, key) or UNAVAILABLE

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _by_key(connection: psycopg.Connection[Any], tenant: str, key: str) -> Answer | None:
    row = connection.execute(
        "SELECT change_id, parcel_id, address, refused FROM carrier.changes WHERE tenant = %s AND key = %s",
        (tenant, key),
    ).fetchone()
    if row is None:
        return None
    if row[3] is not None:
        return 409, {"code": row[3]}
    return 200, {"change_id": f"CHG-{row[0]}", "parcel_id": row[1], "address": row[2]}
