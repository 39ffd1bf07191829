"""`fareway bench` says what it needs."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None
sys.argv = ["fareway", "bench", "engine"]
from gateway.cli.entry import main
main()
"""


def test_the_engine_bench_without_transformers_says_how_to_get_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "transformers cannot be imported" in ended.stderr
    assert "pip install" in ended.stderr
    assert "Traceback" not in ended.stderr
