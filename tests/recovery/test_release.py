"""Parked operations at the command line."""

from store.db import Database
from tests.cli.conftest import Shell, deployed, submit_options  # noqa: F401 - a fixture
from tests.store.rows import eventually


def parked(database_url: str, operation_id: str) -> None:
    """As after five turns that broke."""
    database = Database(database_url, 1)
    with database.autocommit() as connection:
        connection.exec_driver_sql(
            "UPDATE operations SET parked = 'POISON_TURN', lost = 5, wake_at = NULL WHERE operation_id = %s",
            (operation_id,),
        )
    database.close()


def test_list_show_and_release(deployed: Shell, database_url: str) -> None:  # noqa: F811
    operations = [deployed("submit", *submit_options(), "--json").json["operation_id"] for _ in range(2)]
    assert deployed("list", "--parked", "--json").json == {"operations": []}
    parked(database_url, operations[0])
    [row] = deployed("list", "--parked", "--json").json["operations"]
    assert (row["operation_id"], row["parked"], row["state"]) == (operations[0], "POISON_TURN", "READY")
    assert "READY (parked: POISON_TURN)" in deployed("list").out
    assert "READY (parked: POISON_TURN)" in deployed("show", operations[0]).out
    assert deployed("show", operations[0], "--json").json["parked"] == "POISON_TURN"

    following = deployed.start("show", operations[0], "--follow")
    following.until("turnqueue release")
    assert deployed("release", operations[0], "--by", "ops", "--json").json == {
        "operation_id": operations[0], "released": True,
    }  # fmt: skip
    shown = deployed("show", operations[0], "--json").json
    assert (shown["parked"], shown["wake_at"] is not None) == (None, True)
    deployed("release", operations[0]).failed(4, "NOT_PARKED")
    deployed("release", operations[1]).failed(4, "NOT_PARKED")
    deployed("release", "op_nobody").failed(3, "UNKNOWN_OPERATION")
    deployed("cancel", operations[0])
    eventually(lambda: following.process.poll() is not None)
    assert following.end().code == 1
