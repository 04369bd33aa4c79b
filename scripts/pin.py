"""Regenerate the pinned dependency tree in pyproject.toml: `uv run python scripts/pin.py`.

`uv.lock` names registry hosts, so it is not committed; the whole tree is pinned as uv constraints instead.
"""

import pathlib
import re
import subprocess

PYPROJECT = pathlib.Path(__file__).resolve().parent.parent / "pyproject.toml"
COMPILE = "uv pip compile --universal --python-version 3.11 --all-extras --group dev --no-header --no-annotate -q"
PINS = re.compile(r"^constraint-dependencies = \[\n.*?^\]\n", re.M | re.S)


def main() -> None:
    compiled = subprocess.run([*COMPILE.split(), str(PYPROJECT)], check=True, capture_output=True, text=True)
    pins = compiled.stdout.splitlines()
    quoted = "".join(f"    '{pin.replace(chr(39), chr(34))}',\n" for pin in pins if pin.strip())
    text = PYPROJECT.read_text()
    PYPROJECT.write_text(PINS.sub(lambda _: f"constraint-dependencies = [\n{quoted}]\n", text))


if __name__ == "__main__":
    main()
