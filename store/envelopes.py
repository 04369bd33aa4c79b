"""Signed envelopes that have been used: one operation each, in the transaction that creates it."""

from sqlalchemy import Connection, text


def lock(connection: Connection, sender: str, nonce: str) -> tuple[str, str] | None:
    """Keep others from using this nonce until the transaction ends; (operation_id, request_sha256) that it has made."""
    values = {"sender": sender, "nonce": nonce}
    held = "SELECT pg_advisory_xact_lock(hashtextextended(CAST(:sender AS text) || '/' || CAST(:nonce AS text), 0))"
    connection.execute(text(held), values)
    statement = text(
        "SELECT operation_id, request_sha256 FROM envelopes JOIN operations USING (operation_id) "
        "WHERE sender = :sender AND nonce = :nonce"
    )
    row = connection.execute(statement, values).first()
    return (row.operation_id, row.request_sha256) if row else None


def consume(connection: Connection, sender: str, nonce: str, expires_at: float, operation_id: str) -> None:
    """Record what the locked nonce has made. `expires_at` is Unix time, for later cleaning."""
    statement = text(
        "INSERT INTO envelopes (sender, nonce, operation_id, expires_at) "
        "VALUES (:sender, :nonce, :operation_id, to_timestamp(:expires_at))"
    )
    values = {"sender": sender, "nonce": nonce, "operation_id": operation_id, "expires_at": expires_at}
    connection.execute(statement, values)


def forget_expired(connection: Connection) -> int:
    """Expired envelopes are refused by their signature's time; their nonces need not be kept a day longer."""
    statement = text("DELETE FROM envelopes WHERE expires_at < clock_timestamp() - interval '1 day'")
    return connection.execute(statement).rowcount


def clock(connection: Connection) -> float:
    """Unix time of the database."""
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
