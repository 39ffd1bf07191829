"""`python -m bench.gateway`: the same as `fareway bench gateway`."""

from __future__ import annotations

import sys

from gateway.cli.main import main

if __name__ == "__main__":
    main(["bench", "gateway", *sys.argv[1:]])
