"""Coverage-guided fuzzing by hand: `uv run --with atheris python -m tests.fuzz.atheris_streams`.

atheris is no dependency. Arguments go to libFuzzer, for example `-max_total_time=600 CORPUS_DIR`.
"""

import sys
from contextlib import suppress

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports():
    from adapters.arguments import ArgumentError, parse_arguments
    from adapters.registry import ADAPTERS
    from tests.fuzz.targets import any_bytes


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    api = sorted(ADAPTERS)[provider.ConsumeIntInRange(0, len(ADAPTERS) - 1)]
    size = provider.ConsumeIntInRange(1, 64)
    body = provider.ConsumeBytes(provider.remaining_bytes())
    any_bytes(api, [body[start : start + size] for start in range(0, len(body), size)])
    with suppress(ArgumentError, UnicodeDecodeError):
        parse_arguments(body.decode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
