"""Per-tool limits that hold across the fleet: one row per slot, with holder and lease.

Slots are taken inside the claiming statement of `calls` and `actions`, freed with the result. A dead worker's slot is
free again once its attempt's deadline (and a grace) has passed.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, text

GRACE_SECONDS = 5.0  # after an attempt's deadline: its HTTP client has given up by then

# Used by the claims: takes a free slot of the tool of the candidate row `cand(id, tool, tenant, limited)`.
TAKE = """
    free AS (
        SELECT s.tool, s.slot FROM slots s JOIN cand ON cand.limited AND s.tool = cand.tool
        WHERE s.holder IS NULL OR s.lease_until < clock_timestamp()
        ORDER BY s.slot LIMIT 1 FOR UPDATE OF s SKIP LOCKED),
    taken AS (
        UPDATE slots s SET holder = cand.id, tenant = cand.tenant, fence = s.fence + 1,
               lease_until = clock_timestamp() + make_interval(secs => :slot_lease)
        FROM free, cand WHERE s.tool = free.tool AND s.slot = free.slot
        RETURNING s.tool)
"""
HAS_FREE = (
    "EXISTS (SELECT 1 FROM slots s WHERE s.tool = c.tool AND (s.holder IS NULL OR s.lease_until < clock_timestamp()))"
)


def fair(table: str, key: str, running: str, due: str) -> str:
    """`WITH RECURSIVE` parts that rank the due rows of a queue's limited tools: `ranked(<key>, rank)`.

    The oldest of each tenant; the tenant with the fewest slots in use first, and by lot where several have as few:
    with one slot, by age, everybody would wait behind whoever has the most. `tenants` walks the index from tenant to
    tenant, so its cost grows with the number of waiting tenants and not with the number of rows. `running`: the state
    in which a row of `table` is being worked on; `due`: when one is due, of `c`.
    """
    waiting = f"FROM {table} c WHERE c.queue = :queue AND c.limited AND c.wake_at IS NOT NULL"
    return f"""
    tenants AS (
        (SELECT c.tenant, random() AS lot {waiting} ORDER BY c.tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT c.tenant {waiting} AND c.tenant > t.tenant ORDER BY c.tenant LIMIT 1), random()
        FROM tenants t WHERE t.tenant IS NOT NULL),
    oldest AS (
        SELECT d.{key}, d.wake_at, t.lot,
               (SELECT count(*) FROM slots s WHERE s.tool = d.tool AND s.tenant = d.tenant) AS tenant_busy,
               (SELECT count(*) FROM {table} r WHERE r.operation_id = d.operation_id AND r.state = '{running}') AS busy
        FROM tenants t CROSS JOIN LATERAL (
            SELECT c.* FROM {table} c WHERE c.queue = :queue AND c.limited AND c.tenant = t.tenant AND {due}
            AND {HAS_FREE} ORDER BY c.wake_at LIMIT 8) d
        WHERE t.tenant IS NOT NULL),
    ranked AS (SELECT {key}, row_number() OVER (ORDER BY tenant_busy, lot, busy, wake_at) AS rank FROM oldest)"""


LOST = "#lost"  # what the holder of a lost attempt's slot is called besides
FREE = "UPDATE slots SET holder = NULL, tenant = NULL, lease_until = NULL WHERE holder = :holder"


def sync(connection: Connection, limits: Mapping[str, int]) -> None:
    """Make the rows of each tool agree with its limit. Slots above a lowered limit go once they are free."""
    for tool, limit in limits.items():
        values = {"tool": tool, "limit": limit}
        connection.execute(
            text(
                "INSERT INTO slots (tool, slot) SELECT :tool, n FROM generate_series(1, :limit) n "
                "ON CONFLICT DO NOTHING"
            ),
            values,
        )
        connection.execute(text("DELETE FROM slots WHERE tool = :tool AND slot > :limit AND holder IS NULL"), values)


def keep(connection: Connection, holder: str) -> None:
    """A lost worker's request may still be served: its slot stays taken until its deadline, under a name of its own.

    Under the old name, the record of the holder's next attempt would free it too soon.
    """
    statement = text("UPDATE slots SET holder = holder || :lost WHERE holder = :holder")
    connection.execute(statement, {"holder": holder, "lost": LOST})


def free(connection: Connection, holder: str) -> None:
    connection.execute(text(FREE), {"holder": holder})


def holders(connection: Connection, tool: str) -> list[str]:
    """Who holds an unexpired slot of the tool."""
    statement = text("SELECT holder FROM slots WHERE tool = :tool AND lease_until >= clock_timestamp() ORDER BY slot")
    return list(connection.execute(statement, {"tool": tool}).scalars())
