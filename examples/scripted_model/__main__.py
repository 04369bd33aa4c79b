"""python -m examples.scripted_model --port 0 [--script FILE] [--default ID]

Prints `listening on http://127.0.0.1:PORT` as its first line and serves until SIGTERM.
"""

import argparse
import asyncio
from pathlib import Path

from pydantic import TypeAdapter

from examples.scripted_model.player import Player
from examples.scripted_model.script import Script
from examples.scripted_model.server import Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.scripted_model")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--script", type=Path, help="a JSON file: one script, or a list of them")
    parser.add_argument("--default", help="script for unknown models (default: the first of FILE)")
    options = parser.parse_args()
    scripts: list[Script] = []
    if options.script is not None:
        read = TypeAdapter(list[Script] | Script).validate_json(options.script.read_bytes())
        scripts = [read] if isinstance(read, Script) else read
    asyncio.run(Server(Player(scripts, options.default)).serve(options.port))


if __name__ == "__main__":
    main()
