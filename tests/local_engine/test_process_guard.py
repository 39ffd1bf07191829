"""What a guarded process is protected by."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import ctypes, resource
from local_engine.process_guard import guard_process

guard_process()
libc = ctypes.CDLL(None)
death = ctypes.c_int()
libc.prctl(2, ctypes.byref(death), 0, 0, 0)
print(resource.getrlimit(resource.RLIMIT_CORE), libc.prctl(3, 0, 0, 0, 0), death.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux")
def test_a_guarded_process_dumps_no_core_and_dies_with_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(0,", "0)", "0", "9"]
