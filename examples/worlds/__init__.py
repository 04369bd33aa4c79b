"""What the example domains share: records per tenant on PostgreSQL, exactly-once writes, tools over pure functions.

A domain (`examples/retail`, `examples/airline`) is its models, its pure functions and one `domain.Domain`.
"""
