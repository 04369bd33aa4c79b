-- A domain's own database: one PostgreSQL schema beside Turnqueue's. {schema} is filled in by storage.py.

CREATE SCHEMA IF NOT EXISTS {schema};

-- The starting state, the same for every world; never changed once seeded. `json`, not `jsonb`: keys keep file order.
CREATE TABLE IF NOT EXISTS {schema}.base (
    tbl      text NOT NULL,
    key      text NOT NULL,
    position integer NOT NULL,
    record   json NOT NULL,
    PRIMARY KEY (tbl, key)
);

CREATE TABLE IF NOT EXISTS {schema}.seeded (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    digest   text NOT NULL
);

-- Copy-on-write: a record that a world has changed or added.
CREATE TABLE IF NOT EXISTS {schema}.overlay (
    world  text NOT NULL,
    tbl    text NOT NULL,
    key    text NOT NULL,
    added  bigint GENERATED ALWAYS AS IDENTITY,
    record json NOT NULL,
    PRIMARY KEY (world, tbl, key)
);

-- One row per effect that really happened. No unique key on purpose: a duplicate must be visible, not impossible.
CREATE TABLE IF NOT EXISTS {schema}.effects (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    world            text NOT NULL,
    key              text NOT NULL,
    tool             text NOT NULL,
    arguments_digest text NOT NULL,
    at               timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS effects_world ON {schema}.effects (world);

CREATE OR REPLACE FUNCTION {schema}.append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the effects ledger is append-only'; END $$;
CREATE OR REPLACE TRIGGER effects_append_only BEFORE UPDATE OR DELETE ON {schema}.effects
    FOR EACH ROW EXECUTE FUNCTION {schema}.append_only();

-- What enforces the idempotency key: one outcome per key, for ever.
CREATE TABLE IF NOT EXISTS {schema}.keys (
    key              text PRIMARY KEY,
    world            text NOT NULL,
    tool             text NOT NULL,
    arguments_digest text NOT NULL,
    result           json,
    error_code       text,
    error            text,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((result IS NULL) = (error IS NOT NULL) AND (error IS NULL) = (error_code IS NULL))
);
