"""Releases side by side: wheels of earlier commits, of the working tree, and of a release that does not exist yet.

Each is built by `uv build`, installed without its dependencies into a folder of its own, and found there before
anything else by processes that get its `env`; the dependencies are those of this environment. No network is needed.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shared import ROOT

FIRST = "d4edfca"  # the first released commit: migration 0001 only
PRODUCT = ("orchestrator", "executors", "adapters", "policy", "store", "celeryconfig.py", "pyproject.toml")


@dataclass(frozen=True)
class Release:
    name: str
    site: Path

    @property
    def env(self) -> dict[str, str]:
        """The tools of these tests are found behind the release's own packages."""
        return {"PYTHONPATH": f"{self.site}:{ROOT}", "PYTHONSAFEPATH": "1"}


def _run(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


def git(*arguments: str) -> str:
    done = _run("git", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def need_history() -> None:
    """Skips the test where there is none, as in an unpacked archive or a shallow clone."""
    if shutil.which("git") is None or _run("git", "rev-parse", "--git-dir").returncode != 0:
        pytest.skip("needs the git history of the repository: this is no clone of it")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs the git history of the repository: this is a shallow clone")


def before() -> str:
    """The newest commit whose product is not that of the working tree."""
    for commit in git("log", "--format=%h", "--", *PRODUCT).split():
        if _run("git", "diff", "--quiet", commit, "--", *PRODUCT).returncode != 0:
            return commit
    pytest.skip("needs a commit before this one in the git history")


def known(commit: str) -> bool:
    return _run("git", "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def of_commit(commit: str, folder: Path) -> Release:
    source = folder / f"{commit}-source"
    source.mkdir(parents=True)
    archive = folder / f"{commit}.tar"
    git("archive", "-o", str(archive), commit)
    shutil.unpack_archive(archive, source, filter="data")
    return _installed(commit, source, folder)


def of_working_tree(folder: Path) -> Release:
    return _installed("now", ROOT, folder)


def of_the_future(now: Release, folder: Path) -> Release:
    """What a later release may do: one more migration, a schema version that says so, a field in the profiles."""
    site = folder / "future"
    shutil.copytree(now.site, site)
    versions = site / "store" / "migrations" / "versions"
    last = max(path.name[:4] for path in versions.glob("[0-9]*.py"))
    _patch(site / "store" / "tables.py", "SCHEMA_VERSION = 1", "SCHEMA_VERSION = 2")
    _patch(
        site / "store" / "tables.py",
        'Column("final_text", Text, nullable=True),',
        'Column("final_text", Text, nullable=True),\n    Column("mood", Text, nullable=True),',
    )
    (versions / "9001_mood.py").write_text(_MIGRATION.format(last=last))
    _patch(
        site / "policy" / "profile.py",
        '    version: str = "1"\n',
        '    version: str = "1"\n    later: ClassVar[frozenset[str]] = frozenset({"mood"})\n    mood: str = "calm"\n',
    )
    return Release("future", site)


_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9001", "{last}", None, None


def upgrade() -> None:
    op.add_column("operations", sa.Column("mood", sa.Text(), nullable=True))
    op.create_table("moods", sa.Column("mood", sa.Text(), primary_key=True))
"""


def _patch(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r}"
    path.write_text(text.replace(old, new))


def _installed(name: str, source: Path, folder: Path) -> Release:
    wheels, site = folder / f"{name}-wheel", folder / name
    _uv(["build", "--wheel", "--quiet", "--out-dir", str(wheels), str(source)])
    [wheel] = wheels.glob("*.whl")
    _uv(["pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)])
    return Release(name, site)


def _uv(arguments: Sequence[str]) -> None:
    """From uv's cache, which has the build backend since this project was installed; else with a network."""
    done = _run("uv", *arguments, "--offline")
    if done.returncode != 0:
        done = _run("uv", *arguments)
    assert done.returncode == 0, f"uv {' '.join(arguments)}\n{done.stdout}{done.stderr}"
