"""Where the shared reference material is: a folder `shared` beside the repository, not part of it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def shared(name: str) -> Path:
    """The path of one part of the shared material, for example `shared("wire")`; skips the test where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the shared reference material: ../shared/{name} beside the repository is absent")
    return path
