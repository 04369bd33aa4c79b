"""Signed envelopes that have been used: one operation each, in the transaction that creates it."""

from sqlalchemy import Connection, text


def consume(connection: Connection, sender: str, nonce: str, expires_at: float, operation_id: str) -> bool:
    """False when this nonce was used before. `expires_at` is Unix time, for later cleaning."""
    statement = text(
        "INSERT INTO envelopes (sender, nonce, operation_id, expires_at) "
        "VALUES (:sender, :nonce, :operation_id, to_timestamp(:expires_at)) ON CONFLICT DO NOTHING"
    )
    values = {"sender": sender, "nonce": nonce, "operation_id": operation_id, "expires_at": expires_at}
    return connection.execute(statement, values).rowcount == 1


def seen(connection: Connection, sender: str, nonce: str) -> bool:
    statement = text("SELECT 1 FROM envelopes WHERE sender = :sender AND nonce = :nonce")
    return connection.execute(statement, {"sender": sender, "nonce": nonce}).first() is not None


def forget_expired(connection: Connection) -> int:
    """Expired envelopes are refused by their signature's time; their nonces need not be kept a day longer."""
    statement = text("DELETE FROM envelopes WHERE expires_at < clock_timestamp() - interval '1 day'")
    return connection.execute(statement).rowcount
