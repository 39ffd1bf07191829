"""`fareway quickstart`: a calm story on standard output, and one sentence when it cannot be told."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.gateway_process import REPOSITORY, free_port
from tests.support.scripted_upstream import Chat, UpstreamProcess

START = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gateway.cli.entry import main
main()
"""
WITHOUT_TYPER = """
import sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
"""
ADMIN = "Administrator's key, shown only now: "


@pytest.fixture
def environ(tmp_path):
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith("FAREWAY_")},
        "FAREWAY_STATE_DIR": str(tmp_path / "state"),
    }


def start(folder, environ, *arguments, code=START, stdout=subprocess.PIPE):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=90, check=False,
    )  # fmt: skip


def configure(folder, *, port, base_url="http://127.0.0.1:9/v1"):
    config = {
        "server": {"port": port},
        "providers": {"up": {"kind": "openai_compatible", "base_url": base_url}},
        "models": {"chat": {"deployments": ["up/m"]}},
        "teams": {"research": {}},
    }
    (folder / "fareway.yaml").write_text(yaml.safe_dump(config))


def line_of(text, name):
    return next(line.removeprefix(name) for line in text.splitlines() if line.startswith(name))


@pytest.mark.slow
def test_quickstart_tells_its_story_and_nothing_else(tmp_path, environ):
    with UpstreamProcess({"m": [Chat(text="It scatters.")] * 2}, folder=tmp_path) as upstream:
        configure(tmp_path, port=free_port(), base_url=upstream.base_url)
        first = start(tmp_path, environ, "quickstart", "--once", "--prompt", "Why is [b] blue?")
        second = start(tmp_path, environ, "quickstart", "--once")
    for done in (first, second):
        assert (done.returncode, done.stderr) == (0, "")
        assert "It scatters." in done.stdout
        assert "chat -> up/m" in line_of(done.stdout, "Decision")
    assert "\n> Why is [b] blue?\n" in first.stdout
    assert ADMIN in first.stdout
    assert ADMIN not in second.stdout
    assert line_of(first.stdout, "API key") == line_of(second.stdout, "API key")


@pytest.mark.slow
def test_the_administrators_key_is_not_spent_on_a_start_that_fails(tmp_path, environ):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        configure(tmp_path, port=taken.getsockname()[1])
        failed = start(tmp_path, environ, "quickstart", "--once")
    assert failed.returncode == 1
    assert "set server.port in fareway.yaml" in failed.stderr
    assert ADMIN in start(tmp_path, environ, "quickstart", "--once").stdout


@pytest.mark.slow
def test_the_administrators_key_is_shown_before_anything_can_fail(tmp_path, environ):
    configure(tmp_path, port=free_port())
    failed = start(tmp_path, environ, "quickstart", "--once")
    assert failed.returncode == 1
    assert failed.stdout.startswith(ADMIN)
    assert failed.stderr.startswith("the request failed with 502: ")
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_interrupt_before_the_answer_is_one_sentence(tmp_path, environ):
    with UpstreamProcess({"m": [Chat(text="late", think_s=60.0)]}, folder=tmp_path) as upstream:
        configure(tmp_path, port=free_port(), base_url=upstream.base_url)
        with subprocess.Popen(
            [sys.executable, "-c", START, "quickstart"],
            cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            while not process.stdout.readline().startswith("> "):
                pass
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1] == "interrupted before the answer came"
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["model", "team"])
def test_a_configuration_that_cannot_be_shown_starts_nothing(tmp_path, environ, missing):
    configure(tmp_path, port=free_port())
    config = yaml.safe_load((tmp_path / "fareway.yaml").read_text())
    del config[f"{missing}s"]
    (tmp_path / "fareway.yaml").write_text(yaml.safe_dump(config))
    done = start(tmp_path, environ, "quickstart", "--once")
    said = f"the configuration has no {missing}; add one under `{missing}s:`\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert not (tmp_path / "state").exists()


FOLDERS = {
    "the state directory": ("FAREWAY_STATE_DIR", "/proc/x cannot be made: No such file or directory"),
    "the folder for models": ("XDG_CACHE_HOME", "no model can be served: local/m: the folder for models, "),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "said"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, environ, variable, said):
    (tmp_path / "fareway.yaml").write_text(
        f"server: {{port: {free_port()}}}\n"
        'providers: {local: {kind: local, models: [{id: m, source: "pypi:nothing==1"}]}}\n'
        "models: {chat: {deployments: [local/m]}}\n"
        "teams: {research: {}}\n"
    )
    done = start(tmp_path, environ | {variable: "/proc/x"}, "quickstart", "--once")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(said)


@pytest.mark.slow
def test_a_full_disk_under_the_output_is_one_sentence(tmp_path, environ):
    with Path("/dev/full").open("w") as full:
        done = start(tmp_path, environ, "config", "show", stdout=full)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "this machine refuses: No space left on device",
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_interrupt_while_modules_are_loaded_is_no_traceback(tmp_path, environ):
    done = start(tmp_path, environ, "doctor", code=WITHOUT_TYPER + START)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "\n")


@pytest.mark.slow
def test_a_missing_upstream_key_stops_the_start_with_its_line(tmp_path, environ):
    configure(tmp_path, port=free_port())
    config = yaml.safe_load((tmp_path / "fareway.yaml").read_text())
    config["providers"]["up"]["api_key_env"] = "NOBODY_SET_THIS"
    (tmp_path / "fareway.yaml").write_text(yaml.safe_dump(config, sort_keys=True))
    done = start(tmp_path, environ, "serve")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        ": providers.up.api_key_env: environment variable NOBODY_SET_THIS is not set\n"
    )
    assert not (tmp_path / "state" / "admin-key.hmac").exists()
