-- The shop's own schema. Safe to run again; the caller holds the advisory lock.
CREATE SCHEMA IF NOT EXISTS support_shop;

CREATE TABLE IF NOT EXISTS support_shop.orders (
    tenant         text   NOT NULL,
    order_id       text   NOT NULL CHECK (order_id ~ '^ORD-[0-9]{6}$'),
    customer       text   NOT NULL,
    status         text   NOT NULL CHECK (status IN ('placed', 'shipped', 'delivered', 'cancelled')),
    total_cents    bigint NOT NULL CHECK (total_cents >= 0),
    currency       text   NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    refunded_cents bigint NOT NULL DEFAULT 0 CHECK (refunded_cents BETWEEN 0 AND total_cents),
    version        bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, order_id)
);

CREATE TABLE IF NOT EXISTS support_shop.refund_drafts (
    tenant       text   NOT NULL,
    draft_id     text   NOT NULL,
    customer     text   NOT NULL,
    order_id     text   NOT NULL,
    amount_cents bigint NOT NULL CHECK (amount_cents > 0),
    currency     text   NOT NULL,
    reason       text   NOT NULL CHECK (reason IN ('damaged', 'not_received', 'wrong_item', 'other')),
    status       text   NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'submitted')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, draft_id),
    FOREIGN KEY (tenant, order_id) REFERENCES support_shop.orders
);

CREATE TABLE IF NOT EXISTS support_shop.refunds (
    tenant          text   NOT NULL,
    refund_id       text   NOT NULL,
    idempotency_key text   NOT NULL,
    customer        text   NOT NULL,
    draft_id        text   NOT NULL,
    order_id        text   NOT NULL,
    amount_cents    bigint NOT NULL CHECK (amount_cents > 0),
    currency        text   NOT NULL,
    status          text   NOT NULL DEFAULT 'completed' CHECK (status = 'completed'),
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, refund_id),
    UNIQUE (tenant, idempotency_key),
    UNIQUE (tenant, draft_id),
    FOREIGN KEY (tenant, draft_id) REFERENCES support_shop.refund_drafts
);

-- The definite answer to each keyed request: replayed to a repetition, refusals included. Kept for good.
CREATE TABLE IF NOT EXISTS support_shop.kept_answers (
    tenant   text NOT NULL,
    key      text NOT NULL,
    customer text NOT NULL,
    endpoint text NOT NULL,
    digest   text NOT NULL,
    status   integer,
    body     json,
    PRIMARY KEY (tenant, key)
);

-- What really happened, once per effect. No unique key on purpose: a second effect must show, not be refused.
CREATE TABLE IF NOT EXISTS support_shop.ledger (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          text   NOT NULL,
    key             text   NOT NULL,
    kind            text   NOT NULL CHECK (kind IN ('refund_draft', 'refund')),
    order_id        text   NOT NULL,
    amount_cents    bigint NOT NULL,
    argument_digest text   NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS ledger_by_tenant ON support_shop.ledger (tenant, seq);

CREATE OR REPLACE FUNCTION support_shop.refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$;
CREATE OR REPLACE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON support_shop.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION support_shop.refuse_change();
